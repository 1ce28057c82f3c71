"""The entry of one rank: ``torchrun -m ppwork worker RUN_DIR``.

Order matters: lifeline, log, pulse and watchdog, then torch, so nothing imports it before; the work itself is
in ``role``. Whatever happens, this rank writes its failure record, tells its peers, and leaves with an exit
code of ``process``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

from ppwork import process
from ppwork.errors import named_ranks
from ppwork.plan import Plan
from ppwork.process import LOG_LEVEL_VARIABLE, UNWRITABLE
from ppwork.records.pulse import Pulse, read_pulse
from ppwork.records.run import log_file
from ppwork.records.spans import Recorder, span_file
from ppwork.worker import progress
from ppwork.worker.farewell import STAY_S, stay
from ppwork.worker.last_words import FailureWriter, write_flight
from ppwork.worker.watchdog import Watchdog

log = logging.getLogger("ppwork.worker.main")


def main(run_dir: Path) -> int:
    """Run this rank to its end and return its exit code; one that fails ends the process with it."""
    process.hold_if_asked()
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
    failure = FailureWriter(run_dir, rank, recorder)
    with recorder, failure:
        _run(run_dir, rank, recorder, failure, pulse)
    pulse.leave(failure.exit_code)
    if failure.exit_code:
        _stay_for_peers(run_dir, failure)
        # Groups are broken and lanes may be stuck in the backend: no destructor may run (rule R10).
        with contextlib.suppress(OSError):  # a full disk
            logging.shutdown()
            sys.stderr.flush()
        os._exit(failure.exit_code)
    return 0


def _stay_for_peers(run_dir: Path, failure: FailureWriter) -> None:
    """Stay until the peers that were told have written their records, at most ``STAY_S`` after our own."""
    if failure.record is None:
        return
    silent = stay(failure.farewell, partial(read_pulse, run_dir), failure.record.at_ns / 1e9 + STAY_S)
    if silent:
        log.warning("left while %s had not spoken", named_ranks(silent))


def _log_to(path: Path, rank: int) -> None:
    """Send everything this process prints, C++ included, to its log."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    handler = logging.StreamHandler(sys.stderr)
    line = f"+%(relativeCreated)dms r{rank} %(levelname)s %(name)s | %(message)s"
    handler.setFormatter(logging.Formatter(line))
    logger = logging.getLogger("ppwork")
    logger.addHandler(handler)
    logger.setLevel(os.environ.get(LOG_LEVEL_VARIABLE, "INFO"))


def _run(run_dir: Path, rank: int, recorder: Recorder, failure: FailureWriter, pulse: Pulse) -> None:
    plan = Plan.load(run_dir)
    with Watchdog(plan, rank, run_dir, recorder, words=failure, pulse=pulse) as watchdog:
        with progress.during("import torch"), process.importing():
            from ppwork.worker import role
        failure.also = partial(write_flight, run_dir, rank)
        role.play(plan, run_dir, rank, recorder, failure, watchdog)
