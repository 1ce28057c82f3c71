"""The command line: options to a plan, a run to a progress bar and a table of a few lines."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ppwork.cli.claims import claims
from ppwork.cli.doctor import doctor_command
from ppwork.cli.faults import app as faults
from ppwork.cli.hosts import torchrun_command
from ppwork.cli.jobs import GoesOn, attach_command, hand_in
from ppwork.cli.options import bytes_of, chunk_range, depth_of, given, halves_of, options_of, path_of, size_of
from ppwork.cli.output import err, out, write_files, write_json, write_text
from ppwork.cli.runs import collect_command, diagnose_command, failure_line, list_runs, stop_runs
from ppwork.cli.screen import launch_on_terminal
from ppwork.cli.simulate import label_of, predict
from ppwork.cli.slides import slides
from ppwork.cli.starter import lessons, new
from ppwork.cli.sweep import sweep
from ppwork.cli.trace import trace
from ppwork.cli.verify import verify
from ppwork.errors import PlanError, PPWorkError
from ppwork.launcher.launch import DEFAULT_LIMIT_S
from ppwork.launcher.nodes.places import Places, places_of
from ppwork.pictures.run_table import table_of
from ppwork.pictures.startup import startup
from ppwork.pictures.timelines import timeline_files
from ppwork.plan import Plan
from ppwork.records.run import Run
from ppwork.version import __version__
from ppwork.workloads.spec import VideoOptions
from ppwork.workloads.times import synthetic

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
EXIT_CODES = """\
Exit codes: 0 well; 1 a run failed, or Slurm, a host or a record does not give what is needed;
2 bad input, nothing has started; 130 Ctrl-C.
"""
RUN, SEE, TRY, BEGIN = "Run", "See and explain", "Try out", "Begin, learn and teach"
"""Panels of the commands in the help."""
GONE_WRONG = "is the disk full (`df -h .`)? was a folder moved or removed, the working folder too?"

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
notebooks = typer.Typer(
    no_args_is_help=True, help="For those who write lessons: execute them and store their outputs."
)
app.add_typer(notebooks, name="nb", rich_help_panel=BEGIN)
app.add_typer(faults, name="fault", rich_help_panel=TRY)


def _say_version(asked: bool) -> None:
    if asked:
        write_text(f"ppwork {__version__}")
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """See pipeline-parallel inference work, break it, measure it."""


STAGES, STREAM, OVERLAP = "Your stages", "Stream", "Ranks and overlap"
CHECKS, BOUNDS, OUTPUT, ON = "Checks", "Bounds", "Output", "Hosts"
CLIP, SYNTHETIC = "Only by the shipped denoiser", "Only by --workload synthetic"


def _of(panel: str, text: str = "", *names: str, **more: Any) -> Any:  # noqa: ANN401  as typer.Option
    """Return an option that stands in a panel of the help."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _refuse_options_of(panel: str, context: typer.Context, check_first: str) -> None:
    """Refuse options that would be read and then heeded by nobody."""
    for option in given(context):
        if getattr(option, "rich_help_panel", None) == panel:
            only_by = panel[0].lower() + panel[1:]
            raise PlanError(f"{option.opts[0]} is heeded {only_by}.", check_first=check_first)


@dataclass(frozen=True)
class RunRequest:
    """What the options of ``run`` and ``submit`` ask for.

    Attributes:
        places: Hosts; ``None``: this machine alone.
    """

    plan: Plan
    places: Places | None
    out_dir: Path | None
    limit_s: float
    profile_start: bool
    as_json: bool


def _asked(
    context: typer.Context,
    stage0: Annotated[str, _of(STAGES, "Class of stage 0, as module:Class; default: the denoiser's.")] = "",
    stage1: Annotated[str, _of(STAGES, "Class of stage 1, as module:Class.")] = "",
    option: Annotated[
        list[str] | None,
        _of(STAGES, "KEY=VALUE, an option of the stages; VALUE may be JSON; repeatable.", "--option", "-o"),
    ] = None,
    options: Annotated[
        Path | None, _of(STAGES, "JSON file with options of the stages; -o overrides it.")
    ] = None,
    workload: Annotated[
        str, _of(STAGES, "video: the stages above; synthetic: stages that take chosen times.")
    ] = "video",
    chunks: Annotated[
        int | None, _of(STREAM, "Chunks to run; fewer are a failure; default: all that the source has.")
    ] = None,
    steps: Annotated[int, _of(STREAM, "Calls of the generator's `step` for each chunk.")] = 1,
    hard_cut_at: Annotated[
        list[int] | None, _of(STREAM, "Reset the cache at this chunk; repeatable.")
    ] = None,
    flush_at: Annotated[
        list[int] | None, _of(STREAM, "Like a hard cut, and drop what is in flight; repeatable.")
    ] = None,
    recompute_every: Annotated[int, _of(STREAM, "Rebuild the cache after this many chunks; 0: never.")] = 0,
    seed: Annotated[int, _of(STREAM, "Seed of the noise; your stages find it in their context's plan.")] = 0,
    mesh_size: Annotated[
        int | None, _of(OVERLAP, "Ranks of stage 1; rank 0 comes on top. Default: 2; with --one-process 1.")
    ] = None,
    depth: Annotated[
        int | None,
        _of(
            OVERLAP,
            "Most chunks in flight. Default: 1, the stages take turns.",
            "--depth",
            "--in-flight-depth",
        ),
    ] = None,
    d_in: Annotated[
        int | None, _of(OVERLAP, "Part of the depth: most chunks whose result has not come.")
    ] = None,
    d_out: Annotated[
        int | None, _of(OVERLAP, "Rest of the depth: most results that are not decoded.")
    ] = None,
    schedule: Annotated[str, _of(OVERLAP, "overlap, or send-after-decode: the classic mistake.")] = "overlap",
    backend: Annotated[str, _of(OVERLAP, "auto, gloo or nccl.")] = "auto",
    share_gpu: Annotated[bool, _of(OVERLAP, "All NCCL ranks on one GPU: never for timing.")] = False,
    one_process: Annotated[
        bool, _of(OVERLAP, "Both ranks in one process, copies for links: true times of one GPU.")
    ] = False,
    threads: Annotated[
        int, _of(OVERLAP, "Threads of torch on each rank.", "--threads", "--threads-per-rank")
    ] = 1,
    verify: Annotated[
        bool, _of(CHECKS, "Compare with a single-process run, which calls both stages once more.")
    ] = False,
    profile_start: Annotated[
        bool, _of(CHECKS, "Show where the seconds before the first chunk went, also as a picture.")
    ] = False,
    tolerance: Annotated[
        float, _of(CHECKS, "Largest difference that --verify accepts in a mesh of 2 or more.")
    ] = 1e-4,
    compare_collectives: Annotated[
        int,
        _of(
            CHECKS,
            "First chunks in which all mesh ranks compare each sum before they make it; -1 always, 0 never. "
            "In later chunks the ranks of one host compare theirs.",
        ),
    ] = 2,
    check_buffers: Annotated[
        int,
        _of(
            CHECKS,
            "First chunks in which all bytes of a buffer in flight are checked for a write; -1: all chunks. "
            "In later chunks a sample is checked.",
        ),
    ] = 2,
    strict: Annotated[
        bool,
        _of(
            CHECKS,
            "Exit with 1 also if the run ended well, and a thread died, nobody waited for a handle, no stage "
            "asked for an option, only some mesh ranks wrote into what all received, or they gave "
            "different metadata.",
        ),
    ] = False,
    digests: Annotated[bool, _of(CHECKS, "Compare weights, inputs and results over the mesh.")] = False,
    timeout_s: Annotated[float, _of(BOUNDS, "Longest wait for a peer, in seconds.")] = 60.0,
    stall_s: Annotated[
        float | None, _of(BOUNDS, "Longest step of a stage, loading included; default: 0.8 of the timeout.")
    ] = None,
    freeze_s: Annotated[float, _of(BOUNDS, "Longest time that a process may be stopped, in seconds.")] = 5.0,
    on: Annotated[
        str,
        _of(
            ON,
            "ssh:gpu-a,gpu-b; slurm:2 or slurm:2,partition=gpu; local:2 for two nodes here. "
            "Default: this machine only.",
        ),
    ] = "",
    ranks: Annotated[
        str, _of(ON, "Number of ranks on each host, such as 1,2; default: rank 0, then the mesh.")
    ] = "",
    limit_s: Annotated[
        float, _of(BOUNDS, "Hard limit on the whole run, in seconds.", min=1)
    ] = DEFAULT_LIMIT_S,
    max_message_mb: Annotated[float, _of(BOUNDS, "Largest message, in MiB.", min=0)] = 1024.0,
    heartbeat_s: Annotated[
        float | None,
        _of(BOUNDS, "Seconds between the NOOPs of a source that pauses; default: a quarter of the timeout."),
    ] = None,
    out_dir: Annotated[Path | None, _of(OUTPUT, "Run folder, new or empty.", "--out", parser=path_of)] = None,
    keep_outputs: Annotated[bool, _of(OUTPUT, "Keep what stage 0 emitted: `run.outputs`.")] = False,
    as_json: Annotated[bool, _of(OUTPUT, "Print the summary as JSON only.", "--json")] = False,
    input_: Annotated[str, _of(CLIP, "Clip to denoise; default: the shipped one.", "--input")] = "",
    frames_per_chunk: Annotated[int, _of(CLIP, "Frames in a chunk.")] = 4,
    size: Annotated[str, _of(CLIP, "WxH in pixels.")] = "160x96",
    noise: Annotated[float, _of(CLIP, "Standard deviation of the added noise, in 1/255.")] = 25.0,
    stage0_ms: Annotated[str, _of(SYNTHETIC, "encode,decode in ms.")] = "20,20",
    stage1_ms: Annotated[float, _of(SYNTHETIC, "Generator in ms.")] = 40.0,
    payload_mb: Annotated[float, _of(SYNTHETIC, "MiB of a chunk, each way.")] = 1.0,
    jitter: Annotated[float, _of(SYNTHETIC, "Relative spread of the times.")] = 0.0,
) -> RunRequest:
    if workload != "synthetic":
        _refuse_options_of(SYNTHETIC, context, "--workload synthetic, or -o KEY=VALUE for stages of your own")
    if workload == "synthetic" or (stage0 and stage1):
        _refuse_options_of(CLIP, context, "-o KEY=VALUE, as -o input=my.txt: a stage has its options")
    width, height = size_of(size)
    video = VideoOptions(
        input=input_, width=width, height=height, frames_per_chunk=frames_per_chunk, noise=noise
    )
    plan = Plan(
        mesh_size=mesh_size if mesh_size is not None else 1 if one_process else 2,
        chunks=chunks,
        seed=seed,
        hard_cuts=tuple(hard_cut_at or ()),
        flushes=tuple(flush_at or ()),
        in_flight_depth=depth_of(depth, d_in, d_out),
        d_in=d_in,
        d_out=d_out,
        schedule=schedule,
        steps=steps,
        recompute_every=recompute_every,
        backend=backend,
        share_gpu=share_gpu,
        one_process=one_process,
        stage0=stage0,
        stage1=stage1,
        options={**video.to_dict(), **options_of(option or [], options)},
        threads_per_rank=threads,
        timeout_s=timeout_s,
        stall_s=stall_s,
        freeze_s=freeze_s,
        max_message_bytes=bytes_of(max_message_mb),
        heartbeat_s=heartbeat_s,
        compare_collectives=compare_collectives,
        check_buffers=check_buffers,
        digests=digests,
        verify=verify,
        tolerance=tolerance,
        keep_outputs=keep_outputs,
        strict=strict,
    )
    if workload == "synthetic":
        encode_ms, decode_ms = halves_of(stage0_ms)
        times = {"encode_ms": encode_ms, "decode_ms": decode_ms, "stage1_ms": stage1_ms}
        plan = synthetic(plan, **times, payload_mb=payload_mb, jitter=jitter)
    elif workload != "video":
        raise PlanError(f"The workload was {workload!r}.", check_first="--workload video or synthetic")
    places = places_of(on, ranks) if on else None
    if ranks and places is None:
        raise PlanError("--ranks says how many ranks each host has.", check_first="--on ssh:gpu-a,gpu-b")
    return RunRequest(plan, places, out_dir, limit_s, profile_start, as_json)


def run(asked: RunRequest) -> None:
    """Run a pipeline: stages of your own, or without any the shipped denoiser of a video clip."""
    finished = launch_on_terminal(
        asked.plan, asked.out_dir, err, asked.limit_s, asked.places, bar=not asked.as_json
    )
    picture = startup(finished) if asked.profile_start else None
    files = {"startup.png": picture.png()} if picture is not None else {}
    paths = write_files(finished.run_dir, files, "is it yours?")
    if asked.as_json:
        write_json({**finished.summary, **{path.stem: str(path) for path in paths}})
    else:
        out.print(table_of(finished))
        if picture is not None:
            write_text("\n".join([f"{picture.finding}\n\n{picture.table}", *map(str, paths)]))


def submit(asked: RunRequest) -> None:
    """Hand a run to Slurm and return at once. The options are those of `run`; --on slurm:N is needed."""
    if asked.places is None:
        raise PlanError("A run was to be submitted, and to no queue.", check_first="--on slurm:2")
    if asked.profile_start:
        raise PlanError("--profile-start is drawn at a run's end.", check_first="`ppwork run`, or attach")
    hand_in(asked.plan, asked.places, asked.out_dir, asked.limit_s, as_json=asked.as_json)


def _with_its_options(command: Callable[[RunRequest], None]) -> Callable[..., None]:
    """Return a command that takes the options of ``_asked``, and gets them as one thing."""

    @functools.wraps(_asked)
    def taken(**options: Any) -> None:  # noqa: ANN401  typer gives what the signature says
        command(_asked(**options))

    taken.__doc__ = command.__doc__
    return taken


app.command("run", rich_help_panel=RUN)(_with_its_options(run))
app.command("ps", rich_help_panel=RUN)(list_runs)
app.command("stop", rich_help_panel=RUN)(stop_runs)
app.command("submit", rich_help_panel=RUN)(_with_its_options(submit))
app.command("attach", rich_help_panel=RUN)(attach_command)
app.command("torchrun", rich_help_panel=RUN)(torchrun_command)
app.command("collect", rich_help_panel=RUN)(collect_command)
app.command("diagnose", rich_help_panel=SEE)(diagnose_command)
app.command("trace", rich_help_panel=SEE)(trace)
app.command("verify", rich_help_panel=SEE)(verify)
app.command("simulate", rich_help_panel=SEE)(predict)
app.command("sweep", rich_help_panel=SEE)(sweep)
app.command("doctor", rich_help_panel=TRY)(doctor_command)
app.command("claims", rich_help_panel=TRY)(claims)
app.command("new", rich_help_panel=BEGIN)(new)
app.command("lessons", rich_help_panel=BEGIN)(lessons)
app.command("slides", rich_help_panel=BEGIN)(slides)


@app.command(rich_help_panel=SEE)
def timeline(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    compare: Annotated[Path | None, typer.Option(help="A second run, drawn on the same time axis.")] = None,
    chunks: Annotated[str, typer.Option(help="FIRST:LAST chunk to draw, both included.")] = "",
) -> None:
    """Draw what every rank did, as a picture, a table and a Perfetto trace in the run's folder."""
    window = chunk_range(chunks)
    run = Run.load(run_dir)
    beside = None
    if compare is not None:
        other = Run.load(compare)
        label = label_of(compare.resolve().name, other.plan)
        beside = (other.entries_by_rank, label, other.plan.in_flight_depth)
    label = label_of(run_dir.resolve().name, run.plan)
    files = timeline_files(run.plan, run.entries_by_rank, label, beside=beside, chunks=window)
    paths = write_files(run_dir, files, "is it yours?")
    text = files["timeline.txt"].decode()
    lines = text.splitlines()
    if len(lines) > 50:
        text = "\n".join([*lines[:22], "...", *lines[-21:], ""])
    failed = [line for folder in (run_dir, compare) if folder is not None and (line := failure_line(folder))]
    write_text("\n".join([text, *map(str, paths), *failed]))


@notebooks.command()
def refresh(paths: list[Path]) -> None:
    """Execute notebooks and write them back without what differs from run to run, ready to commit."""
    from ppwork.lab.course.refresh import refresh as refresh_one

    for path in paths:
        refresh_one(path)
        write_text(f"refreshed {path}")


def main() -> int:
    """Run the command line; bad input exits with 2, every other failure with 1, one message each."""
    # Ended politely, we still clean up: without this, a signal would leave that to the ranks' lifelines.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except GoesOn:
        raise
    except SystemExit as error:  # typer's answer to a Ctrl-C has no word
        if error.code == INTERRUPTED:
            write_text("interrupted; no rank of this command is left running", to=err)
        raise
    except PlanError as error:
        write_text(f"bad input: {error}", to=err)
        return BAD_INPUT
    except PPWorkError as error:
        write_text(str(error), to=err)
        return FAILED
    except OSError as error:  # of a disk or a folder that was well when the command began
        where = f"{error.filename}: " if error.filename is not None else ""
        write_text(f"{where}{error.strerror or error}\n  check first: {GONE_WRONG}", to=err)
        return FAILED
    return 0
