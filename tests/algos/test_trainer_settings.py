"""What settings do to a run: groups, references, rates, truncation."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from stepcredit.agents.trajectory import load_trajectories
from stepcredit.algos import train
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.credit import Credit
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.presets import build
from stepcredit.algos.settings import EnvSettings
from stepcredit.envs import Env, register
from tests.algos.runs import config, log, policy


def test_flat_groups_are_sampled_anew_and_their_tokens_count(tmp_path: Path) -> None:
    # Success is rare: most groups of two fail alike.
    rare = config(
        env={"turns": 4, "reward": "outcome"},
        algo={"preset": "dapo", "num_generations": 2, "max_num_gen_batches": 3},
        train={"tasks_per_step": 4, "steps": 4, "trajectories_every": 1},
    )
    train(rare, tmp_path / "run")
    rows = log(tmp_path / "run")[1:]
    assert any(row["groups/sampled"] > 4 for row in rows)
    tokens = 0
    for row in rows:
        found = load_trajectories(tmp_path / f"run/trajectories/step-{row['step']:06d}.parquet")
        tokens += sum(t.num_action_tokens for t in found)
        groups = {t.group_id for t in found}
        assert len(groups) == row["groups/sampled"] <= 12
        trained = {t.group_id for t in found if t.advantages is not None}
        assert len(trained) <= 4
        for name in trained:
            assert len({t.ret for t in found if t.group_id == name}) > 1
        assert row["sampled_tokens"] == tokens


def test_tokens_of_continuations_count_as_sampled(tmp_path: Path) -> None:
    settings = config(algo={"preset": "vineppo", "num_continuations": 2}, train={"steps": 2})
    train(settings, tmp_path / "run")
    rows = log(tmp_path / "run")
    for before, row in itertools.pairwise(rows):
        more = row["sampled_tokens"] - before["sampled_tokens"]
        assert more > row["montecarlo/policy_tokens"] > 0


def test_the_reference_follows_the_policy_and_survives_a_resume(tmp_path: Path) -> None:
    algo = {
        "preset": "r1_zero",
        "reference_refresh_steps": 2,
        "beta": 0.5,
        "num_mini_batches": 1,
    }
    train(config(algo=algo), tmp_path / "run")
    kl = [row["objective/kl"] for row in log(tmp_path / "run")[1:]]
    # The step after a refresh starts from the reference itself.
    assert [step for step, each in enumerate(kl, start=1) if abs(each) < 1e-5] == [1, 3, 5]
    shorter = config(algo=algo, train={"steps": 3, "save_every": 1})
    longer = config(algo=algo, train={"steps": 6, "save_every": 1})
    train(shorter, tmp_path / "halves")
    (tmp_path / "halves/config.yaml").write_text(yaml.safe_dump(longer.model_dump(mode="json")))
    train(longer, tmp_path / "halves", resume=True)
    assert policy(tmp_path / "run") == policy(tmp_path / "halves")


def test_the_kl_coefficient_follows_its_target(tmp_path: Path) -> None:
    train(config(algo={"preset": "ppo", "beta": 0.1, "target_kl": 1e-6}), tmp_path / "run")
    rows = log(tmp_path / "run")[1:]
    assert rows[0]["objective/kl_coef"] == 0.1
    for before, after in itertools.pairwise(rows):
        error = min(max(before["objective/kl"] / 1e-6 - 1, -0.2), 0.2)
        expected = before["objective/kl_coef"] * (1 + 0.1 * error)
        assert after["objective/kl_coef"] == pytest.approx(expected)


class Same(Env):
    """Pays the same in every turn, whatever is said."""

    alphabet = "ab"

    def __init__(self, pay: float = 0.0, turns: int = 3):
        self.pay, self.turns = pay, turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.turn = 0
        return "a", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        ended = self.turn == self.turns
        return "" if ended else "b", self.pay, ended, False, {"outcome": 0.5} if ended else {}

    def demonstration(self, rng: Any) -> str:
        return str(rng.choice(["a", "b"]))


register("test/Same-v0", Same)


@pytest.mark.parametrize(
    ("preset", "changes", "env"),
    [
        # .1 seven times over: V(after) + .1 - V(before) is rounding.
        ("vineppo", {"num_continuations": 2, "beta": 0.0}, {"pay": 0.1, "turns": 7}),
        # Nobody earns anything, and the policy still is its own reference.
        ("vineppo", {"num_continuations": 2}, {}),
        ("ppo", {}, {}),
        ("ppo_turn", {}, {}),
        ("reinforce_plus_plus", {}, {}),
        ("reinforce_plus_plus_baseline", {}, {}),
    ],
)
def test_rounding_is_not_whitened_into_advantages(
    preset: str, changes: dict[str, Any], env: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(algo={"preset": preset} | changes, train={"steps": 1})
    same = EnvSettings.model_validate({"id": "test/Same-v0", "reward": "dense"} | env)
    train(settings.model_copy(update={"env": same}), tmp_path / "run")
    assert log(tmp_path / "run")[1]["grad_norm"] == 0


def rates(folder: Path, **settings: Any) -> list[float]:
    """The policy's and the critic's learning rate in the last step of a run."""
    train(config(**settings), folder)
    (found,) = folder.glob("checkpoints/step-*/optimizers.pt")
    kept = torch.load(found, weights_only=True)
    return [kept[whose]["param_groups"][0]["lr"] for whose in ("policy", "critic")]


def test_each_network_warms_up_in_its_own_first_steps(tmp_path: Path) -> None:
    algo = {"preset": "ppo", "warmup_steps": 4, "value_learning_rate": 1e-2}
    train_for = {"steps": 3, "eval_every": 0}
    both = rates(tmp_path / "both", algo=algo, train=train_for)
    assert both == pytest.approx([3 / 4 * 1e-3, 3 / 4 * 1e-2])
    late = algo | {"value_pretrain_steps": 2}
    assert rates(tmp_path / "late", algo=late, train=train_for) == pytest.approx(
        [1 / 4 * 1e-3, 3 / 4 * 1e-2]
    )


def without_returns() -> Algorithm:
    return replace(build("ppo", {}), advantage=lambda batch: Credit(batch.rewards))


def of_one_row() -> Algorithm:
    return replace(build("grpo", {}), advantage=lambda batch: Credit(batch.rewards[:1]))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("without_returns", "must say what the critic should learn"),
        ("of_one_row", r"advantages \[1, \d+\]: must be \[8, \d+\]"),
    ],
)
def test_credit_that_does_not_fit_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=says):
        train(config(algo={"preset": f"{__name__}:{name}"}), tmp_path / "run")


def test_the_critic_learns_alone_first(tmp_path: Path) -> None:
    settings = config(algo={"preset": "vapo", "value_pretrain_steps": 3, "alpha": 1.0})
    train(settings, tmp_path / "run")
    rows = log(tmp_path / "run")[1:]
    assert ["loss/policy" in row for row in rows] == [False] * 3 + [True] * 3
    assert all("loss/value" in row for row in rows)


def test_truncated_episodes_as_the_settings_say(tmp_path: Path) -> None:
    found = {}
    for kind in ("none", "bootstrap", "mask", "penalty"):
        settings = config(
            env={"turns": 4},
            algo={"preset": "ppo_step", "truncation": kind},
            rollout={"max_turns": 2},
            train={"steps": 2},
        )
        train(settings, tmp_path / kind)
        found[kind] = policy(tmp_path / kind)
    assert len(set(found.values())) == 4
    rows = log(tmp_path / "mask")[1:]
    # Every episode is cut after two turns: nothing is left to train the policy on.
    assert all(row["rollout/status/turn_limit"] > 0 and row["grad_norm"] == 0 for row in rows)
