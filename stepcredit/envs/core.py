"""The environment contract: text in, text out, judged steps, two kinds of seeds.

An environment subclasses `Env`, sets up its problem in ``reset`` and judges text in ``step``::

    class Parity(Env):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            self.n = int(self.task_rng.integers(100))
            return f"{self.n}: odd or even?", {}

        def step(self, action):
            right = float(action.strip() == ("odd" if self.n % 2 else "even"))
            return "", right, True, False, {"outcome": right}

Keys of ``info`` that mean something on a step:

* ``step_rewards``: list of `StepReward`, the judged steps inside the action. ``reward`` is the
  total of the whole action; what the spans leave over belongs to the end of the action. Without
  this key the action is one step.
* ``outcome``: graded result in [0, 1], luck and shaping apart; required when the episode ends.
* ``success``: bool, all right or not; taken as ``outcome >= 1`` where absent.
* ``components``: named parts of this step's reward, ``dict[str, float]``; no name is that of a
  reward set-up.
* ``status``: ``"error"`` when the environment could not score (with ``error``, a text); such an
  episode counts nowhere.

Numbers lie between -1e30 and 1e30, and texts can be stored as UTF-8: no lone surrogates.

An environment may also offer any of these, found by name:

* ``gold() -> str``: the right action for the current state.
* ``demonstration(rng) -> str``: a noisy expert's action for the current state.
* ``alphabet: str``: every character that its texts and sensible actions use.
* ``one_turn: bool``: every episode ends with its first action.
* ``blocking: bool | int``: its calls wait for something outside, so that those of several episodes
  are made side by side; a number says how many at once are not kept waiting by one another.
* ``state_key() -> str``: what of the current state the agent can see, equal for equal states.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import gymnasium as gym
import numpy as np

from stepcredit.envs.errors import BadValueError, EnvError, unknown_name, whole_number

# Fits in a signed 64-bit integer, so that every seed can be stored in a table and given to any
# generator.
_SEED_BITS = 63


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


Obs = str | list[Message]


@dataclass(frozen=True)
class StepReward:
    """The reward of one judged step: characters ``start:end`` of the action earned ``value``."""

    start: int
    end: int
    value: float


def derive_seed(*parts: int | str) -> int:
    """Returns a 63-bit seed that depends on the parts, their types and their order only.

    Equal on every machine and in every process, unlike ``hash()``.
    """
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


class TextSpace(gym.Space[Any]):
    """Any unicode text up to ``max_length`` characters; with ``messages`` also message lists."""

    def __init__(self, max_length: int = 2**20, *, messages: bool = False, seed: int | None = None):
        """Raises `BadValueError` for a ``max_length`` below 1."""
        self.max_length = whole_number(
            "max_length", max_length, low=1, fix="leave it out for no practical limit"
        )
        self.messages = messages
        super().__init__(seed=seed)

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Returns a short random text: mostly ASCII, some characters beyond it."""
        if mask is not None or probability is not None:
            raise EnvError("a mask over all texts has no meaning: call sample() without one")
        length = int(self.np_random.integers(0, min(self.max_length, 12) + 1))
        ascii_codes = self.np_random.integers(32, 127, size=length)
        wide_codes = self.np_random.integers(0xA1, 0x2000, size=length)
        wide = self.np_random.random(length) < 0.1
        return "".join(chr(code) for code in np.where(wide, wide_codes, ascii_codes))

    def contains(self, x: Any) -> bool:
        """Says whether ``x`` is such a text (or list of messages)."""
        if isinstance(x, str):
            return len(x) <= self.max_length
        return self.messages and is_messages(x)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no flat array form."""
        return False

    def to_jsonable(self, sample_n: Iterable[Any]) -> list[Any]:
        """Returns the samples as they are: text is JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[Any]:
        """Returns the samples as they are."""
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        """Equal when the same texts are in both."""
        return (
            isinstance(other, TextSpace)
            and self.max_length == other.max_length
            and self.messages == other.messages
        )

    __hash__ = None  # type: ignore[assignment]  # spaces carry a random state and are not keys

    def __repr__(self) -> str:
        """Shows the constructor call."""
        return f"TextSpace(max_length={self.max_length}, messages={self.messages})"


def is_messages(value: object) -> bool:
    """Says whether ``value`` is a list of messages with a text ``role`` and a text ``content``."""
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and isinstance(each.get("role"), str)
        and isinstance(each.get("content"), str)
        for each in value
    )


class Env(gym.Env[Obs, str]):
    """Base of text environments: a gymnasium environment with a task seed and a chance seed.

    ``task_rng`` draws the problem, ``chance`` everything random after that. Members of a group
    share the task and never the chance, so whatever must be equal between them is drawn from
    ``task_rng``.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "eval")
    one_turn: ClassVar[bool] = False
    option_names: ClassVar[tuple[str, ...]] = ("task", "split", "chance_seed")
    observation_space: gym.Space[Any] = TextSpace(messages=True)
    action_space: gym.Space[Any] = TextSpace()

    task: int
    split: str
    task_rng: np.random.Generator
    chance_seed: int
    chance: np.random.Generator

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Chooses the task and the chance; a subclass calls this first, then sets up its problem.

        ``options`` may hold ``task`` (default: drawn from ``seed``), ``split`` (default
        ``"train"``) and ``chance_seed`` (default: drawn from ``seed``). Raises `UnknownNameError`
        for another option or an unknown split, `BadValueError` for a bad value.
        """
        super().reset(seed=seed)
        if options is not None and not isinstance(options, dict):
            raise BadValueError(
                f"options={options!r}: must be a dict; pass options={{'task': 3}} or leave it out"
            )
        chosen = dict(options or {})
        for name in chosen:
            if name not in self.option_names:
                raise unknown_name("reset option", str(name), self.option_names)
        # Both are drawn whatever the options say, so that giving one leaves the other as it was.
        drawn_task, drawn_chance = self.np_random.integers(2**31, size=2)
        fix = "leave it out to have it drawn from the seed"
        self.task = whole_number("task", chosen.get("task", drawn_task), low=0, fix=fix)
        self.chance_seed = whole_number(
            "chance_seed", chosen.get("chance_seed", drawn_chance), low=0, fix=fix
        )
        self.split = chosen.get("split", self.splits[0])
        if self.split not in self.splits:
            raise unknown_name("split", str(self.split), self.splits)
        self.task_rng = np.random.default_rng(derive_seed("task", self.split, self.task))
        self.chance = np.random.default_rng(derive_seed("chance", self.chance_seed))
        return "", {}


StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


def replay(
    env: gym.Env[Any, Any],
    *,
    task: int,
    split: str,
    chance_seed: int,
    actions: Sequence[str],
    fresh_chance_seed: int | None = None,
) -> StepResult:
    """Brings ``env`` back to the state after ``actions`` and returns the last step's five values.

    With no actions these are the first observation, reward 0 and two False flags. A
    ``fresh_chance_seed`` replaces the chance from here on, so that many futures can be drawn.
    Raises `EnvError` when the episode ends before the actions do.
    """
    obs, info = env.reset(options={"task": task, "split": split, "chance_seed": chance_seed})
    result: StepResult = (obs, 0.0, False, False, info)
    for number, action in enumerate(actions):
        if result[2] or result[3]:
            raise EnvError(
                f"replay of {len(actions)} actions: the episode ended after {number}; "
                "give only the actions that were taken in it"
            )
        obs, reward, terminated, truncated, info = env.step(action)
        result = (obs, float(reward), terminated, truncated, info)
    if fresh_chance_seed is not None:
        renew_chance(env, fresh_chance_seed)
    return result


def renew_chance(env: gym.Env[Any, Any], fresh_chance_seed: int) -> None:
    """Replaces the chance from here on, also where the environment has handed its generator on.

    What was drawn before stays as it is, shown or not: an environment whose futures are to differ
    draws its luck when it shows or pays it. Raises `BadValueError` for one that is no `Env`.
    """
    inner = env.unwrapped
    if not isinstance(inner, Env):
        raise BadValueError(
            f"fresh_chance_seed={fresh_chance_seed}: {type(inner).__name__} has no chance of "
            "its own; subclass stepcredit.envs.Env or leave fresh_chance_seed out"
        )
    fresh = np.random.default_rng(derive_seed("chance", fresh_chance_seed))
    inner.chance.bit_generator.state = fresh.bit_generator.state
