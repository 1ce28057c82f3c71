"""A rank's last words: one failure record, written by the first thread, and the code to leave with."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from ppwork.errors import PeerLostError, PeerTimeoutError, StuckError, named_ranks
from ppwork.process import FAILED, SECONDARY, STUCK, UNWRITABLE
from ppwork.records.failure import FailureRecord, failure_file, first_cause, legible, record_of, write_record
from ppwork.records.files import read_json, write_whole
from ppwork.records.flight import Flight, flight_file, flight_of
from ppwork.records.last_stacks import crashes
from ppwork.records.pulse import gone_ranks, read_pulse
from ppwork.records.run import log_file
from ppwork.records.spans import Recorder
from ppwork.worker.exit_barrier import STAY_S, ExitBarrier, stay

PATIENCE_S = 5.0
"""Seconds that one thread waits while another writes the record: writing takes milliseconds."""

DEATH_S = 0.3
"""Seconds within which a process is gone after its connections closed: it takes milliseconds."""

FLIGHT_S = 1.0
"""Seconds that the flight record may take: it takes milliseconds if the device answers."""

log = logging.getLogger("ppwork.worker.main")


class FailureWriter:
    """Writes this rank's failure record once, for the first error, with the recorder's last instants.

    Attributes:
        run_dir: Folder of the record.
        exit_code: Code that this rank must leave with, given its record; 0 while it has no record.
        record: The record that was written, or ``None``.
        exit_barrier: Peers for which this rank stays before it leaves; set by code that knows what they hear.
        also: Called after the record is written, on the same thread, to write anything else worth keeping.
    """

    def __init__(self, run_dir: Path, rank: int, recorder: Recorder) -> None:
        self.run_dir, self._rank, self._recorder = run_dir, rank, recorder
        self._lock = threading.Lock()
        self.record: FailureRecord | None = None
        self.exit_barrier = ExitBarrier()
        self.exit_code = 0
        self.also: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Write the error that ended the block, and go on after it: ``exit_code`` says what is left to do."""
        if error is not None:
            self.write(error)
        return True

    def write(
        self,
        error: BaseException,
        *,
        source: str = "",
        stack: str = "",
        where: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write the record and the log, if this rank has not written any; return whether this was the first.

        A full disk never raises: the log gets what fits, and ``exit_code`` says that the rest is missing.

        Args:
            error: The error.
            source: The user's line, if the error itself has no traceback.
            stack: Replaces the traceback in the same case.
            where: Where this rank was, for an error that is not ours.
        """
        # A bound: making a record asks the user's exception for its text, which may never return.
        if not self._lock.acquire(timeout=PATIENCE_S):
            self.exit_code = self.exit_code or UNWRITABLE
            return False
        try:
            if self.record is not None:
                return False
            # Under another torchrun no log is known, and the record has the traceback.
            has_log = log_file(self.run_dir, self._rank).exists()
            record = record_of(
                error,
                self._rank,
                self._recorder.last_instants(),
                where=where,
                log="" if has_log else failure_file(self.run_dir, self._rank).name,
            )
            if source or stack:
                record = msgspec.structs.replace(record, source=legible(source), traceback=legible(stack))
            self.record = record
            self.exit_code = (
                STUCK if isinstance(error, StuckError) else SECONDARY if record.symptom else FAILED
            )
            try:
                write_record(self.run_dir, record)
            except OSError as unwritten:
                self.exit_code = UNWRITABLE
                cause = unwritten.strerror
                log.error("rank %d could not write its failure record: %s", self._rank, cause)  # noqa: TRY400  no traceback
            if has_log or threading.current_thread() is not threading.main_thread():
                at = f" at {record.source}" if record.source else ""
                log.error("rank %d %s%s", self._rank, _ending(record), at, exc_info=error)
            else:  # Python shows the exception on the console when it goes on from here
                self._point_at(record)
            if not (has_log or record.symptom):
                tell_torchrun("\n".join(self._in_short(record)))
            self.also()
        finally:
            self._lock.release()
        return True

    def _point_at(self, record: FailureRecord) -> None:
        """Log in a line what failed and how to read the rest, unless a peer that knows more has said so."""
        crashed, waited = dict[int, str](), record.error_type == PeerTimeoutError.__name__
        if record.symptom:  # a rank that crashed could write only to the folder
            crashed = crashes(self.run_dir)
            for rank, stacks in crashed.items():
                log.error("rank %d crashed:\n%s", rank, stacks)
            written = (read_json(path, FailureRecord) for path in self.run_dir.glob("failure-rank*.json"))
            # Of ranks that all lost a peer the first one tells: each may see the others' records. Who waited
            # in vain tells where in any case: the first of these is no more to blame.
            cause = first_cause([record, *filter(None, written)]) or record
            if cause is not record and not (waited and cause.symptom):
                return
        how = ""
        if record.error_type == PeerLostError.__name__ and not crashed and (gone := self._gone_ranks()):
            left = "is gone and left no record" if len(gone) == 1 else "are gone and left no records"
            how = f"{named_ranks(gone)} {left} (killed, or `os._exit`?); rank {self._rank} lost it"
        log.error("%s\n%s", *self._in_short(record, how))

    def _in_short(self, record: FailureRecord, how: str = "") -> tuple[str, str]:
        """Return what failed, and how to read the rest."""
        rest = f"  all of it: ppwork diagnose {shlex.quote(str(self.run_dir))}"
        if record.between:  # the rank that noticed is no more to blame
            return record.what, rest
        error = f"{record.error_type}: {record.what.partition(chr(10))[0]}".rstrip(".: ")
        at = f", at {record.source}" if record.source and record.source not in record.what else ""
        return f"{how or f'rank {self._rank} {_ending(record)}'}: {error}{at}", rest

    def _gone_ranks(self) -> list[int]:
        """Return the ranks of this host that died; their connections close a little before."""
        until_s = time.monotonic() + DEATH_S
        while not (gone := gone_ranks(self.run_dir)) and time.monotonic() < until_s:
            time.sleep(0.02)
        return gone

    def stay_for_peers(self) -> None:
        """Stay until the told peers have written their records, at most for ``STAY_S``."""
        if self.record is None:
            return
        until_s = self.record.at_ns / 1e9 + STAY_S
        silent = stay(self.exit_barrier, partial(read_pulse, self.run_dir), until_s)
        if silent:
            log.info("left while %s had not spoken", named_ranks(silent))


def tell_torchrun(said: str) -> None:
    """Let torchrun's closing report, the last thing on its console, repeat what this rank said.

    A rank that ended because of another one says nothing: torchrun takes the earliest as the root cause.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if path and not Path(path).exists():
        # torchrun counts whole seconds: a peer that ends in the same one must not count as the earliest.
        extra = {"py_callstack": said, "timestamp": str(int(time.time()) - 1)}
        with contextlib.suppress(OSError):
            Path(path).write_bytes(msgspec.json.encode({"message": {"message": said, "extraInfo": extra}}))


def _ending(record: FailureRecord) -> str:
    if record.error_type == PeerTimeoutError.__name__:
        return "waited in vain"
    return "ended because of another one" if record.symptom else "failed"


def write_flight(run_dir: Path, rank: int) -> bool:
    """Write which collectives this rank began last; return whether there were any.

    torch's functions are private and may disappear. A failing rank that cannot write this has already written
    its record. Any thread may call this.

    Blocks:
        For at most ``FLIGHT_S``: NCCL's record queries the device, which may not answer any more.
    """
    written: list[Flight] = []

    def write() -> None:
        dumps = []
        for kind in ("fr", "nccl"):  # one after the other: a failed or silent device costs NCCL's half alone
            with contextlib.suppress(ImportError, AttributeError, ValueError, OSError, RuntimeError):
                from torch._C import _distributed_c10d as c10d

                dumps.append(getattr(c10d, f"_dump_{kind}_trace_json")())
                flight = flight_of(rank, *dumps)
                write_whole(flight_file(run_dir, rank), msgspec.json.encode(flight))
                written.append(flight)

    thread = threading.Thread(target=write, name="flight", daemon=True)
    thread.start()
    thread.join(FLIGHT_S)
    return any(flight.collectives for flight in written)
