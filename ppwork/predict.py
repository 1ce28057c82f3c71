"""``ppwork simulate``: a pipeline on paper, its times from options or from a run, with a run's pictures."""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ppwork.checks import new_run_dir
from ppwork.costs import Costs, Hop
from ppwork.errors import PlanError
from ppwork.failure import write_whole
from ppwork.options import SYNTHETIC_CHUNKS, synthetic
from ppwork.plan import Plan
from ppwork.recorded import recorded, timeline_files
from ppwork.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ppwork.simulate import Simulation
    from ppwork.timeline import Entry

MIB = 1 << 20
"""What ``--payload-mb`` counts in, as the synthetic workload does."""
STAGES = {"stage0_ms": "20,20", "stage1_ms": 40.0, "payload_mb": 1.0, "jitter": 0.0}
LINKS = {"hop_ms": 0.0, "mb_per_s": math.inf}
"""What the options are when there is no run to take the costs from."""


def predict(
    stage0_ms: Annotated[str | None, typer.Option(help="encode,decode in ms; default 20,20.")] = None,
    stage1_ms: Annotated[float | None, typer.Option(help="Generator in ms; default 40.")] = None,
    payload_mb: Annotated[float | None, typer.Option(help="MB of a chunk, each way; default 1.")] = None,
    jitter: Annotated[float | None, typer.Option(help="Relative spread of the times; default 0.")] = None,
    hop_ms: Annotated[float | None, typer.Option(help="Latency of one message; default 0.")] = None,
    mb_per_s: Annotated[float | None, typer.Option(help="Bandwidth; default infinite.")] = None,
    from_run: Annotated[
        Path | None, typer.Option(help="Take all times from this run (best at depth 1), as samples.")
    ] = None,
    mesh_size: Annotated[int | None, typer.Option(help="Ranks of stage 1; default 2.")] = None,
    chunks: Annotated[int | None, typer.Option(help=f"Chunks; default {SYNTHETIC_CHUNKS}.")] = None,
    depth: Annotated[int | None, typer.Option(help="in_flight_depth; default 1, sequential.")] = None,
    d_in: Annotated[int | None, typer.Option(help="Depth, split: chunks without a result.")] = None,
    d_out: Annotated[int | None, typer.Option(help="Depth, split: results not decoded.")] = None,
    order: Annotated[str | None, typer.Option(help="overlap, or send-after-decode (a mistake).")] = None,
    streams: Annotated[int, typer.Option(help="Sources that share the mesh.")] = 1,
    run_ahead: Annotated[bool, typer.Option(help="Receive chunk k+1 while chunk k computes.")] = True,
    seed: Annotated[int | None, typer.Option(help="Draw the samples; without it they keep order.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="New or empty folder for picture, table and trace.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON only.")] = False,
) -> None:
    """Predict a pipeline without running it: period, overlap and idle mesh, at any size and depth."""
    stages = {
        "stage0_ms": stage0_ms,
        "stage1_ms": stage1_ms,
        "payload_mb": payload_mb,
        "jitter": jitter,
    }
    links = {"hop_ms": hop_ms, "mb_per_s": mb_per_s}
    wanted = {"mesh_size": mesh_size, "chunks": chunks, "order": order}
    wanted |= {"in_flight_depth": depth, "d_in": d_in, "d_out": d_out}
    changes = {name: value for name, value in wanted.items() if value is not None}
    if from_run is None:
        plan = synthetic(Plan(), **_filled(stages, STAGES))
        costs = given_costs(plan, **_filled(links, LINKS))
    else:
        _none_of({**stages, **links})
        plan, costs = run_costs(from_run)
    plan = plan.replace(**changes)
    found = simulate(plan, costs, run_ahead=run_ahead, streams=streams, seed=seed)
    figures = figures_of(found, costs, streams)
    written: list[Path] = []
    if out_dir is not None:
        folder = new_run_dir(out_dir)
        for name, data in timeline_files(found.plan, pictured(found), label_of(found.plan)).items():
            write_whole(folder / name, data)
            written.append(folder / name)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n")
        return
    view = Table(show_header=False, box=None, pad_edge=False)
    view.add_column(style="bold")
    for name, value in figures.items():
        view.add_row(name, f"{value:g}" if isinstance(value, float) else str(value))
    out = Console()
    out.print(view, highlight=False)
    for path in written:
        out.print(str(path), markup=False, highlight=False, soft_wrap=True)


def given_costs(plan: Plan, *, hop_ms: float, mb_per_s: float) -> Costs:
    """Return the costs of a synthetic plan, with one kind of hop everywhere.

    The broadcast's hop is that of a mesh of two; it grows with the rounds of a tree.

    Raises:
        PlanError: A time or the bandwidth cannot be one.
    """
    asked = {name: float(value) for name, value in plan.options.items()}
    hop, size = Hop(hop_ms, mb_per_s), round(asked["payload_mb"] * MIB)
    return Costs(
        encode_ms=asked["encode_ms"],
        decode_ms=asked["decode_ms"],
        stage1_ms=asked["stage1_ms"],
        jitter=asked["jitter"],
        down=hop,
        broadcast={2: hop},
        up=hop,
        down_bytes=size,
        up_bytes=size,
    )


def run_costs(run_dir: Path) -> tuple[Plan, Costs]:
    """Return the plan of a run and the costs of its steps.

    Raises:
        PlanError: The folder is not one of a run, or no chunk of it has all its spans.
    """
    plan, entries = recorded(run_dir)
    return plan, Costs.from_run(entries)


def figures_of(found: Simulation, costs: Costs, streams: int = 1) -> dict[str, Any]:
    """Return what a simulation is asked for, by name; a law for several streams there is none."""
    plan, measures = found.plan, found.measures
    law = costs.law_ms(plan.in_flight_depth, plan.mesh_size) if streams == 1 else None
    return {
        "mesh_size": plan.mesh_size,
        "chunks": plan.chunks,
        "depth": plan.in_flight_depth,
        "order": plan.order,
        "streams": streams,
        "period_ms": measures.period_ms,
        "law_ms": None if law is None else round(law, 3),
        "stage0_ms": measures.stage0_ms,
        "stage1_ms": measures.stage1_ms,
        "efficiency": measures.efficiency,
        "overlap_score": measures.overlap_score,
        "mesh_idle_ms": round(statistics.median(found.mesh_idle), 3) if found.mesh_idle else None,
    }


def pictured(found: Simulation) -> dict[int, list[Entry]]:
    """Return the ranks of the plan: of several streams, the first one's source and the whole mesh."""
    return {rank: entries for rank, entries in found.entries_by_rank.items() if rank < found.plan.world_size}


def label_of(plan: Plan) -> str:
    """Return the title of a simulation's picture."""
    return f"simulated (depth {plan.in_flight_depth}, mesh of {plan.mesh_size})"


def _filled(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: defaults[name] if value is None else value for name, value in given.items()}


def _none_of(given: Mapping[str, Any]) -> None:
    """Refuse times that are given and to be taken from a run as well."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if names:
        raise PlanError(
            f"{' and '.join(names)} cannot be given together with --from-run, which has all times.",
            check_first=f"leave out --from-run or {names[0]}",
        )
