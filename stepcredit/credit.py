"""One trajectory of a run under every estimator: what each would have credited to which token."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from transformers import PreTrainedTokenizerBase

from stepcredit.agents.tokenizer import build_char_tokenizer
from stepcredit.agents.trajectory import Group, Trajectory, load_trajectories
from stepcredit.algos.batch import live, pack
from stepcredit.algos.presets import build
from stepcredit.algos.settings import RunConfig
from stepcredit.credit_page import CreditRow
from stepcredit.envs import make
from stepcredit.envs.rewards import reward_name
from stepcredit.findings import REWARD_MEANINGS

GROUP_PRESETS = {"grpo": "GRPO", "grpo_process": "process GRPO"}


def credit_rows(run_dir: Path) -> list[CreditRow]:
    """Return the most telling trajectory of a run's last saved rollout under each estimator.

    Group estimators are computed from the recorded rewards under each of the three set-ups. A
    critic's values hold for the set-up that it learned from, so its recorded advantages are shown.
    """
    config = RunConfig.model_validate(yaml.safe_load((run_dir / "config.yaml").read_text()))
    groups = _groups(load_trajectories(_last_file(run_dir)))
    group = max(groups, key=_variety)
    reward = reward_name(config.env.reward)
    chosen = _member(group)
    tokens = _tokens(live(group)[chosen], config)
    rows = []
    for placement, meaning in REWARD_MEANINGS.items():
        paid = Group(group.group_id, tuple(_repaid(t, placement) for t in live(group)))
        for preset, name in GROUP_PRESETS.items():
            advantages = build(preset, {}).advantage(pack([paid], pad_id=0)).advantages[chosen]
            label = f"{name}, {placement}: {meaning}"
            rows.append(_row(label, tokens, paid.trajectories[chosen], advantages))
    trained = live(group)[chosen]
    if trained.advantages is not None and trained.values is not None:
        label = f"{config.algo.preset} with its critic, as trained: {REWARD_MEANINGS[reward]}"
        row = _row(label, tokens, trained, torch.as_tensor(trained.advantages))
        rows.append(replace(row, values=trained.values.tolist()))
    return rows


def _last_file(run_dir: Path) -> Path:
    files = sorted((run_dir / "trajectories").glob("step-*.parquet"))
    if not files:
        raise ValueError(f"{run_dir}: no trajectories saved; set train.trajectories_every")
    return files[-1]


def _groups(trajectories: Sequence[Trajectory]) -> list[Group]:
    found: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        found.setdefault(trajectory.group_id, []).append(trajectory)
    return [Group(name, tuple(members)) for name, members in found.items()]


def _variety(group: Group) -> float:
    """How much the earned rewards of a group differ: a flat group shows nothing."""
    totals = [float(t.env_rewards.sum()) for t in live(group)]
    return float(np.std(totals)) if len(totals) > 1 else -1.0


def _member(group: Group) -> int:
    """The member nearest to the group's median: right in some steps, wrong in others."""
    totals = np.array([t.env_rewards.sum() for t in live(group)])
    return int(np.argmin(np.abs(totals - np.median(totals))))


def _repaid(trajectory: Trajectory, placement: str) -> Trajectory:
    """The trajectory with its recorded rewards paid under another set-up."""
    if placement == "dense":
        return replace(trajectory, rewards=trajectory.env_rewards)
    rewards = np.zeros_like(trajectory.env_rewards)
    (ends,) = np.nonzero(trajectory.step_end)
    rewards[ends[-1]] = trajectory.reward_components[placement]
    return replace(trajectory, rewards=rewards)


def _row(
    label: str, tokens: list[str], trajectory: Trajectory, advantages: torch.Tensor
) -> CreditRow:
    length = len(tokens)
    mask = trajectory.action_mask.tolist()
    scores = advantages[:length].tolist()
    return CreditRow(
        label=label,
        tokens=tokens,
        action_mask=mask,
        rewards=trajectory.rewards.tolist(),
        advantages=[score if mine else None for score, mine in zip(scores, mask, strict=True)],
    )


def _tokens(trajectory: Trajectory, config: RunConfig) -> list[str]:
    env = make(config.env.id, **config.env.further)
    alphabet: str = env.unwrapped.alphabet  # type: ignore[attr-defined]  # tiny models need one
    tokenizer: PreTrainedTokenizerBase = build_char_tokenizer(alphabet)
    env.close()
    return [str(tokenizer.decode([int(i)])) for i in trajectory.token_ids]
