"""What is logged of one step: names follow TRL where it has one."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from stepcredit.agents.trajectory import Group, Trajectory
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch, live
from stepcredit.algos.credit import Credit, masked
from stepcredit.algos.groups import flat, kept_groups, select
from stepcredit.algos.kl import k1


def results(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return success, outcome and reward of live trajectories; nothing where none is live."""
    alive = [t for t in trajectories if t.live]
    if not alive:
        return {}
    out = {
        "success": _mean([float(bool(t.success)) for t in alive]),
        # An episode cut before it was graded has achieved nothing.
        "outcome": _mean([t.outcome or 0.0 for t in alive]),
        "reward": _mean([t.ret for t in alive]),
    }
    for name in sorted({name for t in alive for name in t.reward_components}):
        values = [t.reward_components[name] for t in alive if name in t.reward_components]
        out[f"rewards/{name}/mean"] = _mean(values)
    return out


def statuses(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Return how many episodes ended in which way, failed ones under `status/error`."""
    counts = Counter(t.stop_reason if t.live else "error" for t in trajectories)
    return {f"status/{name}": count for name, count in sorted(counts.items())}


def rollout_metrics(groups: Sequence[Group], algorithm: Algorithm) -> dict[str, float]:
    """Return what the sampled episodes look like, groups and failures counted."""
    everyone = [t for g in groups for t in g.trajectories]
    alive = [t for t in everyone if t.live]
    kept = kept_groups(groups, algorithm.min_members)
    out = results(everyone)
    out |= {f"rollout/{name}": n for name, n in statuses(everyone).items()}
    out["groups/sampled"] = len(groups)
    out["groups/dropped"] = len(groups) - len(kept)
    out["groups/filtered"] = len(kept) - len(select(groups, algorithm))
    out["samples/excluded"] = len(everyone) - sum(len(live(g)) for g in groups)
    several = [g for g in kept if len(live(g)) > 1]
    if several:
        out["frac_reward_zero_std"] = _mean([float(flat(g)) for g in several])
        out["reward_std"] = _mean(
            [float(np.std([t.ret for t in live(g)], ddof=1)) for g in several]
        )
    if alive:
        lengths = [int(t.action_mask.sum()) for t in alive]
        out["completions/mean_length"] = _mean(lengths)
        out["completions/max_length"] = max(lengths)
        clipped = [float(t.truncated or any(t.turn_cut)) for t in alive]
        out["completions/clipped_ratio"] = _mean(clipped)
        out |= _by_step(alive)
    return out


def credit_metrics(batch: Batch, credit: Credit) -> dict[str, float]:
    """Return the size of the advantages, before whitening, and how many tokens got any."""
    chosen = credit.advantages[batch.action_mask]
    return {
        "credit/frac_tokens_nonzero": float((chosen != 0).float().mean()),
        "credit/abs_mean": float(chosen.abs().mean()),
        **credit.found,
    }


def kl_metrics(batch: Batch) -> dict[str, float]:
    """Return the KL from the reference of the episodes as sampled, in nats per episode."""
    assert batch.ref_logprobs is not None
    of_tokens = masked(k1(batch.old_logprobs, batch.ref_logprobs), batch.action_mask)  # [B, T]
    return {"objective/kl": float(of_tokens.sum(1).mean())}


def _by_step(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    paid: dict[int, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for k, reward in enumerate(trajectory.rewards[trajectory.step_end]):
            paid[k].append(float(reward))
    return {f"reward/step/{k}/mean": _mean(values) for k, values in sorted(paid.items())}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
