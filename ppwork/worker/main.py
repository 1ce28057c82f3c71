"""The entry of one rank: ``torchrun -m ppwork worker RUN_DIR``.

Order matters: lifeline, log, pulse and watchdog come before torch, so nothing imports torch earlier; ``role``
does the work itself. Whatever happens, this rank writes its failure record, tells its peers, and leaves with
an exit code of ``process``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ppwork import process
from ppwork.plan import Plan
from ppwork.process import LOG_LEVEL_VARIABLE, UNWRITABLE
from ppwork.protocol.parity import THREADS_VARIABLE
from ppwork.records.clocks import Clock, whose_clock
from ppwork.records.flight import NCCL_DUMP_NAME, NCCL_DUMP_VARIABLE
from ppwork.records.pulse import Pulse
from ppwork.records.run import log_file
from ppwork.records.spans import IMPORT, START, Recorder, span_file
from ppwork.records.threads import written_down
from ppwork.worker import progress
from ppwork.worker.last_words import FailureWriter, write_flight
from ppwork.worker.watchdog import Watchdog

log = logging.getLogger("ppwork.worker.main")


BringUp = Callable[[Plan, int], Any]
"""Brings a rank of a plan up and returns its ``Groups``; that type imports torch."""


def main(run_dir: Path) -> int:
    """Run this rank to its end and return its exit code; if the rank fails, end the process with it."""
    process.hold_if_asked()
    rank = int(os.environ["RANK"])
    try:
        log_to(log_file(run_dir, rank), f"r{rank}")
        with written_down(run_dir, rank):
            failure = run_rank(run_dir, rank)
    except OSError as error:
        sys.stderr.write(f"rank {rank} cannot write into the run folder: {error}\n")
        return UNWRITABLE
    if failure.exit_code:
        failure.stay_for_peers()
    return leave(failure.exit_code)


def run_rank(run_dir: Path, rank: int, bring_up: BringUp | None = None) -> FailureWriter:
    """Run a rank to its end on this thread; the returned writer has the exit code to leave with.

    Args:
        run_dir: The run's folder.
        rank: This rank.
        bring_up: Brings the rank up; default: as torchrun's environment says.

    Raises:
        OSError: The rank's pulse or spans cannot be made.
    """
    pulse, recorder = Pulse(run_dir, rank), Recorder(span_file(run_dir, rank))
    failure = FailureWriter(run_dir, rank, recorder)
    with recorder, failure:
        recorder.write(whose_clock(rank, Clock.of_this_host().name))
        recorder.add_span(START, process.began_ns())
        _run(run_dir, rank, recorder, failure, pulse, bring_up)
    pulse.leave(failure.exit_code)
    return failure


def leave(exit_code: int) -> int:
    """Return 0; end the process with any other code."""
    if exit_code:
        # Groups are broken and lanes may be stuck in the backend: no destructor may run (rule R10).
        with contextlib.suppress(OSError):  # a full disk
            logging.shutdown()
            sys.stderr.flush()
        process.flush_files()
        os._exit(exit_code)
    return 0


def log_to(path: Path, who: str) -> None:
    """Send this process's output, C++ included, to its log; also its stacks when the launcher asks for them.

    All loggers, a stage's too, write there, with rank and milliseconds since this call.
    ``LOG_LEVEL_VARIABLE`` sets their level.

    Args:
        path: Path of the log.
        who: Appears in each line, as a format of ``logging``.
    """
    began_s = time.time()

    def since(record: logging.LogRecord) -> bool:
        record.since_ms = (record.created - began_s) * 1e3
        return True

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # The launcher asks hanging ranks for their stacks; this is C code, so it also answers in a blocked call.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    faulthandler.enable()  # a crash in C++ names the line that called it
    handler = logging.StreamHandler(sys.stderr)
    line = f"+%(since_ms)dms {who} %(levelname)s %(name)s | %(message)s"
    handler.setFormatter(logging.Formatter(line))
    handler.addFilter(since)  # a forked process of the warm launcher began long before
    logger = logging.getLogger()
    logger.addHandler(handler)
    logger.setLevel(os.environ.get(LOG_LEVEL_VARIABLE, "INFO"))


def _run(
    run_dir: Path,
    rank: int,
    recorder: Recorder,
    failure: FailureWriter,
    pulse: Pulse,
    bring_up: BringUp | None,
) -> None:
    plan = Plan.load(run_dir).staged  # no launcher may have been before
    # torchrun sets it only on hosts with several ranks, so on some hosts of a run and not on others.
    os.environ.setdefault(THREADS_VARIABLE, str(plan.threads_per_rank))
    with Watchdog(plan, rank, run_dir, recorder, words=failure, pulse=pulse) as watchdog:
        with recorder.span(IMPORT), progress.during(IMPORT), process.importing():
            from ppwork.worker import role
        failure.also = partial(write_flight, run_dir, rank)
        os.environ.setdefault(NCCL_DUMP_VARIABLE, str(run_dir / NCCL_DUMP_NAME))
        role.play(plan, run_dir, rank, recorder, failure, watchdog, bring_up or role.bring_up)
