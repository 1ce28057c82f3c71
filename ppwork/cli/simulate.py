"""``ppwork simulate``: a pipeline on paper, its times from options or from a run, with a run's pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ppwork.cli.options import halves_of, path_of
from ppwork.cli.output import out, write_files, write_json, write_text
from ppwork.errors import PlanError, visible
from ppwork.pictures.tables import Table
from ppwork.pictures.timelines import timeline_files
from ppwork.plan import Plan
from ppwork.protocol.topology import LEADER_RANK
from ppwork.records.folder import new_run_dir
from ppwork.records.run import Run
from ppwork.timeline.chunks import emissions
from ppwork.timeline.costs import Costs, Hop
from ppwork.timeline.measures import mean_mesh_idle_ms
from ppwork.timeline.simulate import Simulation, simulate
from ppwork.workloads.times import SYNTHETIC_CHUNKS, synthetic

MIB = 1 << 20
"""Bytes of one ``--payload-mb``, as in the synthetic workload."""
STAGE0_MS = "20,20"
STAGES = {"stage1_ms": 40.0, "payload_mb": 1.0, "jitter": 0.0}
LINKS = {"hop_ms": 0.0, "mb_per_s": math.inf}
"""Values of the options that are not given, when there is no run to take the costs from."""


def predict(
    stage0_ms: Annotated[str | None, typer.Option(help="encode,decode in ms; default 20,20.")] = None,
    stage1_ms: Annotated[float | None, typer.Option(help="Generator in ms; default 40.")] = None,
    payload_mb: Annotated[float | None, typer.Option(help="MiB of a chunk, each way; default 1.")] = None,
    jitter: Annotated[float | None, typer.Option(help="Relative spread of the times; default 0.")] = None,
    hop_ms: Annotated[float | None, typer.Option(help="Latency of one message; default 0.")] = None,
    mb_per_s: Annotated[float | None, typer.Option(help="Bandwidth of a link; default infinite.")] = None,
    from_run: Annotated[
        Path | None, typer.Option(help="Take all times from this run (best at depth 1), as samples.")
    ] = None,
    mesh_size: Annotated[int | None, typer.Option(help="Ranks of stage 1; default 2.")] = None,
    chunks: Annotated[
        int | None, typer.Option(help=f"Number of chunks; default: the run's, else {SYNTHETIC_CHUNKS}.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Most chunks in flight (in_flight_depth); default 1.")
    ] = None,
    d_in: Annotated[
        int | None, typer.Option(help="Part of the depth: most chunks whose result has not come.")
    ] = None,
    d_out: Annotated[
        int | None, typer.Option(help="Rest of the depth: most results that are not decoded.")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="overlap, or send-after-decode (a mistake).")] = None,
    streams: Annotated[int, typer.Option(help="Sources that share the mesh.")] = 1,
    run_ahead: Annotated[bool, typer.Option(help="Receive chunk k+1 while chunk k computes.")] = True,
    seed: Annotated[
        int | None, typer.Option(help="Draw the run's samples at random; without it they keep their order.")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", parser=path_of, help="New or empty folder for picture, table and trace."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON only.")] = False,
) -> None:
    """Predict a pipeline without running it: period, overlap and idle mesh, at any size and depth."""
    stages = _given(stage1_ms=stage1_ms, payload_mb=payload_mb, jitter=jitter)
    links = _given(hop_ms=hop_ms, mb_per_s=mb_per_s)
    if from_run is None:
        encode_ms, decode_ms = halves_of(stage0_ms or STAGE0_MS)
        plan = synthetic(Plan(), encode_ms=encode_ms, decode_ms=decode_ms, **{**STAGES, **stages})
        costs = given_costs(plan, **{**LINKS, **links})
    else:
        options = [f"--{name.replace('_', '-')}" for name in (*_given(stage0_ms=stage0_ms), *stages, *links)]
        if options:
            raise PlanError(
                f"{' and '.join(options)} cannot be given together with --from-run, which has all times.",
                check_first=f"leave out --from-run or {options[0]}",
            )
        plan, costs = run_costs(from_run)
    depths = _given(in_flight_depth=depth, d_in=d_in, d_out=d_out)
    plan = plan.replace(**_given(mesh_size=mesh_size, chunks=chunks, schedule=schedule), **depths)
    simulation = simulate(plan, costs, run_ahead=run_ahead, streams=streams, seed=seed)
    figures = figures_of(simulation, costs, streams)
    paths: list[Path] = []
    if out_dir is not None:
        plan, by_rank = simulation.plan, simulation.entries_by_rank
        # Of several streams the first one's source, and the whole mesh.
        shown = {rank: by_rank[rank] for rank in range(plan.world_size)}
        files = timeline_files(plan, shown, label_of("simulated", plan))
        paths = write_files(new_run_dir(out_dir), files, "--out")
    if as_json:
        write_json(figures)
        return
    rows = [[name, f"{n:g}" if isinstance(n, float) else str(n)] for name, n in figures.items()]
    out.print(Table((), rows))
    for path in paths:
        write_text(str(path))


def _given(**options: Any) -> dict[str, Any]:  # noqa: ANN401  numbers and names
    return {name: value for name, value in options.items() if value is not None}


def given_costs(plan: Plan, *, hop_ms: float, mb_per_s: float) -> Costs:
    """Return the costs of a synthetic plan, with one kind of hop everywhere.

    The broadcast's hop is that of a mesh of two; it grows with the rounds of a tree.

    Raises:
        PlanError: A time or the bandwidth cannot be one.
    """
    options = {name: float(value) for name, value in plan.options.items()}
    hop, size = Hop(hop_ms, mb_per_s), round(options["payload_mb"] * MIB)
    return Costs(
        encode_ms=options["encode_ms"],
        decode_ms=options["decode_ms"],
        stage1_ms=options["stage1_ms"],
        jitter=options["jitter"],
        down=hop,
        broadcast={2: hop},
        up=hop,
        down_bytes=size,
        up_bytes=size,
    )


def run_costs(run_dir: Path) -> tuple[Plan, Costs]:
    """Return the plan of a run, its chunks counted where it says none, and the costs of its steps.

    Raises:
        PlanError: The folder is not one of a run, or no chunk of it has all its spans.
    """
    run = Run.load(run_dir)
    costs = Costs.from_run(run.entries_by_rank)
    if run.plan.chunks is not None:
        return run.plan, costs
    last = max([*emissions(run.entries_by_rank), *run.plan.hard_cuts, *run.plan.flushes])
    return run.plan.replace(chunks=last + 1), costs


def figures_of(simulation: Simulation, costs: Costs, streams: int = 1) -> dict[str, Any]:
    """Return the figures of a simulation, by name; for several streams there is no law."""
    plan, measures = simulation.plan, simulation.measures
    law = costs.law_ms(plan.in_flight_depth, plan.mesh_size) if streams == 1 else None
    return {
        "mesh_size": plan.mesh_size,
        "chunks": plan.chunks,
        "depth": plan.in_flight_depth,
        "schedule": plan.schedule,
        "streams": streams,
        "period_ms": measures.period_ms,
        "law_ms": None if law is None else round(law, 3),
        "stage0_ms": measures.stage0_ms,
        "stage1_ms": measures.stage1_ms,
        "efficiency": measures.efficiency,
        "overlap_score": measures.overlap_score,
        "mesh_idle_ms": mean_mesh_idle_ms(
            simulation.entries_by_rank[LEADER_RANK], measures.from_chunk, measures.to_chunk
        ),
    }


def label_of(name: str, plan: Plan) -> str:
    """Return the title of a timeline's picture."""
    where = ", one process" if plan.one_process else ""
    return f"{visible(name)} (depth {plan.in_flight_depth}, mesh of {plan.mesh_size}{where})"
