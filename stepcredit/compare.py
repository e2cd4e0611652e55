"""`stepcredit compare`: measure the cost, run the study on all cores, write its report."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from json import loads
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from stepcredit.claims import ClaimVerdict, judge
from stepcredit.config import Layered, UserError, content_hash, dump
from stepcredit.cost import (
    Cost,
    Kind,
    biggest_cell,
    estimate,
    probe_config,
    probed_cost,
    recorded_cost,
    warm_key,
)
from stepcredit.credit_choice import CreditRows, credit_part
from stepcredit.credit_page import CreditRow
from stepcredit.folders import need_place, need_writable, only_one
from stepcredit.plan import RunSpec, expand, tuning_runs
from stepcredit.report import Measured, write_report
from stepcredit.results import (
    Result,
    is_finished,
    is_whole,
    read_result,
    write_curves,
    write_results,
)
from stepcredit.study import Cell, Changes, Study, load_study
from stepcredit.training import build_config, run_one
from stepcredit.workers import Job, RunOne, WorkerPool

Chosen = dict[tuple[str, Cell, str], Changes]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What a study needs of training, so that it can be run on anything that trains."""

    build_config: Callable[[Layered], dict[str, Any]]
    run_one: RunOne
    credit_rows: CreditRows


def training_runner() -> Runner:
    """The real thing: `stepcredit.algos.train`."""

    def credit_rows(folder: Path) -> list[CreditRow]:
        from stepcredit.credit import credit_rows as rows_of

        return rows_of(folder)

    return Runner(build_config=build_config, run_one=run_one, credit_rows=credit_rows)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A finished study: where its report lies and what it found."""

    out: Path
    num_runs: int
    failed: list[Result]
    claims: list[ClaimVerdict]


def compare(
    study_path: Path,
    out: Path,
    runner: Runner,
    console: Console,
    *,
    overrides: Sequence[str] = (),
    num_workers: int,
    over_budget: bool = False,
) -> Comparison:
    """Run every run of the study that is not finished yet and write its report into `out`.

    Raises:
        UserError: the study is malformed, its measured cost is above the declared budget, or
            another comparison is working in `out`.
        KeyboardInterrupt: after all workers have stopped; finished runs are kept.
    """
    _need_report_extra()
    study = load_study(study_path, overrides)
    # what needs no torch comes first: a slip in a name must not wait for it
    _need_own_folder(out)
    for panel in study.file.panels.values():
        judge(panel, [])  # a claim that names nothing must not surface after the runs
    specs, trials = expand(study, runner.build_config), tuning_runs(study, runner.build_config)
    need_writable(out)
    log = out / "workers.log"
    with only_one(out, "comparison"), WorkerPool(num_workers, runner.run_one, log) as pool:
        dump(study.source, out / "study.yaml")
        costs = _measure_costs(specs, out, pool, console)
        _announce(study, [*trials, *specs], costs, out, num_workers, console, over_budget)
        _run_missing(trials, costs, out, pool, console, "tuning")
        tuned = _results(study, trials, out)
        chosen = _choose(tuned)
        specs = expand(study, runner.build_config, chosen)
        _run_missing(specs, costs, out, pool, console, "runs")
    results = _results(study, specs, out)
    write_results([*tuned, *results], out / "results.parquet")
    write_curves(results, out / "curves.parquet")
    credit_html, credit_run, no_credit = credit_part(results, runner.credit_rows)
    wall_s, cpu_s = _spent([*tuned, *results])
    measured = Measured(
        study=study,
        results=results,
        tuning=tuned,
        chosen=chosen,
        wall_s=wall_s,
        cpu_s=cpu_s,
        num_workers=num_workers,
        credit_html=credit_html,
        credit_run=credit_run,
        no_credit=no_credit,
        command=" ".join(["stepcredit compare", str(study_path), *overrides]),
    )
    claims = write_report(measured, out)
    failed = [r for r in [*tuned, *results] if not r.ok]
    return Comparison(out=out, num_runs=len(results), failed=failed, claims=claims)


def _need_report_extra() -> None:
    """What the report is drawn with must be there before the runs, not missed after them."""
    for package in ("matplotlib", "scipy"):
        if find_spec(package) is None:
            raise UserError(
                f"{package} is not installed; the report needs it: pip install 'stepcredit[report]'"
            )


def _need_own_folder(out: Path) -> None:
    if (out / "config.yaml").exists() and not (out / "study.yaml").exists():
        raise UserError(f"{out}: holds a run of `stepcredit train`; pass another folder as --out")
    need_place(out)


def _measure_costs(
    specs: Sequence[RunSpec], out: Path, pool: WorkerPool, console: Console
) -> dict[Kind, Cost]:
    """The cost of each panel's arms: of finished runs where there are any, else of a probe."""
    costs: dict[Kind, Cost] = {}
    probes: dict[Kind, tuple[Job, RunSpec]] = {}
    for kind in dict.fromkeys((spec.panel, spec.arm) for spec in specs):
        mine = [spec for spec in specs if (spec.panel, spec.arm) == kind]
        finished = [recorded_cost(out / spec.name) for spec in mine if is_finished(spec, out)]
        if finished:
            costs[kind] = max(finished, key=lambda cost: cost.train_cpu_s)
            continue
        cell = biggest_cell([spec.cell for spec in mine])
        spec = next(spec for spec in mine if spec.cell == cell)
        short = probe_config(spec.config)
        digest = content_hash(short)
        folder = out / "probes" / f"{spec.panel}_{spec.arm}_{digest}"
        probes[kind] = (Job(short, folder, digest), spec)
    if probes:
        with console.status(f"timing a few steps of {len(probes)} kinds of run"):
            _run_probes(_warm_starts_apart(list(probes.values())), pool)
    for kind, (job, spec) in probes.items():
        costs[kind] = probed_cost(job.folder, spec.config)
    return costs


def _warm_starts_apart(probes: Sequence[tuple[Job, RunSpec]]) -> list[Job]:
    """Jobs in an order in which two workers do not train the same warm start at once."""
    first = {warm_key(spec): job for job, spec in reversed(probes)}
    new = [job for job, spec in probes if first[warm_key(spec)] is job]
    return [*new, *(job for job, _ in probes if job not in new)]


def _run_probes(jobs: Sequence[Job], pool: WorkerPool) -> None:
    todo = [job for job in jobs if not is_whole(job.folder, job.config_hash)]
    for job in todo:
        shutil.rmtree(job.folder, ignore_errors=True)
    for event in pool.run(todo):
        if event.kind == "failed":
            raise UserError(
                f"the first steps of {event.job.folder.name} failed: {event.reason} "
                f"(traceback in {event.job.folder / 'error.txt'})"
            )


def _announce(
    study: Study,
    specs: Sequence[RunSpec],
    costs: Mapping[Kind, Cost],
    out: Path,
    num_workers: int,
    console: Console,
    over_budget: bool,
) -> None:
    """Say what the study will cost; refuse above the declared budget."""
    todo = [spec for spec in specs if not is_finished(spec, out)]
    if not todo:
        console.print(f"all {len(specs)} runs are there: the report is written anew")
        return
    cost = estimate(todo, costs, num_workers)
    finished = len(specs) - len(todo)
    console.print(
        cost.sentence(num_workers) + (f" ({finished} finished before)" if finished else "")
    )
    allowed = study.file.budget.cpu_hours
    if cost.cpu_s > allowed * 3600 and not over_budget:
        need = ceil(cost.cpu_s / 36) / 100
        raise UserError(
            f"budget.cpu_hours={allowed:g}: the runs need {need:.2f} CPU-hours; pass fewer seeds "
            f"or sampled tokens, budget.cpu_hours={need:.2f}, or --yes"
        )


def _run_missing(
    specs: Sequence[RunSpec],
    costs: Mapping[Kind, Cost],
    out: Path,
    pool: WorkerPool,
    console: Console,
    what: str,
) -> None:
    """Run what is not finished, longest first; runs that fail are reported and left behind."""
    todo = [spec for spec in specs if not is_finished(spec, out)]
    if not todo:
        return
    length = {id(spec): costs[spec.panel, spec.arm].train_wall_s for spec in todo}
    todo.sort(key=lambda spec: -length[id(spec)])
    jobs = {}
    for spec in todo:
        shutil.rmtree(out / spec.name, ignore_errors=True)
        jobs[out / spec.name] = spec
    left = {folder: max(length[id(spec)], 1e-3) for folder, spec in jobs.items()}
    with _bar(console) as bar:
        total = sum(left.values())
        task = bar.add_task(what, total=total, done=0, runs=len(todo))
        done = 0
        for event in pool.run([Job(s.config, folder, s.config_hash) for folder, s in jobs.items()]):
            spec = jobs[event.job.folder]
            share = min(1.0, event.sampled_tokens / spec.config["train"]["sampled_tokens"])
            whole = length[id(spec)]
            remaining = whole * (1 - share) if event.kind == "step" else 0.0
            left[event.job.folder] = remaining
            if event.kind != "step":
                done += 1
            if event.kind == "failed":
                bar.console.print(f"[red]failed[/] {spec.name}: {event.reason}", highlight=False)
            bar.update(task, completed=total - sum(left.values()), done=done)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[runs]} runs"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def _results(study: Study, specs: Sequence[RunSpec], out: Path) -> list[Result]:
    return [read_result(spec, out, study.file.panels[spec.panel].metric) for spec in specs]


def _choose(tuned: Sequence[Result]) -> Chosen:
    """For each arm of each cell the trial with the best mean AUC; the first of equals."""
    scores: dict[tuple[str, Cell, str], dict[tuple[tuple[str, Any], ...], list[float]]] = {}
    for result in tuned:
        trials = scores.setdefault(result.spec.group, {})
        if result.auc is not None:
            trials.setdefault(result.spec.trial, []).append(result.auc)
    return {
        group: dict(max(trials.items(), key=lambda item: fmean(item[1]))[0])
        for group, trials in scores.items()
        if trials
    }


def _spent(results: Sequence[Result]) -> tuple[float, float]:
    done = [loads((r.folder / "done.json").read_text()) for r in results if r.ok]
    return sum(d["wall_s"] for d in done), sum(d["cpu_s"] for d in done)
