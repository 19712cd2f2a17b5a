"""`python -m rlinf_async diagnose [RUN]`: what is wrong with a run, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinf_async.cli import exits
from rlinf_async.cli.ended import ended_run
from rlinf_async.cli.trace import capture_of
from rlinf_async.errors import BadInput, PeerTimeout
from rlinf_async.hardware.stacks import process_state, stacks_of
from rlinf_async.tracing.account import stages_of, wait_words
from rlinf_async.tracing.client import RunCard, find_run
from rlinf_async.tracing.devices import device_reports
from rlinf_async.tracing.diagnosis import Finding, diagnose
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.views.story import (
    credit_words,
    plan_words,
    plans_of,
    story,
    task_lines,
)

HELP = """\
usage: python -m rlinf_async diagnose [RUN]

Says what is wrong with a run: stuck (who waits for whom, since when, with stacks), slow (what
bounds it) or sick (not finite, late, growing). RUN is an id that `ps` shows, or a run folder; of a
run that failed the record of its last minute is read. Below stands where the last minute went.

options:
  --no-stacks  leave out the stacks of who is stuck
  -h, --help   this text

exit codes: 0 nothing is wrong, 1 something is, 2 wrong input"""

SECONDS = 60.0


def command(arguments: Sequence[str]) -> int:
    """Print the verdict; exit code 0 or 1."""
    if any(given in ("-h", "--help") for given in arguments):
        print(HELP)
        return exits.OK
    names = [given for given in arguments if given != "--no-stacks"]
    if len(names) > 1 or any(name.startswith("-") for name in names):
        raise BadInput("diagnose", f"unknown argument {names[-1]!r}", fix="see diagnose --help")
    run = names[0] if names else None
    with_stacks = "--no-stacks" not in arguments
    try:
        taken = capture_of(run, SECONDS)
    except PeerTimeout:
        return _tell_silent(find_run(run), with_stacks=with_stacks)
    except BadInput:
        if (over := ended_run(run)) is None:
            raise
        print(over)
        return exits.OK if over.is_well else exits.FAILED
    return _tell(taken, with_stacks=with_stacks)


def _tell_silent(card: RunCard, *, with_stacks: bool) -> int:
    """Of a controller that does not answer."""
    if process_state(card.pid) == "T":
        print(f"stuck: the controller (pid {card.pid}) is stopped; `kill -CONT {card.pid}`")
        return exits.FAILED
    print(f"stuck: the loop of the controller (pid {card.pid}) does not answer")
    if with_stacks:
        print(stacks_of(card.pid, card.run_dir / "logs" / "controller.err"))
    return exits.FAILED


def _tell(taken: Capture, *, with_stacks: bool) -> int:
    over = "failure" in taken.status
    hosts = {host["name"]: host["pid"] for host in taken.status.get("hosts", ()) if host["pid"]}
    states = {} if over else {pid: process_state(pid) for pid in hosts.values()}
    found = diagnose(taken, states)
    for each in found:
        print(each)
    if with_stacks and not over:
        _print_stacks(taken, found, hosts)
    if not found:
        print(_healthy(taken))
    _print_report(taken)
    return exits.FAILED if found else exits.OK


def _healthy(taken: Capture) -> str:
    status = taken.status["status"]
    told = f"healthy: {status['phase']}, iteration {status['iteration']} of {status['iterations']}"
    return f"{told}, {status['env_steps_per_s']:,.0f} steps/s" if status["iteration"] else told


def _print_report(taken: Capture) -> None:
    """The last minute in words: stages, devices, credits, plan."""
    print("\nits last minute:" if "failure" in taken.status else "\nthe last minute:")
    told = [story(taken), *wait_words(stages_of(taken, recent=True))]
    told += [str(device) for device in device_reports(taken)]
    told.append(credit_words(taken.status.get("credits", {})))
    told += [f"plan: {plan_words(plan)}" for plan in plans_of(taken)[-1:]]
    for line in filter(None, told):
        print(f"  {line}")


def _print_stacks(taken: Capture, found: Sequence[Finding], hosts: Mapping[str, int]) -> None:
    logs = Path(taken.run["run_dir"]) / "logs"
    for each in found:
        if each.kind == "stuck" and each.subject in hosts:
            print(f"\nstacks of {each.subject}:")
            print(stacks_of(hosts[each.subject], logs / f"{each.subject}.err"))
    if any(each.kind == "stuck" for each in found):
        print("\ncoroutines of the controller:")
        print("\n".join(f"  {line}" for line in task_lines(taken.status.get("tasks", []))))
