"""``ppwork ps`` and ``ppwork stop``: our own runs on this machine, listed and ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.processes import OwnRun, own_runs, stop
from ppwork.pulse import PulseState, read_pulse

out = Console()


def list_runs(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the runs that are going on this machine: folder, age, what each rank does, who launched it."""
    found = [_facts(run) for run in own_runs()]
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    if not found:
        out.print("no run is going")
        return
    folder, ranks = Column("run", overflow="fold"), Column("ranks", overflow="fold")
    table = Table(folder, "age", ranks, "launcher", "torchrun", box=None)
    for run in found:
        states = " ".join(f"{rank['rank']}:{rank['state']}" for rank in run["ranks"])
        table.add_row(
            run["run_dir"], f"{run['age_s']:.0f} s", states, str(run["launcher"]), str(run["torchrun"])
        )
    out.print(table)


def stop_runs(
    run_dir: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder of a run.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """End a run that is going; a notebook that launched it keeps its kernel and gets a `RunFailed`."""
    if (run_dir is None) != every:
        raise PlanError("Exactly one of RUN and --all says what to stop.", check_first="`ppwork ps`")
    wanted = [run for run in own_runs() if every or Path(run.run_dir) == _absolute(run_dir)]
    if run_dir is not None and not wanted:
        raise PlanError(f"No run of yours is going in {run_dir}.", check_first="`ppwork ps` lists them")
    for run in wanted:
        killed = stop(run)
        out.print(f"{'killed' if killed else 'stopped'} {run.run_dir}", soft_wrap=True, highlight=False)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _facts(run: OwnRun) -> dict[str, Any]:
    return {
        "run_dir": run.run_dir,
        "age_s": round(time.time() - run.at, 1),
        "launcher": run.launcher.pid,
        "torchrun": run.agent.pid,
        "ranks": _ranks(Path(run.run_dir)),
    }


def _ranks(run_dir: Path) -> list[dict[str, Any]]:
    """Return what each rank does; nothing for a program that is not ours and has no plan."""
    try:
        plan = Plan.load(run_dir)
    except PlanError:
        return []
    pulses = [read_pulse(run_dir, rank) for rank in range(plan.world_size)]
    return [
        {"rank": rank, "state": str(pulse.state if pulse else PulseState.STARTING)}
        for rank, pulse in enumerate(pulses)
    ]
