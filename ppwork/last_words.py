"""A rank's last words: one failure record, whichever thread speaks first, and the code to leave with."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec

from ppwork.errors import StuckError
from ppwork.exit_codes import FAILED, SECONDARY, STUCK, UNWRITABLE
from ppwork.failure import FailureRecord, record_of, write_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ppwork.timeline import Recorder

PATIENCE_S = 5.0
"""So long one thread waits for another that is writing the record: writing takes milliseconds."""

log = logging.getLogger("ppwork.worker")


class LastWords:
    """Writes this rank's failure record once; the first error is the one that is written.

    Args:
        run_dir: The run's folder.
        rank: This rank.
        recorder: Its last instants go into the record.

    Attributes:
        exit_code: What this rank must leave with, by what it said; 0 while it has said nothing.
        also: Called once the record is written, on the same thread: what else this rank can leave behind.
    """

    def __init__(self, run_dir: Path, rank: int, recorder: Recorder) -> None:
        self._run_dir, self._rank, self._recorder = run_dir, rank, recorder
        self._lock = threading.Lock()
        self._said: FailureRecord | None = None
        self.exit_code = 0
        self.also: Callable[[], object] = lambda: None

    def say(self, error: BaseException, *, source: str = "", stack: str = "") -> bool:
        """Write the record and the log, if this rank has said nothing yet; return whether this was the first.

        Never raises for want of a disk: the log gets what it can take, and ``exit_code`` says the rest.

        Args:
            error: What went wrong.
            source: The user's line, where the error itself has no traceback.
            stack: Stands in for a traceback in the same case.
        """
        # A bound: making a record asks the user's exception for its text, and that may never come back.
        if not self._lock.acquire(timeout=PATIENCE_S):
            self.exit_code = self.exit_code or UNWRITABLE
            return False
        try:
            if self._said is not None:
                return False
            record = record_of(error, self._rank, self._recorder.last_instants())
            if source or stack:
                record = msgspec.structs.replace(record, source=source, traceback=stack)
            self._said = record
            self.exit_code = _code_of(error, record)
            self._write(record)
            log.error("rank %d failed", self._rank, exc_info=error)
            self.also()
        finally:
            self._lock.release()
        return True

    def _write(self, record: FailureRecord) -> None:
        try:
            write_record(self._run_dir, record)
        except OSError as unwritten:
            self.exit_code = UNWRITABLE
            why = unwritten.strerror
            log.error("rank %d could not write its failure record: %s", self._rank, why)  # noqa: TRY400  no traceback


def _code_of(error: BaseException, record: FailureRecord) -> int:
    if isinstance(error, StuckError):
        return STUCK
    return SECONDARY if record.symptom else FAILED
