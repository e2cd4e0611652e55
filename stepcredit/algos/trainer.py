"""One run, top to bottom: rollout, batch, advantage, loss, step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.episode import TaskSpec
from stepcredit.agents.model import value_model
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool, Limits, rollout
from stepcredit.agents.sft import SFT, warm_start
from stepcredit.agents.trajectory import Group, save_trajectories
from stepcredit.algos import checkpoint, metrics
from stepcredit.algos.advantages import Credit, whiten
from stepcredit.algos.batch import Batch, kept_groups, pack
from stepcredit.algos.checkpoint import Learner
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.presets import Algorithm, build
from stepcredit.algos.run_folder import Clock, Log, OnStep, open_folder, summarise
from stepcredit.algos.settings import RunConfig
from stepcredit.algos.update import (
    kl_in_reward,
    update_critic,
    update_policy,
    with_reference,
    with_values,
)
from stepcredit.envs.core import derive_seed
from stepcredit.envs.registry import make


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
    open_folder(config, out_dir, resume)
    run = _start(config, algorithm, out_dir)
    try:
        return _loop(run, out_dir, on_step)
    finally:
        run.envs.close()


def _loop(run: "Run", out_dir: Path, on_step: OnStep | None) -> dict[str, Any]:
    """Rollout, learn, evaluate, record, until the budget is spent."""
    config, algorithm = run.config, run.algorithm
    step, sampled_tokens = run.counters["step"], run.counters["sampled_tokens"]
    clock = Clock(run.counters["wall_s"], run.counters["cpu_s"])
    log = Log(out_dir / "metrics.jsonl", keep_until=step, on_step=on_step)
    if log.last is None:
        log.write({"step": 0, "sampled_tokens": 0, **clock.read(), **run.evaluate(0)})

    while not _finished(config, step, sampled_tokens):
        step += 1
        groups, stats = run.sample(step)
        sampled_tokens += stats["policy_tokens"]
        row = {"step": step, "sampled_tokens": sampled_tokens}
        row |= metrics.rollout_metrics(groups, algorithm.min_members)
        if kept_groups(groups, algorithm.min_members):
            groups, learned = run.learn(groups, step)
            row |= learned
        last = _finished(config, step, sampled_tokens)
        if last or _due(step, config.train.eval_every):
            row |= run.evaluate(step)
        if last or _due(step, config.train.trajectories_every):
            everyone = [t for g in groups for t in g.trajectories]
            save_trajectories(out_dir / f"trajectories/step-{step:06d}.parquet", everyone)
        log.write(row | clock.read())
        if last or _due(step, config.train.save_every):
            counters = {"sampled_tokens": sampled_tokens, **clock.read()}
            checkpoint.save(out_dir / "checkpoints", step, run.learner, counters)

    return summarise(out_dir, log)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What a run holds: settings, networks, and the three things that it does with them."""

    config: RunConfig
    algorithm: Algorithm
    learner: Learner
    reference: nn.Module | None
    engine: TransformersEngine
    renderer: ChatRenderer
    envs: EnvPool
    counters: dict[str, Any]

    def sample(self, step: int) -> tuple[list[Group], dict[str, float]]:
        """Roll out G samples of each of the step's tasks with the current policy."""
        train = self.config.train
        self.engine.update_weights(step - 1)
        first = (step - 1) * train.tasks_per_step
        tasks = [
            TaskSpec(group_id=f"{step}-{i}", task=_task(train.seed, "train", first + i))
            for i in range(train.tasks_per_step)
        ]
        return self._rollout(tasks, self.config.algo.num_generations)

    def evaluate(self, step: int) -> dict[str, float]:
        """Play the evaluation split once, one sample a task: the same tasks at every step."""
        train = self.config.train
        self.engine.update_weights(step)
        tasks = [
            TaskSpec(group_id=f"eval-{i}", task=_task(train.seed, "eval", i), split="eval")
            for i in range(train.eval_episodes)
        ]
        groups, _ = self._rollout(tasks, 1)
        everyone = [t for g in groups for t in g.trajectories]
        found = metrics.results(everyone)
        if not found:
            error = groups[0].trajectories[0].error
            raise TrainingError(
                f"none of {train.eval_episodes} evaluation episodes could be scored: {error}"
            )
        found |= metrics.statuses(everyone)
        return {f"eval/{name}": value for name, value in found.items()}

    def learn(self, groups: list[Group], step: int) -> tuple[list[Group], dict[str, float]]:
        """Update policy and critic; return the groups with their credit, and metrics."""
        algorithm, train = self.algorithm, self.config.train
        temperature, micro = self.config.rollout.temperature, train.micro_batch_size
        batch = pack(groups, pad_id=self.renderer.pad_id, min_members=algorithm.min_members)
        if self.reference is not None:
            batch = with_reference(batch, self.reference, temperature, micro)
        if self.learner.critic is not None:
            batch = with_values(batch, self.learner.critic, micro)
        paid = kl_in_reward(batch, algorithm.beta) if self._kl_is_paid else batch
        credit = algorithm.advantage(paid)
        used = whitened(credit, batch) if algorithm.whiten_advantages else credit
        shuffle = torch.Generator().manual_seed(derive_seed(train.seed, "shuffle", step))
        self._set_learning_rates(min(1.0, step / max(1, self.config.algo.warmup_steps)))
        found = update_policy(
            self.learner.policy,
            self.learner.optimizer,
            batch,
            used,
            algorithm,
            temperature=temperature,
            micro_batch_size=micro,
            max_grad_norm=self.config.algo.max_grad_norm,
            shuffle=shuffle,
        )
        found |= metrics.credit_metrics(batch, credit)
        if algorithm.critic is not None and self.learner.critic is not None:
            assert self.learner.critic_optimizer is not None
            found |= update_critic(
                self.learner.critic,
                self.learner.critic_optimizer,
                batch,
                credit,
                algorithm.critic,
                micro_batch_size=micro,
                max_grad_norm=self.config.algo.max_grad_norm,
                shuffle=shuffle,
            )
        return with_credit(groups, batch, credit, algorithm.min_members), found

    def _set_learning_rates(self, share: float) -> None:
        for group in self.learner.optimizer.param_groups:
            group["lr"] = share * self.config.algo.learning_rate
        if self.algorithm.critic is not None and self.learner.critic_optimizer is not None:
            for group in self.learner.critic_optimizer.param_groups:
                group["lr"] = share * self.algorithm.critic.learning_rate

    @property
    def _kl_is_paid(self) -> bool:
        return self.reference is not None and self.algorithm.kl_in == "reward"

    def _rollout(
        self, tasks: Sequence[TaskSpec], num_generations: int
    ) -> tuple[list[Group], dict[str, float]]:
        settings = self.config.rollout
        return rollout(
            self.engine,
            self.renderer,
            self.envs,
            tasks,
            num_generations=num_generations,
            run_seed=self.config.train.seed,
            env_id=self.config.env.id,
            limits=Limits(
                max_turn_tokens=settings.max_turn_tokens,
                max_episode_tokens=settings.max_episode_tokens,
                max_turns=settings.max_turns,
                max_wall_s=settings.max_wall_s,
                env_timeout_s=settings.env_timeout_s,
                max_error_share=settings.max_error_share,
            ),
        )


def whitened(credit: Credit, batch: Batch) -> Credit:
    """Return the credit with its advantages centred and scaled over the policy tokens."""
    return replace(credit, advantages=whiten(credit.advantages, batch.action_mask))


def with_credit(
    groups: Sequence[Group], batch: Batch, credit: Credit, min_members: int
) -> list[Group]:
    """Write each packed row's advantages and values onto its trajectory, for the record."""
    row = 0
    out = []
    kept = {g.group_id for g in kept_groups(groups, min_members)}
    for group in groups:
        members = []
        for trajectory in group.trajectories:
            if group.group_id in kept and trajectory.live:
                length = len(trajectory.token_ids)
                values = None if batch.values is None else batch.values[row, :length].numpy()
                trajectory = replace(
                    trajectory, advantages=credit.advantages[row, :length].numpy(), values=values
                )
                row += 1
            members.append(trajectory)
        out.append(Group(group.group_id, tuple(members)))
    return out


def _start(config: RunConfig, algorithm: Algorithm, out_dir: Path) -> Run:
    torch.set_num_threads(1)
    env, seed = config.env, config.train.seed
    settings = config.model.sft
    start = partial(
        warm_start,
        env.id,
        env.further | settings.env,
        size=config.model.size,
        seed=seed,
        sft=SFT(**settings.model_dump(exclude={"env"})),
        max_episode_tokens=config.rollout.max_episode_tokens,
        env_timeout_s=config.rollout.env_timeout_s,
    )
    policy, tokenizer = start()
    reference = start()[0].requires_grad_(False) if algorithm.beta else None
    renderer = ChatRenderer(tokenizer)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.algo.learning_rate, weight_decay=0.0, fused=True
    )
    learner = Learner(policy=policy, optimizer=optimizer)
    if algorithm.critic is not None:
        critic = value_model(policy)
        critic_optimizer = torch.optim.AdamW(
            critic.parameters(), lr=algorithm.critic.learning_rate, weight_decay=0.0, fused=True
        )
        learner = replace(learner, critic=critic, critic_optimizer=critic_optimizer)
    counters = {"step": 0, "sampled_tokens": 0, "wall_s": 0.0, "cpu_s": 0.0}
    whole = checkpoint.latest(out_dir / "checkpoints")
    if whole is not None:
        counters = checkpoint.restore(whole, learner)
    return Run(
        config=config,
        algorithm=algorithm,
        learner=learner,
        reference=reference,
        engine=TransformersEngine(
            policy, stop_id=renderer.stop_id, temperature=config.rollout.temperature
        ),
        renderer=renderer,
        envs=EnvPool(partial(make, env.id, reward=env.reward, **env.further)),
        counters=counters,
    )


def _task(seed: int, kind: str, number: int) -> int:
    return derive_seed(kind, seed, number)


def check_fit(config: RunConfig, algorithm: Algorithm) -> None:
    """Raise TrainingError for settings that are right by themselves but not together."""
    group = config.algo.num_generations
    if group < algorithm.min_members:
        raise TrainingError(
            f"algo.num_generations={group}: {config.algo.preset} compares the samples of a task "
            f"and needs at least {algorithm.min_members}; pass algo.num_generations=8"
        )


def _finished(config: RunConfig, step: int, sampled_tokens: int) -> bool:
    budget = config.train.sampled_tokens
    return step >= config.train.steps or (budget is not None and sampled_tokens >= budget)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
