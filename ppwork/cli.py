"""The command line: options to a plan, a run to a progress bar and a table of a few lines."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from ppwork import collector
from ppwork.claims_cli import claims
from ppwork.diagnose_cli import diagnose_command
from ppwork.doctor_cli import doctor_command
from ppwork.errors import PlanError, RunFailed
from ppwork.failure import write_whole
from ppwork.fault_cli import app as faults
from ppwork.launch import launch
from ppwork.options import chunk_range, depth_of, size_of, synthetic
from ppwork.plan import VIDEO_STAGE0, VIDEO_STAGE1, Plan
from ppwork.predict import predict
from ppwork.recorded import recorded, timeline_files
from ppwork.runs_cli import list_runs, stop_runs
from ppwork.screen import launch_with_bar, table
from ppwork.slides_cli import slides
from ppwork.sweep_cli import sweep

BAD_INPUT, RUN_FAILED, INTERRUPTED = 2, 1, 130

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
notebooks = typer.Typer(no_args_is_help=True, help="Keep the lessons executed and normalised.")
app.add_typer(notebooks, name="nb")
app.add_typer(faults, name="fault")
out = Console()
err = Console(stderr=True)


@app.callback()
def about() -> None:
    """See pipeline-parallel inference work, break it, measure it."""


@app.command()
def run(
    input_: Annotated[str, typer.Option("--input", help="Clip to denoise; default: the shipped one.")] = "",
    mesh_size: Annotated[int, typer.Option(help="Ranks of stage 1; the world is one larger.")] = 2,
    chunks: Annotated[int | None, typer.Option(help="Chunks to run; default: the whole clip.")] = None,
    frames_per_chunk: Annotated[int, typer.Option()] = 4,
    size: Annotated[str, typer.Option(help="WxH in pixels.")] = "160x96",
    noise: Annotated[float, typer.Option(help="Standard deviation of the added noise, in 1/255.")] = 25.0,
    seed: Annotated[int, typer.Option()] = 0,
    hard_cut_at: Annotated[
        list[int] | None, typer.Option(help="Reset the cache at this chunk; repeat.")
    ] = None,
    flush_at: Annotated[
        list[int] | None, typer.Option(help="As a hard cut, and drop what is in flight; repeat.")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="in_flight_depth; default 1, sequential.")] = None,
    d_in: Annotated[int | None, typer.Option(help="Depth, split: chunks without a result.")] = None,
    d_out: Annotated[int | None, typer.Option(help="Depth, split: results not decoded.")] = None,
    order: Annotated[
        str, typer.Option(help="overlap, or send-after-decode: the classic mistake.")
    ] = "overlap",
    steps: Annotated[int, typer.Option(help="Denoise steps (generator calls) per chunk.")] = 1,
    recompute_every: Annotated[int, typer.Option(help="Rebuild the cache every so many chunks.")] = 0,
    backend: Annotated[str, typer.Option(help="auto, gloo or nccl.")] = "auto",
    share_gpu: Annotated[bool, typer.Option(help="All NCCL ranks on one GPU: never for timing.")] = False,
    stage0: Annotated[str, typer.Option(help="Import path module:Class.")] = VIDEO_STAGE0,
    stage1: Annotated[str, typer.Option(help="Import path module:Class.")] = VIDEO_STAGE1,
    workload: Annotated[str, typer.Option(help="video, or synthetic: stages of chosen times.")] = "video",
    stage0_ms: Annotated[str, typer.Option(help="Synthetic: encode,decode in ms.")] = "20,20",
    stage1_ms: Annotated[float, typer.Option(help="Synthetic: generator in ms.")] = 40.0,
    payload_mb: Annotated[float, typer.Option(help="Synthetic: MB of a chunk, each way.")] = 1.0,
    jitter: Annotated[float, typer.Option(help="Synthetic: relative spread of the times.")] = 0.0,
    timeout_s: Annotated[float, typer.Option(help="Longest wait for a peer, in seconds.")] = 60.0,
    heartbeat_s: Annotated[
        float | None, typer.Option(help="A pausing source sends a NOOP so often; default: timeout / 4.")
    ] = None,
    compare_collectives: Annotated[
        int, typer.Option(help="First chunks whose mesh sums are compared before each; -1 always, 0 never.")
    ] = 2,
    digests: Annotated[
        bool, typer.Option(help="Compare whole weights and all inputs over the mesh.")
    ] = False,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Run folder, new or empty.")] = None,
    verify: Annotated[bool, typer.Option(help="Compare with a single-process run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON only.")] = False,
) -> None:
    """Send a clip through rank 0, the leader and the mesh, and write it back denoised."""
    width, height = size_of(size)
    plan = Plan(
        input=input_,
        mesh_size=mesh_size,
        chunks=chunks,
        frames_per_chunk=frames_per_chunk,
        width=width,
        height=height,
        noise=noise,
        seed=seed,
        hard_cuts=tuple(hard_cut_at or ()),
        flushes=tuple(flush_at or ()),
        in_flight_depth=depth_of(depth, d_in, d_out),
        d_in=d_in,
        d_out=d_out,
        order=order,
        denoise_steps=steps,
        recompute_every=recompute_every,
        backend=backend,
        share_gpu=share_gpu,
        stage0=stage0,
        stage1=stage1,
        timeout_s=timeout_s,
        heartbeat_s=heartbeat_s,
        compare_collectives=compare_collectives,
        digests=digests,
        verify=verify,
    )
    if workload == "synthetic":
        plan = synthetic(plan, stage0_ms, stage1_ms, payload_mb, jitter)
    elif workload != "video":
        raise PlanError(f"The workload was {workload!r}.", check_first="--workload video or synthetic")
    if as_json:
        finished = launch(plan, out=out_dir)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(finished.summary), indent=2).decode() + "\n")
        return
    out.print(table(launch_with_bar(plan, out_dir, err)))


app.command("simulate")(predict)
app.command("claims")(claims)
app.command("diagnose")(diagnose_command)
app.command("doctor")(doctor_command)
app.command("ps")(list_runs)
app.command("stop")(stop_runs)
app.command("sweep")(sweep)
app.command("slides")(slides)


@app.command("check-stages", hidden=True)
def check_stages(stage0: str, stage1: str) -> None:
    """Import two stages and check their contract; the last line says what is wrong, or names their files."""
    from ppwork.stage import STAGE0_METHODS, STAGE1_METHODS, load_stage

    wanted = ((stage0, STAGE0_METHODS), (stage1, STAGE1_METHODS))
    try:
        with collector.importing():
            found = [load_stage(path, methods, search=Path.cwd()) for path, methods in wanted]
    except PlanError as error:
        sys.stdout.write(msgspec.json.encode((error.what, error.check_first)).decode() + "\n")
        raise typer.Exit(BAD_INPUT) from None
    files = [getattr(sys.modules[stage.__module__], "__file__", None) for stage in found]
    sys.stdout.write(msgspec.json.encode([file for file in files if file]).decode() + "\n")


@app.command()
def timeline(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    compare: Annotated[Path | None, typer.Option(help="A second run, drawn on the same time axis.")] = None,
    chunks: Annotated[str, typer.Option(help="FIRST:LAST chunk to draw, both included.")] = "",
) -> None:
    """Draw what every rank did, as a picture, a table and a Perfetto trace in the run's folder."""
    window = chunk_range(chunks)
    plan, entries = recorded(run_dir)
    beside = None
    if compare is not None:
        other_plan, others = recorded(compare)
        beside = (others, _label(compare, other_plan))
    made = timeline_files(plan, entries, _label(run_dir, plan), beside=beside, chunks=window)
    try:
        for file, data in made.items():
            write_whole(run_dir / file, data)
    except OSError as error:
        raise PlanError(
            f"The folder {run_dir} cannot be written: {error.strerror}.", check_first="is it yours?"
        ) from error
    paths = "\n".join(str(run_dir / file) for file in made)
    text = _shortened(made["timeline.txt"].decode())
    out.print(f"{text}\n{paths}", markup=False, highlight=False, soft_wrap=True)


def _label(run_dir: Path, plan: Plan) -> str:
    return f"{run_dir.resolve().name} (depth {plan.in_flight_depth}, mesh of {plan.mesh_size})"


def _shortened(text: str) -> str:
    lines = text.splitlines()
    return text if len(lines) <= 50 else "\n".join([*lines[:22], "...", *lines[-21:], ""])


@notebooks.command()
def refresh(paths: list[Path]) -> None:
    """Execute notebooks and write them back normalised: the one way in which outputs get committed."""
    from ppwork.notebooks import refresh as refresh_one

    for path in paths:
        refresh_one(path)
        out.print(f"refreshed {path}")


def main() -> int:
    """Run the command line; bad input exits with 2, a failed run with 1, one message each."""
    # Ended politely, we still clean up: without this, SIGTERM would leave that to the ranks' lifelines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except PlanError as error:
        err.print(f"bad input: {error}", markup=False, highlight=False, soft_wrap=True)
        return BAD_INPUT
    except RunFailed as error:
        err.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return RUN_FAILED
    except KeyboardInterrupt:
        err.print("interrupted; no rank is left running")
        return INTERRUPTED
    return 0
