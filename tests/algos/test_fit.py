"""Settings and environments that do not fit an algorithm are refused before anything is trained."""

from pathlib import Path
from typing import Any

import pytest

from stepcredit.algos import train
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.fit import check_env_fit
from stepcredit.algos.presets import build
from stepcredit.algos.settings import AlgoSettings, EnvSettings
from stepcredit.envs import Env, StepReward, register
from tests.algos.runs import config


@pytest.mark.parametrize(
    ("preset", "changes", "says"),
    [
        ("grpo", {"truncation": "bootstrap"}, "grpo has no critic that could value the state"),
        ("vineppo", {"truncation": "bootstrap"}, "vineppo has no critic"),
        ("ppo", {"value_pretrain_steps": 6}, "the policy would not learn in train.steps=6"),
        ("rloo", {"num_generations": 1}, "num_generations=1: rloo compares"),
        ("dapo", {"max_completion_length": 2, "overlong_cache": 3}, "overlong_cache=3: must be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    preset: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=says):
        train(config(algo={"preset": preset} | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Silent(Env):
    """Answers once, judges no step, names no state."""

    one_turn = True
    alphabet = "ab"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return "a", {}

    def step(self, action: str) -> Any:
        return "", float(action == "b"), True, False, {"outcome": float(action == "b")}

    def demonstration(self, rng: Any) -> str:
        return "b"


register("test/Silent-v0", Silent)


class Tested(Silent):
    """Is evaluated on a split of another name."""

    splits = ("train", "test")


register("test/Tested-v0", Tested)


class Sometimes(Silent):
    """Judges steps in some tasks, and only where something was said."""

    def step(self, action: str) -> Any:
        answer = super().step(action)
        if action and self.task % 4 == 0:
            answer[4]["step_rewards"] = [StepReward(0, len(action), answer[1])]
        return answer

    def demonstration(self, rng: Any) -> str:
        return str(rng.choice(["b", ""]))


register("test/Sometimes-v0", Sometimes)


def test_an_environment_without_the_split_that_is_evaluated(tmp_path: Path) -> None:
    other = config().model_copy(update={"env": EnvSettings(id="test/Tested-v0")})
    with pytest.raises(TrainingError, match="splits train, test: training plays train and eval"):
        train(other, tmp_path / "run")


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("grpo_process", "judges no step inside its answer"),
        ("gigpo", "does not name its states"),
    ],
)
def test_environments_that_lack_what_a_preset_needs(preset: str, says: str, tmp_path: Path) -> None:
    settings = config(algo={"preset": preset})
    silent = settings.model_copy(update={"env": EnvSettings(id="test/Silent-v0")})
    with pytest.raises(TrainingError, match=says):
        train(silent, tmp_path / "run")
    ready = silent.model_copy(update={"algo": AlgoSettings(preset="grpo", num_generations=2)})
    train(ready, tmp_path / "run")


def test_an_environment_that_judges_steps_now_and_then_is_not_refused() -> None:
    settings = config(algo={"preset": "grpo_process"})
    now_and_then = settings.model_copy(update={"env": EnvSettings(id="test/Sometimes-v0")})
    check_env_fit(now_and_then, build("grpo_process", {}))
