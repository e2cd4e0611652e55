"""What a comparison needs of training, made up: settings, trainer, credit."""

import random
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stepcredit.compare import Runner
from stepcredit.config import Layered, build
from stepcredit.credit_page import CreditRow
from tests.face.fake_trainer import run_one


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FakeEnv(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str = "fake"
    reward: str = "outcome"
    turns: int = Field(4, ge=1)


class FakeModel(Closed):
    size: str = "0.2M"


class FakeAlgo(BaseModel):
    model_config = ConfigDict(extra="allow")
    preset: Literal["ppo", "ppo_step", "grpo", "grpo_process"] = "grpo"
    learning_rate: float = Field(3e-4, gt=0)


class FakeTrain(Closed):
    steps: int = Field(100, ge=1)
    sampled_tokens: int = Field(2560, ge=1)
    eval_every: int = Field(5, ge=0)
    save_every: int = 0
    trajectories_every: int = 0
    seed: int = Field(0, ge=0)


class FakeConfig(Closed):
    env: FakeEnv = FakeEnv()
    model: FakeModel = FakeModel()
    algo: FakeAlgo = FakeAlgo()
    train: FakeTrain = FakeTrain()


def build_config(layer: Layered) -> dict[str, Any]:
    return build(FakeConfig, layer).model_dump(mode="json")


def credit_rows(folder: Path) -> list[CreditRow]:
    if not (folder / "summary.json").exists():
        raise FileNotFoundError(folder)
    prompt = list("open <3 doors> & win\ndoor aq ")
    tokens, mask, rewards = list(prompt), [False] * len(prompt), [0.0] * len(prompt)
    for door, (digit, paid) in enumerate([("4", 1.0), ("7", 0.0), ("0", 1.0)]):
        tokens += [digit, "<e>", *f" door {door} "]
        mask += [True, True, *[False] * 8]
        rewards += [paid, 0.0, *[0.0] * 8]
    rows = []
    for name in ("grpo", "grpo_process", "ppo_step"):
        for reward in ("outcome", "dense"):
            size = random.Random(f"{name}{reward}")
            shared = size.gauss(0, 1)
            advantages = [
                None if not m else (shared if name == "grpo" else size.gauss(0, 1)) for m in mask
            ]
            paid = rewards if reward == "dense" else [0.0] * len(rewards)
            rows.append(
                CreditRow(
                    label=f"{name}, {reward}",
                    tokens=tokens,
                    action_mask=mask,
                    rewards=paid,
                    advantages=advantages,
                    values=[0.5] * len(mask) if name == "ppo_step" else None,
                )
            )
    return rows


def runner() -> Runner:
    return Runner(build_config=build_config, run_one=run_one, credit_rows=credit_rows)
