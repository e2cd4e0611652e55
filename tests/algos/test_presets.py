"""Presets: what is composed from which settings, and what is refused."""

import pytest
import torch

from stepcredit.algos.presets import ALGORITHMS, Algorithm, build


def test_every_preset_builds_from_its_defaults() -> None:
    for name in ALGORITHMS:
        assert isinstance(build(name, {}), Algorithm)


def test_published_defaults() -> None:
    ppo, grpo = build("ppo", {}), build("grpo", {})
    assert (ppo.kl_in, ppo.beta, ppo.min_members) == ("reward", 0.02, 1)
    assert ppo.critic is not None
    assert (grpo.kl_in, grpo.beta, grpo.min_members, grpo.critic) == ("loss", 0.04, 2, None)


def test_settings_reach_the_trust_region() -> None:
    algorithm = build("grpo", {"epsilon": 0.5})
    surrogate, _ = algorithm.trust_region(
        torch.tensor([[2.0]]).log(), torch.zeros(1, 1), torch.ones(1, 1)
    )
    assert float(surrogate) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("preset", "settings", "says"),
    [
        ("gpro", {}, "algo.preset=gpro: unknown; did you mean grpo?"),
        ("grpo", {"epsilom": 0.1}, "algo.epsilom: grpo has no such setting; did you mean epsilon?"),
        ("grpo", {"lam": 0.9}, "algo.lam: grpo has no such setting"),
        ("ppo", {"lam": 1.5}, "algo.lam=1.5: Input should be less than or equal to 1"),
        ("grpo", {"epsilon": "much"}, "algo.epsilon=much"),
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


def test_a_function_of_the_users_own() -> None:
    assert isinstance(build(f"{__name__}:custom", {"epsilon": 0.1}), Algorithm)
