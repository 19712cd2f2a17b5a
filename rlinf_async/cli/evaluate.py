"""`python -m rlinf_async eval CHECKPOINT [options]`."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import orjson

from rlinf_async.cli import exits
from rlinf_async.cli.describe import package_versions
from rlinf_async.cli.display import choose
from rlinf_async.cli.ending import exit_code, tell_failure
from rlinf_async.cli.report import root_cause
from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution import logs
from rlinf_async.execution.checkpoint_evaluation import (
    Subject,
    evaluate_checkpoint,
    find_subject,
)
from rlinf_async.execution.evaluation import plan_of
from rlinf_async.execution.options import EngineOptions, parse_cores
from rlinf_async.execution.records import Episode
from rlinf_async.execution.run import Run
from rlinf_async.execution.run_folder import RunFolder
from rlinf_async.execution.scores import EvaluationReport, Rate
from rlinf_async.recording.video import check_video_installed

log = logs.get_logger()

PROGRESS_EVERY_S = 2.0
SHOWN_EPISODES = 20


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What `eval` does."""

    episodes: int = 10
    """Episodes to score: always the first so many of the seed's work list."""
    seed: int = 0
    """Of the episodes' own seeds, which are never those of training."""
    slots: int | None = None
    """Episodes at a time, over all worker processes. None: 16. Changes no score."""
    sampled: bool = False
    """Sample actions; else the mode of the distribution acts."""
    merged: bool = False
    """One policy call for all slots of a worker, for large networks. The last bits of what an
    episode scores then depend on --slots and --hosts."""
    video: bool = False
    """Write one MP4 per episode."""
    record: Path | None = None
    """Folder of a new recording of every step (rlinf_async.recording)."""
    env: str | None = None
    """Environment id. None: the one that the policy was trained in."""
    json: Path | None = None
    """Where the record goes too, besides evaluation.json in the run's folder; - prints it."""
    run_dir: Path | None = None
    """Folder of this evaluation, new or empty. None: runs/eval-DATE-TIME."""
    devices: str = ""
    """Cores to use, such as 0-3,6. Empty: all that this process may use."""
    hosts: int | None = None
    """Worker processes. None: one for each core."""
    start_timeout_s: float = 300.0
    """A worker that is not built in this time is taken for stuck."""
    reply_timeout_s: float = 600.0
    """A worker that does not answer for so long is taken for stuck."""
    env_timeout_s: float = 60.0
    """A step or reset of an environment may take so long, or 20 times the slowest so far."""

    def __post_init__(self) -> None:
        for name in ("episodes", "slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"--{name}", "too small", expected="at least 1", got=value)


def command(arguments: Sequence[str]) -> int:
    """Read the options, evaluate, tell; return the exit code."""
    given, options = _parse(arguments)
    started = datetime.now().astimezone()
    if options.video:
        check_video_installed("eval --video")
    engine = EngineOptions(
        seed=options.seed,
        devices=options.devices,
        hosts=options.hosts,
        run_dir=options.run_dir,
        start_timeout_s=options.start_timeout_s,
        reply_timeout_s=options.reply_timeout_s,
        env_timeout_s=options.env_timeout_s,
        progress="none",
    )
    parse_cores(engine.devices, os.sched_getaffinity(0))
    subject = find_subject(given, options.env)
    folder = RunFolder.create(options.run_dir, script=Path("eval"), started=started)
    folder.describe(_description(subject, arguments, started))
    logs.configure("controller", folder.logs)
    logs.bind(run=folder.path.name)
    return _execute(subject, options, engine, folder)


def _execute(
    subject: Subject, options: EvalOptions, engine: EngineOptions, folder: RunFolder
) -> int:
    import rlinf_async.workers  # noqa: F401 - registers who plays which role
    from rlinf_async.execution.session import execute

    log.info("evaluation_started", checkpoint=str(subject.checkpoint), env=subject.name)
    told: list[EvaluationReport] = []
    try:
        main = functools.partial(_main, subject=subject, options=options, told=told)
        execute(main, None, engine, folder, choose(engine.progress))
    except BaseException as error:
        code = exit_code(error)
        log.error("evaluation_ended", exit_code=code, error=repr(root_cause(error)[0]))
        tell_failure(error, code, folder, subject.script or Path("eval"))
        return code
    log.info("evaluation_ended", exit_code=exits.OK)
    _finish(subject, told[0], options, folder)
    return exits.OK


async def _main(
    run: Run, config: Any, *, subject: Subject, options: EvalOptions, told: list[EvaluationReport]
) -> None:
    plan = plan_of(
        "eval",
        episodes=options.episodes,
        seed=options.seed,
        sampled=options.sampled,
        merged=options.merged,
        record=options.record,
        videos=run.folder.path / "videos" if options.video else None,
    )
    progress = _Progress(options.episodes)
    told.append(
        await evaluate_checkpoint(run, subject, plan, slots=options.slots, heard=progress.heard)
    )


class _Progress:
    """One line on the terminal every few seconds."""

    def __init__(self, episodes: int) -> None:
        self._episodes, self._ended, self._env_steps = episodes, 0, 0
        self._began_s = self._told_s = time.monotonic()

    def heard(self, ended: list[Episode], env_steps: int) -> None:
        """Count, and tell if it is time."""
        self._ended += len(ended)
        self._env_steps += env_steps
        now_s = time.monotonic()
        if now_s - self._told_s >= PROGRESS_EVERY_S:
            self._told_s = now_s
            print(
                f"[{now_s - self._began_s:.0f} s] {self._ended} of {self._episodes} episodes, "
                f"{self._env_steps:,} steps",
                file=sys.stderr,
                flush=True,
            )


def _finish(
    subject: Subject, report: EvaluationReport, options: EvalOptions, folder: RunFolder
) -> None:
    record = {"checkpoint": str(subject.checkpoint), **report.to_json()}
    written = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    path = folder.path / "evaluation.json"
    path.write_bytes(written)
    if options.json == Path("-"):
        print(written.decode(), end="")
        return
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_bytes(written)
    print("\n".join(_summary(report)))
    print(f"record:       {options.json or path}")
    if options.video:
        print(f"videos:       {folder.path / 'videos'}")
    if options.record is not None:
        print(f"episodes:     {options.record}")


def _summary(report: EvaluationReport) -> list[str]:
    actions = "sampled" if report.sampled else "deterministic"
    lines = [
        f"{report.env}, version {report.version}, {actions} actions, "
        f"{len(report.episodes)} episodes of seed {report.seed}"
    ]
    for episode in report.episodes[:SHOWN_EPISODES]:
        success = "" if episode.success_once is None else f"  success {episode.success_once}"
        lines.append(
            f"  {episode.number:4d}  return {episode.episode_return:10.2f}"
            f"  length {episode.length:5d}{success}"
        )
    if len(report.episodes) > SHOWN_EPISODES:
        lines.append(f"  ... and {len(report.episodes) - SHOWN_EPISODES} more")
    for name, spread in (("return", report.returns), ("length", report.lengths)):
        between = ""
        if spread.interval_95 is not None:
            between = f", 95 % interval {spread.interval_95[0]:.2f} to {spread.interval_95[1]:.2f}"
        lines.append(
            f"{name}:       mean {spread.mean:.2f}, std {spread.std:.2f}, "
            f"min {spread.min:.2f}, max {spread.max:.2f}{between}"
        )
    for name in ("success_once", "success_at_end"):
        rate: Rate | None = getattr(report, name)
        if rate is not None:
            low, high = rate.interval_95
            lines.append(
                f"{name}: {rate.count} of {len(report.episodes)}, "
                f"{100 * rate.rate:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})"
            )
    return lines


def _parse(arguments: Sequence[str]) -> tuple[Path, EvalOptions]:
    import tyro

    if arguments and not arguments[0].startswith("-"):
        given, rest = arguments[0], list(arguments[1:])
    elif any(word in ("-h", "--help") for word in arguments):
        given, rest = "CHECKPOINT", ["--help"]
    else:
        raise BadInput(
            "eval", "no checkpoint", expected="eval CHECKPOINT [options]", fix="see eval --help"
        )
    options, unknown = tyro.cli(
        Annotated[EvalOptions, tyro.conf.arg(name="")],
        prog=f"python -m rlinf_async eval {given}",
        description=f"Score a checkpoint, or the one in a run's folder.\n\n{exits.HELP}",
        args=rest,
        return_unknown_args=True,
    )
    if unknown:
        name = unknown[0].split("=")[0]
        known = [f"--{field.replace('_', '-')}" for field in EvalOptions.__dataclass_fields__]
        raise BadInput("eval", f"unknown option {name}", fix=nearest(name, known))
    return Path(given), options


def _description(subject: Subject, arguments: Sequence[str], started: datetime) -> dict[str, Any]:
    from rlinf_async.hardware.devices import machine_summary

    return {
        "command": ["python", "-m", "rlinf_async", "eval", *arguments],
        "folder": os.getcwd(),
        "started": started.isoformat(timespec="seconds"),
        "checkpoint": str(subject.checkpoint),
        "env": subject.name,
        "versions": package_versions(),
        "machine": machine_summary(),
    }
