"""One run, top to bottom: rollout, batch, advantage, loss, step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stepcredit.agents.branch import Branch, continuation_returns
from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.episode import TaskSpec
from stepcredit.agents.rollout import Limits, rollout
from stepcredit.agents.trajectory import Group, save_trajectories
from stepcredit.algos import checkpoint, metrics
from stepcredit.algos.algorithm import MonteCarlo
from stepcredit.algos.baseline import branch_points, sampled_values
from stepcredit.algos.batch import Batch, live, pack
from stepcredit.algos.credit import Credit, whiten
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.fit import check_credit, check_env_fit, check_fit
from stepcredit.algos.groups import select
from stepcredit.algos.kl import adapted
from stepcredit.algos.presets import build
from stepcredit.algos.run_folder import Clock, Log, OnStep, open_folder, summarise
from stepcredit.algos.settings import RunConfig
from stepcredit.algos.start import Run, start
from stepcredit.algos.update import (
    kl_in_reward,
    update_critic,
    update_policy,
    with_reference,
    with_truncation,
    with_values,
)
from stepcredit.envs.core import derive_seed


def train(
    config: RunConfig,
    out_dir: Path,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train one run into `out_dir` and return its summary.

    Leaves config.yaml, metrics.jsonl, trajectories/, checkpoints/ and, at the end, summary.json.
    With `resume` a folder of the same config goes on after its last checkpoint. Raises
    TrainingError for settings that do not fit together, for a folder that holds another run, and
    when a gradient is no longer finite.
    """
    algorithm = build(config.algo.preset, config.algo.further)
    check_fit(config, algorithm)
    check_env_fit(config, algorithm)
    open_folder(config, out_dir, resume)
    run = start(config, algorithm, out_dir)
    try:
        return _loop(run, out_dir, on_step)
    finally:
        run.envs.close()


def _loop(run: Run, out_dir: Path, on_step: OnStep | None) -> dict[str, Any]:
    """Rollout, learn, evaluate, record, until the budget is spent."""
    config, algorithm = run.config, run.algorithm
    step, sampled_tokens = run.counters["step"], run.counters["sampled_tokens"]
    clock = Clock(run.counters["wall_s"], run.counters["cpu_s"])
    log = Log(out_dir / "metrics.jsonl", keep_until=step, on_step=on_step)
    if log.last is None:
        log.write({"step": 0, "sampled_tokens": 0, **clock.read(), **evaluate(run, 0)})

    while not _finished(config, step, sampled_tokens):
        step += 1
        groups, sampled = sample(run, step)
        row = metrics.rollout_metrics(groups, algorithm)
        chosen = select(groups, algorithm)[: config.train.tasks_per_step]
        if chosen:
            learned, found = learn(run, chosen, step)
            groups, row = merged(groups, learned), row | found
        _refresh_reference(run, step)
        sampled_tokens += sampled + int(row.get("montecarlo/policy_tokens", 0))
        row = {"step": step, "sampled_tokens": sampled_tokens} | row
        last = _finished(config, step, sampled_tokens)
        if last or _due(step, config.train.eval_every):
            row |= evaluate(run, step)
        if last or _due(step, config.train.trajectories_every):
            everyone = [t for g in groups for t in g.trajectories]
            save_trajectories(out_dir / f"trajectories/step-{step:06d}.parquet", everyone)
        log.write(row | clock.read())
        if last or _due(step, config.train.save_every):
            run.counters.update(step=step, sampled_tokens=sampled_tokens, **clock.read())
            checkpoint.save(out_dir / "checkpoints", run.learner, run.counters)

    return summarise(out_dir, log)


def sample(run: Run, step: int) -> tuple[list[Group], int]:
    """Roll out G samples of each of the step's tasks; return them and the tokens they took.

    Where flat groups are sampled anew (arXiv:2503.14476, section 3.2), other tasks follow until
    there are enough to train on, or `max_num_gen_batches` rollouts were made.
    """
    train, algorithm = run.config.train, run.algorithm
    run.engine.update_weights(step - 1)
    rounds = algorithm.max_num_gen_batches if algorithm.zero_variance == "resample" else 1
    groups: list[Group] = []
    tokens = 0
    for number in range(rounds):
        kind = f"train-{number}" if number else "train"
        first = (step - 1) * train.tasks_per_step
        tasks = [
            TaskSpec(
                group_id=f"{step}-{number * train.tasks_per_step + i}",
                task=_task(train.seed, kind, first + i),
            )
            for i in range(train.tasks_per_step)
        ]
        more, stats = _rollout(run, run.engine, tasks, run.config.algo.num_generations)
        groups += more
        tokens += int(stats["policy_tokens"])
        if len(select(groups, algorithm)) >= train.tasks_per_step:
            break
    return groups, tokens


def evaluate(run: Run, step: int) -> dict[str, float]:
    """Play the evaluation split once, one sample a task: the same tasks at every step."""
    train = run.config.train
    run.plain_engine.update_weights(step)
    tasks = [
        TaskSpec(group_id=f"eval-{i}", task=_task(train.seed, "eval", i), split="eval")
        for i in range(train.eval_episodes)
    ]
    groups, _ = _rollout(run, run.plain_engine, tasks, 1)
    everyone = [t for g in groups for t in g.trajectories]
    found = metrics.results(everyone)
    if not found:
        error = groups[0].trajectories[0].error
        raise TrainingError(
            f"none of {train.eval_episodes} evaluation episodes could be scored: {error}"
        )
    found |= metrics.statuses(everyone)
    return {f"eval/{name}": value for name, value in found.items()}


def learn(run: Run, groups: list[Group], step: int) -> tuple[list[Group], dict[str, float]]:
    """Update policy and critic; return the groups with their credit, and metrics."""
    algorithm, algo, train = run.algorithm, run.config.algo, run.config.train
    temperature, micro = run.config.rollout.temperature, train.micro_batch_size
    beta = run.counters["beta"]
    batch = pack(groups, pad_id=run.renderer.pad_id)
    batch = with_truncation(batch, algo.truncation, algo.truncation_penalty)
    if run.reference is not None:
        batch = with_reference(batch, run.reference, temperature, micro)
    batch, found = _valued(run, batch, groups, step)
    kl_is_paid = algorithm.kl is not None and algorithm.kl.place == "reward"
    paid = kl_in_reward(batch, beta) if kl_is_paid else batch
    credit = algorithm.advantage(paid)
    check_credit(credit, batch, algorithm)
    used = whiten(credit.advantages, batch.loss_mask, size=paid.largest())
    batch = replace(batch, advantages=used if algorithm.whiten_advantages else credit.advantages)
    shuffle = torch.Generator().manual_seed(derive_seed(train.seed, "shuffle", step))
    alone = algorithm.critic.pretrain_steps if algorithm.critic else 0
    _set_learning_rates(run, step, alone)
    if step > alone:
        found |= update_policy(
            run.learner.policy,
            run.learner.optimizer,
            batch,
            algorithm,
            beta=beta,
            temperature=temperature,
            micro_batch_size=micro,
            max_grad_norm=algo.max_grad_norm,
            shuffle=shuffle,
        )
    found |= metrics.credit_metrics(batch, credit)
    if algorithm.critic is not None and run.learner.critic is not None:
        assert run.learner.critic_optimizer is not None
        found |= update_critic(
            run.learner.critic,
            run.learner.critic_optimizer,
            batch,
            credit,
            algorithm.critic,
            micro_batch_size=micro,
            max_grad_norm=algo.max_grad_norm,
            shuffle=shuffle,
        )
    return with_credit(groups, batch, credit), found | _adapt_kl(run, batch)


def _valued(
    run: Run, batch: Batch, groups: Sequence[Group], step: int
) -> tuple[Batch, dict[str, float]]:
    """Read the values from the critic, or from fresh continuations of every step."""
    if run.learner.critic is not None:
        bootstrap = run.config.algo.truncation == "bootstrap"
        micro = run.config.train.micro_batch_size
        return with_values(batch, run.learner.critic, micro, bootstrap=bootstrap), {}
    if not isinstance(run.algorithm.baseline, MonteCarlo):
        return batch, {}
    rows = [t for group in groups for t in live(group)]
    points = branch_points(batch)
    run.plain_engine.update_weights(step - 1)
    returns, stats = continuation_returns(
        run.plain_engine,
        run.renderer,
        run.envs,
        [Branch(rows[row], position) for row, position in points],
        num_continuations=run.algorithm.baseline.num_continuations,
        run_seed=run.config.train.seed,
        limits=_limits(run),
    )
    tokens = {"montecarlo/policy_tokens": stats["policy_tokens"]}
    return sampled_values(batch, points, returns), tokens


def _adapt_kl(run: Run, batch: Batch) -> dict[str, float]:
    """Move the KL coefficient towards its target; return what the KL was."""
    kl = run.algorithm.kl
    if kl is None or run.reference is None:
        return {}
    found = metrics.kl_metrics(batch) | {"objective/kl_coef": run.counters["beta"]}
    if kl.target is not None:
        run.counters["beta"] = adapted(
            run.counters["beta"], found["objective/kl"], target=kl.target
        )
    return found


def _refresh_reference(run: Run, step: int) -> None:
    """Make the policy its own reference where that is due, whatever was trained on."""
    every = run.algorithm.kl.refresh_steps if run.algorithm.kl else 0
    if run.reference is not None and every and step % every == 0:
        run.reference.load_state_dict(run.learner.policy.state_dict())


def _set_learning_rates(run: Run, step: int, alone: int) -> None:
    """Let each network's rate rise over its own first steps; the critic has `alone` to itself."""
    over = max(1, run.config.algo.warmup_steps)
    for group in run.learner.optimizer.param_groups:
        group["lr"] = min(1.0, max(0, step - alone) / over) * run.config.algo.learning_rate
    if run.algorithm.critic is not None and run.learner.critic_optimizer is not None:
        for group in run.learner.critic_optimizer.param_groups:
            group["lr"] = min(1.0, step / over) * run.algorithm.critic.learning_rate


def _rollout(
    run: Run, engine: TransformersEngine, tasks: Sequence[TaskSpec], num_generations: int
) -> tuple[list[Group], dict[str, float]]:
    return rollout(
        engine,
        run.renderer,
        run.envs,
        tasks,
        num_generations=num_generations,
        run_seed=run.config.train.seed,
        env_id=run.config.env.id,
        limits=_limits(run),
    )


def _limits(run: Run) -> Limits:
    settings = run.config.rollout
    return Limits(
        max_turn_tokens=settings.max_turn_tokens,
        max_episode_tokens=settings.max_episode_tokens,
        max_turns=settings.max_turns,
        max_wall_s=settings.max_wall_s,
        env_timeout_s=settings.env_timeout_s,
        max_error_share=settings.max_error_share,
    )


def with_credit(groups: Sequence[Group], batch: Batch, credit: Credit) -> list[Group]:
    """Write each packed row's advantages and values onto its trajectory, for the record."""
    row = 0
    out = []
    for group in groups:
        trained = live(group)
        members = []
        for trajectory in group.trajectories:
            if any(trajectory is each for each in trained):
                length = len(trajectory.token_ids)
                values = None if batch.values is None else batch.values[row, :length].numpy()
                trajectory = replace(
                    trajectory, advantages=credit.advantages[row, :length].numpy(), values=values
                )
                row += 1
            members.append(trajectory)
        out.append(Group(group.group_id, tuple(members)))
    return out


def merged(groups: Sequence[Group], learned: Sequence[Group]) -> list[Group]:
    """Return all groups, those that were trained on with their credit."""
    by_id = {g.group_id: g for g in learned}
    return [by_id.get(g.group_id, g) for g in groups]


def _task(seed: int, kind: str, number: int) -> int:
    return derive_seed(kind, seed, number)


def _finished(config: RunConfig, step: int, sampled_tokens: int) -> bool:
    budget = config.train.sampled_tokens
    return step >= config.train.steps or (budget is not None and sampled_tokens >= budget)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
