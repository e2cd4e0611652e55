"""Small environments and tokenizers that the tests of this folder share."""

from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium as gym
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from stepcredit.agents.engines.base import Mixing
from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.episode import TaskSpec
from stepcredit.agents.model import build_tiny
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool, Limits, rollout
from stepcredit.agents.tokenizer import build_char_tokenizer
from stepcredit.agents.trajectory import Group, Trajectory
from stepcredit.envs import Env, StepReward

ALPHABET = "abcdefgh0123456789"


class Ragged(Env):
    """Random lengths, turns and judged spans: nothing is aligned between rows."""

    alphabet = ALPHABET

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.left = int(self.chance.integers(1, 6))
        return self._text(self.task_rng), {}

    def step(self, action: str) -> Any:
        self.left -= 1
        spans, at = [], 0
        while at < len(action):
            start = at + int(self.chance.integers(0, 2))
            end = start + int(self.chance.integers(1, 3))
            if end <= len(action):
                spans.append(StepReward(start, end, float(self.chance.normal())))
            at = end
        reward = sum(s.value for s in spans) + float(self.chance.normal())
        info: dict[str, Any] = {"step_rewards": spans, "components": {"noise": reward}}
        if not self.left:
            info["outcome"] = 0.5
        return self._text(self.chance), reward, not self.left, False, info

    def state_key(self) -> str:
        return str(self.left)

    def _text(self, rng: Any) -> str:
        return "".join(rng.choice(list(ALPHABET), size=int(rng.integers(1, 9))))


class Scripted(gym.Env[Any, Any]):
    """A plain gymnasium environment whose every step is the given function of the action."""

    observation_space = action_space = gym.spaces.Text(9)

    def __init__(self, answer: Callable[[Any, str], Any]):
        self.answer = answer
        self.turn = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed, self.options = seed, options
        self.turn = 0
        return "a", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        return self.answer(self, action)

    def close(self) -> None:
        self.closed = True


@cache
def char_renderer() -> ChatRenderer:
    return ChatRenderer(build_char_tokenizer(ALPHABET))


def tiny(seed: int = 0) -> LlamaForCausalLM:
    return build_tiny(len(char_renderer().tokenizer), "0.12M", seed).eval()


def engine(
    model: LlamaForCausalLM | None = None,
    temperature: float = 1.0,
    *,
    topk: int = 0,
    mixing: Mixing | None = None,
) -> TransformersEngine:
    return TransformersEngine(
        model or tiny(),
        stop_id=char_renderer().stop_id,
        temperature=temperature,
        topk=topk,
        mixing=mixing,
    )


def tasks(count: int) -> list[TaskSpec]:
    return [TaskSpec(group_id=f"g{i}", task=i) for i in range(count)]


def play(
    make_env: Callable[[], gym.Env[Any, Any]],
    *,
    num_tasks: int = 3,
    num_generations: int = 4,
    temperature: float = 1.0,
    run_seed: int = 0,
    model: LlamaForCausalLM | None = None,
    topk: int = 0,
    mixing: Mixing | None = None,
    **limits: Any,
) -> tuple[list[Group], dict[str, float]]:
    settings = {"max_turn_tokens": 6, "max_episode_tokens": 200, "env_timeout_s": 20.0, **limits}
    return rollout(
        engine(model, temperature, topk=topk, mixing=mixing),
        char_renderer(),
        EnvPool(make_env),
        tasks(num_tasks),
        num_generations=num_generations,
        run_seed=run_seed,
        env_id="test/Env-v0",
        limits=Limits(**settings),
    )


@torch.no_grad()
def reference_logprobs(model: LlamaForCausalLM, ids: Any, temperature: float) -> list[float]:
    """One fresh forward pass per prefix: slow, and with nothing in it that could be shared."""
    out = [0.0]
    for t in range(1, len(ids)):
        logits = model(input_ids=torch.tensor([list(map(int, ids[:t]))])).logits[0, -1]
        out.append(float(torch.log_softmax(logits.double() / temperature, -1)[int(ids[t])]))
    return out


@torch.no_grad()
def one_pass_logprobs(model: Any, ids: Any, temperature: float) -> list[float]:
    """One fresh forward pass over the whole sequence, without cache or batch."""
    ids = list(map(int, ids))
    logits = model(input_ids=torch.tensor([ids])).logits[0].double() / temperature
    logp = torch.log_softmax(logits, -1)
    return [0.0] + [float(logp[t - 1, ids[t]]) for t in range(1, len(ids))]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "Hello, wörld! 12 + 34",
    "naïve café ☕",
    "😀😀 👩‍👩‍👧 party 🎉",
    "日本語 テスト",
    "  spaces\n\ttabs",
]


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE in which most emoji take several tokens and some words one."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(TEXTS * 4, trainer)
    backend.add_special_tokens(
        [AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<|pad|>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=CHATML,
    )


DONE = {"outcome": 1.0}


def members(groups: Any) -> list[Trajectory]:
    return [t for group in groups for t in group.trajectories]


def ending_after(turns: int, reward: float = 1.0) -> Any:
    """A script that ends after so many turns."""

    def answer(env: Any, action: str) -> Any:
        ended = env.turn >= turns
        return "b" * env.turn, reward, ended, False, DONE if ended else {}

    return answer


def raises(env: Any, action: str) -> Any:
    raise RuntimeError("the world fell over")
