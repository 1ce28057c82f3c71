"""What a failing rank writes down before it leaves, and which of several records is the cause.

Pure: no torch and no processes. A record is written whole or not at all, because the writer may be killed
by torchrun a tenth of a second later.
"""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import PeerLostError, PeerTimeoutError, PPWorkError, TerminalNotice, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SYMPTOMS = (TerminalNotice, PeerLostError, PeerTimeoutError)
"""Errors that say a peer is gone: whoever made it go has the cause, if it could still speak."""


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's last words."""

    rank: int
    error_type: str
    what: str
    where: dict[str, Any]
    check_first: str
    symptom: bool
    at_ns: int
    """``time.monotonic_ns`` of that rank's host."""
    traceback: str
    source: str = ""
    """``file:line`` of the last frame outside ppwork and installed libraries: usually the user's own code."""
    last_instants: dict[str, dict[str, Any]] = {}
    """The newest commitment point or instant of each lane."""

    def __str__(self) -> str:
        error = PPWorkError(self.what, where=self.where, check_first=self.check_first)
        at = f"\n  at: {self.source}" if self.source else ""
        return f"{self.error_type}: {error}{at}"


def record_of(error: BaseException, rank: int, last_instants: dict[str, dict[str, Any]]) -> FailureRecord:
    """Make the record of an error on this rank, now."""
    said = error
    if not isinstance(said, PPWorkError):
        said = PPWorkError(text_of(error), check_first="the traceback in this rank's log")
    return FailureRecord(
        rank=rank,
        error_type=type(error).__name__,
        what=_text(said.what),
        where={"rank": rank, **said.where},
        check_first=said.check_first,
        symptom=isinstance(error, SYMPTOMS),
        at_ns=time.monotonic_ns(),
        traceback=_text("".join(traceback.format_exception(error))),
        source=_source_of(error),
        last_instants=last_instants,
    )


def _text(said: str) -> str:
    # A file name that is not UTF-8 stands in messages as lone surrogates, which JSON cannot carry.
    return said.encode(errors="backslashreplace").decode()


def _source_of(error: BaseException) -> str:
    # The innermost cause is where the trouble began: a StageError wraps the user's exception.
    seen = {id(error)}
    # `raise error from error` is legal, so a cause may come round again.
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    standard = sysconfig.get_path("stdlib") + os.sep
    own = str(Path(__file__).parent) + os.sep
    workloads = str(Path(own) / "workloads") + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        installed = f"{os.sep}site-packages{os.sep}" in frame.filename
        foreign = installed or frame.filename.startswith(("<", standard, own))
        if not foreign or frame.filename.startswith(workloads):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def failure_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's record."""
    return Path(run_dir) / f"failure-rank{rank}.json"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a temporary name beside it, then a rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_record(run_dir: Path, record: FailureRecord) -> None:
    """Write a record into the run folder."""
    write_whole(failure_file(run_dir, record.rank), msgspec.json.encode(record))


def read_records(run_dir: Path, world_size: int) -> list[FailureRecord]:
    """Read the records that the ranks of a run left."""
    paths = [failure_file(run_dir, rank) for rank in range(world_size)]
    return [msgspec.json.decode(path.read_bytes(), type=FailureRecord) for path in paths if path.exists()]


def first_cause(records: Sequence[FailureRecord]) -> FailureRecord | None:
    """Return the record that explains the others: causes before symptoms, then by time."""
    return min(records, key=lambda record: (record.symptom, record.at_ns), default=None)
