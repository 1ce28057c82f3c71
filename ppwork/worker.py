"""The entry of one rank: ``torchrun -m ppwork worker RUN_DIR``.

Order matters here: lifeline, log, pulse and watchdog, then torch; device, groups, stages, and only then the
protocol. Whatever happens, this rank writes its failure record, tells its peers, and leaves with an exit code
(``exit_codes``).
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork import activity, collector, lifeline
from ppwork.clocks import CLOCK
from ppwork.exit_codes import UNWRITABLE
from ppwork.failure import write_whole
from ppwork.last_words import LastWords
from ppwork.plan import Plan
from ppwork.pulse import Pulse
from ppwork.run import OUTPUTS_FILE, QUEUE, SUMMARY_FILE, log_file
from ppwork.timeline import Recorder, dropped_chunks, measure, read_entries, span_file, stage1_ms_of
from ppwork.version import __version__
from ppwork.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.groups import Groups
    from ppwork.inject import Injector
    from ppwork.stage import StageContext

log = logging.getLogger("ppwork.worker")


def main(run_dir: Path) -> int:
    """Run this rank to its end and return its exit code; one that fails ends the process with it."""
    lifeline.hold_if_asked()
    rank = int(os.environ["RANK"])
    try:
        _log_to(log_file(run_dir, rank), rank)
        pulse = Pulse(run_dir, rank)
        recorder = Recorder(span_file(run_dir, rank))
    except OSError as error:
        sys.stderr.write(f"rank {rank} cannot write into the run folder: {error}\n")
        return UNWRITABLE
    # The launcher asks ranks that hang for their stacks; C code, so it answers in a blocked call, too.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    words = LastWords(run_dir, rank, recorder)
    with recorder:
        try:
            _run(run_dir, rank, recorder, words, pulse)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is written down and becomes the exit code
            words.say(error)
    pulse.leave(words.exit_code)
    if words.exit_code:
        # Groups are broken and lanes may be stuck in the backend: no destructor may run (rule R10).
        with contextlib.suppress(OSError):  # a full disk
            logging.shutdown()
            sys.stderr.flush()
        os._exit(words.exit_code)
    return 0


def _log_to(path: Path, rank: int) -> None:
    """Send everything this process prints, C++ included, to its log."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    handler = logging.StreamHandler(sys.stderr)
    start = time.monotonic()
    text = f"r{rank} %(levelname)s %(name)s | %(message)s"
    handler.setFormatter(_Since(start, text))
    logger = logging.getLogger("ppwork")
    logger.addHandler(handler)
    logger.setLevel(os.environ.get("PPWORK_LOG_LEVEL", "INFO"))


class _Since(logging.Formatter):
    def __init__(self, start: float, text: str) -> None:
        super().__init__(text)
        self._start = start

    def format(self, record: logging.LogRecord) -> str:
        return f"+{time.monotonic() - self._start:.3f}s {super().format(record)}"


def _run(run_dir: Path, rank: int, recorder: Recorder, words: LastWords, pulse: Pulse) -> None:
    plan = Plan.load(run_dir)
    with Watchdog(plan, rank, run_dir, recorder, words=words, pulse=pulse) as watchdog:
        with activity.during("import torch"), collector.importing():
            import torch

            from ppwork import groups as live
            from ppwork.clock_exchange import estimate_offset
            from ppwork.flight_dump import write_flight
            from ppwork.inject import injector_of

        words.also = partial(write_flight, run_dir, rank)
        torch.set_num_threads(plan.threads_per_rank)
        local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        log.info("ppwork %s torch %s plan %s", __version__, torch.__version__, plan.digest)
        injector = injector_of(plan, rank, recorder)
        plan = injector.before_join(plan)
        with recorder.span("join"), activity.during("join"):
            groups = live.join(plan, rank=rank, local_rank=local_rank, world_size=world_size)
        watchdog.joined()
        log.info("joined as %s on %s", groups.role, groups.device)
        recorder.instant(CLOCK, figures=msgspec.structs.asdict(estimate_offset(groups)))
        _run_role(plan, groups, run_dir, recorder, injector, words)
        log.info("left")


def _run_role(
    plan: Plan, groups: Groups, run_dir: Path, recorder: Recorder, injector: Injector, words: LastWords
) -> None:
    from ppwork.control import follower_loop, leader_loop, stage0_loop
    from ppwork.control_plane import PPControlPlane
    from ppwork.digests import compare_loaded
    from ppwork.stage import STAGE0_METHODS, STAGE1_METHODS, NoTensorParallel, StageContext, load_stage
    from ppwork.tally import counted
    from ppwork.tensor_parallel import MeshSum
    from ppwork.topology import Role

    on_stage0 = groups.role is Role.STAGE0
    context = StageContext(
        plan,
        groups.device,
        NoTensorParallel() if on_stage0 else MeshSum(groups),
        run_dir if on_stage0 else None,
    )
    path, methods = (plan.stage0, STAGE0_METHODS) if on_stage0 else (plan.stage1, STAGE1_METHODS)
    with recorder.span("load"):
        kind = load_stage(path, methods, search=Path.cwd())
        stage = _construct(kind if on_stage0 else counted(kind, groups.tally), context)
        stage = injector.stage(stage)
    # Nobody waits in a collective for a rank that is still loading, or that failed to.
    compare_loaded(groups, plan, stage)
    with PPControlPlane(plan, groups, recorder, injector.hook) as plane:
        try:
            injector.plane(plane)
            if on_stage0:
                _stage0(plane, stage, run_dir, stage0_loop)
            else:
                loop = leader_loop if plane.role is Role.LEADER else follower_loop
                loop(plane, stage)
            for queue in plane.statistics():
                fill = {"bound": queue.bound, "most": queue.most, "done": queue.done}
                recorder.instant(QUEUE + queue.name, figures=fill)
        except BaseException as error:
            plane.session.failed(error)
            # Before the peers hear of it: the first of them to leave makes torchrun end this rank, too.
            words.say(error)
            raise


def _construct(stage: type, context: StageContext) -> Any:  # noqa: ANN401  the user's class
    from ppwork.chunk_steps import stage_code

    with stage_code("constructor"):
        return stage(context)


def _stage0(plane: Any, stage0: Any, run_dir: Path, loop: Callable[[Any, Any], Any]) -> None:  # noqa: ANN401
    from ppwork.chunk_steps import stage_code

    kept = loop(plane, stage0)
    with stage_code("finish", plane.session.last_ids):
        figures = dict(stage0.finish())
    if plane.plan.verify:
        save_outputs(run_dir / OUTPUTS_FILE, kept)
    write_summary(plane.plan, run_dir, plane.groups.device.type, figures)


def save_outputs(path: Path, outputs: dict[int, Any]) -> None:
    """Keep what rank 0 emitted, one tensor per chunk, for the comparison with the reference."""
    from safetensors.torch import save_file

    save_file({f"{index:06d}": output.contiguous().cpu() for index, output in outputs.items()}, path)


def write_summary(plan: Plan, run_dir: Path, device: str, figures: dict[str, Any]) -> None:
    """Write ``summary.json``: measures, stage 0's figures, versions and the plan."""
    import torch

    entries = read_entries(run_dir, 0)
    measures = measure(entries, stage1_ms_of(entries), depth=plan.in_flight_depth)
    summary = {
        **msgspec.to_builtins(measures),
        "dropped_chunks": dropped_chunks(entries),
        **figures,
        "backend": "nccl" if device == "cuda" else "gloo",
        "device": device,
        "versions": {
            "ppwork": __version__,
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
        },
        "plan_digest": plan.digest,
        "plan": plan.to_dict(),
    }
    write_whole(run_dir / SUMMARY_FILE, msgspec.json.format(msgspec.json.encode(summary), indent=2))
