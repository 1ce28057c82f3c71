"""What a failing rank writes down before it leaves, and which of several records is the cause.

Pure: no torch and no processes. A record is written whole or not at all, because the writer may be killed
by torchrun a tenth of a second later.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import PeerLostError, PeerTimeoutError, PPWorkError, TerminalNotice, message_of
from ppwork.peers import as_peer_error
from ppwork.stacks import is_users

if TYPE_CHECKING:
    from collections.abc import Sequence

SYMPTOMS = (TerminalNotice, PeerLostError, PeerTimeoutError)
"""Errors that say a peer is gone: whoever made it go has the cause, if it could still speak.

A backend's bare ``RuntimeError`` with such a text is one, too: a stage may call torch.distributed itself.
"""


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
        said = PPWorkError(message_of(error), check_first="the traceback in this rank's log")
    return FailureRecord(
        rank=rank,
        error_type=type(error).__name__,
        what=_text(said.what),
        where={"rank": rank, **said.where},
        check_first=said.check_first,
        symptom=any(_is_symptom(one) for one in _chain(error)),
        at_ns=time.monotonic_ns(),
        traceback=_text("".join(traceback.format_exception(error))),
        source=_source_of(error),
        last_instants=last_instants,
    )


def _text(said: str) -> str:
    # A file name that is not UTF-8 stands in messages as lone surrogates, which JSON cannot carry.
    return said.encode(errors="backslashreplace").decode()


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and what it was raised from, the innermost last."""
    found = [error]
    # `raise error from error` is legal, so a cause may come round again.
    while (cause := found[-1].__cause__) is not None and all(cause is not one for one in found):
        found.append(cause)
    return found


def _is_symptom(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return as_peer_error(error, "a call") is not None
    return isinstance(error, SYMPTOMS)


def _source_of(error: BaseException) -> str:
    # The innermost cause is where the trouble began: a StageError wraps the user's exception.
    frames = reversed(traceback.extract_tb(_chain(error)[-1].__traceback__))
    return next((f"{one.filename}:{one.lineno}" for one in frames if is_users(one.filename)), "")


def failure_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's record."""
    return Path(run_dir) / f"failure-rank{rank}.json"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a temporary name beside it, then a rename.

    What was written survives the death of the process, by SIGKILL too: the kernel has it. It is not forced
    onto the disk (fsync), so a host that loses its power may lose it.

    Raises:
        OSError: It could not be written; the old file is as it was and nothing else is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)


def write_record(run_dir: Path, record: FailureRecord) -> None:
    """Write a record into the run folder."""
    write_whole(failure_file(run_dir, record.rank), msgspec.json.encode(record))


def read_records(run_dir: Path, world_size: int) -> list[FailureRecord]:
    """Read the records that the ranks of a run left; a file that does not read is passed over."""
    found: list[FailureRecord] = []
    for rank in range(world_size):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            data = failure_file(run_dir, rank).read_bytes()
            found.append(msgspec.json.decode(data, type=FailureRecord))
    return found


def first_cause(records: Sequence[FailureRecord]) -> FailureRecord | None:
    """Return the record that explains the others: causes before symptoms, then by time."""
    return min(records, key=lambda record: (record.symptom, record.at_ns), default=None)
