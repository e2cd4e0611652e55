"""Presets: what is composed from which settings, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from stepcredit.agents.logprobs import Reading
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.presets import ALGORITHMS, build, summary
from stepcredit.algos.presets.dapo import overlong


def test_every_preset_builds_from_its_defaults() -> None:
    for name in ALGORITHMS:
        assert isinstance(build(name, {}), Algorithm)


def test_published_defaults() -> None:
    ppo, grpo = build("ppo", {}), build("grpo", {})
    assert ppo.kl is not None and grpo.kl is not None
    assert (ppo.kl.place, ppo.kl.beta, ppo.min_members) == ("reward", 0.02, 1)
    assert ppo.critic is not None and grpo.critic is None
    assert (grpo.kl.place, grpo.kl.beta, grpo.min_members) == ("loss", 0.04, 2)


PER_TOKEN = ("action_mask", "turn_ids", "old_logprobs", "advantages")


def one_token() -> Batch:
    one = torch.ones(1, 1)
    return Batch(
        input_ids=torch.zeros(1, 1, dtype=torch.int64),
        attention_mask=one.bool(),
        action_mask=one.bool(),
        loss_mask=one.bool(),
        turn_ids=torch.zeros(1, 1, dtype=torch.int64),
        step_end=one.bool(),
        rewards=one,
        old_logprobs=torch.full((1, 1), -1.0),
        group_index=torch.zeros(1, dtype=torch.int64),
        truncated=torch.zeros(1, dtype=torch.bool),
        outcomes=torch.ones(1),
        state_index=torch.full((1, 1), -1),
        advantages=one,
    )


@pytest.mark.parametrize(("budget", "held"), [(None, False), (0.001, True)])
def test_cppo_asks_each_answer_for_its_budget(budget: float | None, held: bool) -> None:
    # Ten tokens that each moved by .018: within the own budget of .02, beyond a mean of .001.
    one = one_token()
    columns = {name: getattr(one, name).expand(1, 10) for name in PER_TOKEN}
    batch = replace(one, **columns)
    now = Reading(batch.old_logprobs + math.log(1.05), torch.zeros(1, 10))
    settings = {"budget": budget, "topk": 0, "delta": 0.1, "w_min": 1.0}
    assert bool(build("cppo", settings).trust_region(now, batch)[1].any()) is held


def surrogate(algorithm: Algorithm, ratio: float) -> float:
    """The surrogate of one token with advantage 1 whose ratio has come to `ratio`."""
    batch = one_token()
    now = Reading(batch.old_logprobs + math.log(ratio), torch.zeros(1, 1))
    return float(algorithm.trust_region(now, batch)[0])


@pytest.mark.parametrize(
    ("preset", "settings", "ratio", "expected"),
    [
        ("grpo", {"epsilon": 0.5}, 2.0, 1.5),
        ("ppo", {}, 2.0, 1.2),
        ("dapo", {}, 2.0, 1.28),
        ("vapo", {}, 2.0, 1.28),
        ("gspo", {}, 2.0, 1.0004),
    ],
)
def test_settings_reach_the_trust_region(
    preset: str, settings: dict[str, object], ratio: float, expected: float
) -> None:
    assert surrogate(build(preset, settings), ratio) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("preset", "settings", "says"),
    [
        ("grpoo", {}, "algo.preset=grpoo: unknown; did you mean grpo?"),
        ("GRPO", {}, "algo.preset=GRPO: unknown; did you mean grpo?"),
        ("grpo", {"epsilom": 0.1}, "algo.epsilom: grpo has no such setting; did you mean epsilon?"),
        ("grpo", {"lam": 0.9}, "algo.lam: grpo has no such setting"),
        ("ppo", {"lam": 1.5}, "algo.lam=1.5: Input should be less than or equal to 1"),
        ("grpo", {"epsilon": "much"}, "algo.epsilon=much"),
        (
            "grpo",
            {"beta": 0.1, "kl_loss_coef": 0.2},
            "algo.kl_loss_coef=0.2: the same as algo.beta",
        ),
        (
            "grpo",
            {"kl_loss_coef": 0.2, "beta": 0.1},
            "algo.beta=0.1: the same as algo.kl_loss_coef; give one of them",
        ),
        ("ppo", {"beta": 0, "target_kl": 1}, "algo.target_kl=1.0: there is no KL"),
        ("vapo", {"target_kl": 1}, "algo.target_kl=1.0: there is no KL"),
        ("cppo", {"budget": None, "divergence": "kl"}, "algo.budget=null: an answer's own budget"),
        (f"{__name__}:failing", {"problem": "key"}, "failing: cannot be called (KeyError: 'key')"),
        (f"{__name__}:failing", {"problem": "exit"}, "failing: cannot be called (SystemExit: 3)"),
        (f"{__name__}:refusing", {}, "algo.epsilon=-1: Input should be greater than 0"),
        (":f", {}, "algo.preset=:f: cannot be called (ValueError: Empty module name)"),
        ("nowhere_at_all:f", {}, "nowhere_at_all"),
        ("math:no_such_function", {}, "no_such_function"),
        ("math:sqrt", {}, "math:sqrt"),
    ],
)
def test_what_is_refused(preset: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError) as error:
        build(preset, settings)
    assert says in str(error.value)


def custom(epsilon: float = 0.3) -> Algorithm:
    return build("grpo", {"epsilon": epsilon})


def failing(problem: str) -> Algorithm:
    if problem == "exit":
        raise SystemExit(3)
    raise KeyError(problem)


def refusing() -> Algorithm:
    return build("grpo", {"epsilon": -1})


def test_a_function_of_the_users_own() -> None:
    assert isinstance(build(f"{__name__}:custom", {"epsilon": 0.1}), Algorithm)


def test_names_that_verl_uses() -> None:
    ours = build("dapo", {"epsilon": 0.1, "epsilon_high": 0.3, "beta": 0.5})
    theirs = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "kl_loss_coef": 0.5}
    assert surrogate(build("dapo", theirs), 2.0) == surrogate(ours, 2.0) == pytest.approx(1.3)
    kl = build("dapo", theirs).kl
    assert kl is not None and kl.beta == 0.5
    assert build("grpo", {"ppo_epochs": 3}).num_iterations == 3
    assert build("ppo", {"ppo_epochs": 3}).num_iterations == 3


def test_overlong_answers_pay_by_their_length() -> None:
    # 1 to 9 policy tokens, at most 8, the last 4 of them on a slope (arXiv:2503.14476, eq. 13).
    mask = torch.arange(9) <= torch.arange(9)[:, None]
    cost = overlong(mask, max_tokens=8, cache=4)
    assert cost.tolist() == [0, 0, 0, 0, -0.25, -0.5, -0.75, -1, -1]
    assert overlong(mask, max_tokens=8, cache=0).tolist() == [0] * 8 + [-1]


def test_an_overlong_answer_loses_against_its_group() -> None:
    # Equal rewards: only lengths 2, 3 and 4 tell the samples apart. Costs 0, -.5, -1.
    mask = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, 1]]).bool()
    batch = replace(
        one_token(),
        action_mask=mask,
        rewards=torch.tensor([[0.0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]),
        group_index=torch.zeros(3, dtype=torch.int64),
    )
    algorithm = build("dapo", {"max_completion_length": 4, "overlong_cache": 2})
    advantages = algorithm.advantage(batch).advantages
    for row, expected in enumerate([1.0, 0.0, -1.0]):
        assert advantages[row][mask[row]].tolist() == pytest.approx(
            [expected] * int(mask[row].sum())
        )


def test_what_a_preset_compares() -> None:
    # Returns 3, 1, 1 and 1: mean 1.5, of the others 1 and 5/3; std (n-1) 1.
    mask = torch.ones(4, 2).bool()
    batch = replace(
        one_token(),
        action_mask=mask,
        step_end=mask,
        rewards=torch.tensor([[1.0, 2], [1, 0], [0, 1], [1, 0]]),
        group_index=torch.zeros(4, dtype=torch.int64),
        outcomes=torch.tensor([1.0, 0, 0, 0]),
    )
    expected = {"grpo": 1.5, "rloo": 2.0, "dr_grpo": 1.5, "dppo": 1.5, "gspo": 1.5, "cispo": 1.5}
    for preset, first in expected.items():
        advantages = build(preset, {}).advantage(batch).advantages
        assert advantages[0].tolist() == pytest.approx([first, first]), preset
    halved = replace(batch, rewards=batch.rewards / 2)
    assert build("dr_grpo", {}).advantage(halved).advantages[0, 0] == pytest.approx(0.75)
    assert build("grpo", {"scale_rewards": "none"}).advantage(halved).advantages[0, 0] == 0.75


def test_answers_are_summed_or_averaged_as_published() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    for presets, first, second in (
        (("grpo", "gspo", "n_grpo", "gigpo"), 1 / 6, 1 / 2),
        (("rloo", "dppo", "cppo"), 1 / 2, 1 / 2),
        (("dapo", "cispo", "ppo", "vapo", "reinforce_plus_plus"), 1 / 4, 1 / 4),
    ):
        for preset in presets:
            weights = build(preset, {}).weight(mask)
            assert weights[0].tolist() == pytest.approx([first] * 3 + [0]), preset
            assert weights[1].tolist() == pytest.approx([second, 0, 0, 0]), preset
    weights = build("dr_grpo", {"max_completion_length": 10}).weight(mask)
    assert weights.tolist() == [pytest.approx([1 / 20] * 3 + [0]), pytest.approx([1 / 20, 0, 0, 0])]


def test_every_preset_says_in_one_line_what_it_is() -> None:
    for name in ALGORITHMS:
        assert 20 < len(summary(name)) < 100 and summary(name).endswith("."), name
