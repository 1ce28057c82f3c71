"""Failure records, each written by a failing rank before it leaves, and the choice of the cause among them.

No torch and no processes. A record is written whole or not at all, because torchrun may kill the writer a
tenth of a second later.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ppwork.errors import (
    WHERE_KEYS,
    PeerLostError,
    PeerTimeoutError,
    PPWorkError,
    TerminalNotice,
    cause_of,
    message_of,
)
from ppwork.protocol.backend_errors import as_peer_error
from ppwork.records.files import read_json, write_whole

OWN = str(Path(__file__).parent.parent) + "/"
WORKLOADS = OWN + "workloads/"
_LIBRARY = re.compile(
    r"^<|/(site|dist)-packages/|/lib(64)?/python3[.\d]*/|/torch/(distributed|nn|utils|cuda)/"
)
_COMPILED = re.compile(r"/torchinductor[_/]|/c[0-9a-z]{51}\.py$")
"""Files written by torch's compiler."""
OF_RANK = "this rank's log"
STACKS_IN_LOG = f"the stacks at the end of {OF_RANK}"
"""Where to look first if a rank is stuck; without a log its record has the stack."""
SYMPTOMS = (TerminalNotice, PeerLostError, PeerTimeoutError)
"""Errors that say that a peer is gone: the cause is in the peer's record, if it could still write one.

A backend's bare ``RuntimeError`` with such a text is a symptom, too: a stage may call torch.distributed
itself.
"""


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's account of its failure."""

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
    between: tuple[int, ...] = ()
    """As in ``PPWorkError``; empty: the record is about this rank."""
    last_instants: dict[str, dict[str, Any]] = {}
    """The newest commitment point or other instant of each lane."""

    def __str__(self) -> str:
        error = PPWorkError(self.what, where=self.where, check_first=self.check_first)
        at = f"\n  at: {self.source}" if self.source else ""
        return f"{self.error_type}: {error}{at}"


def record_of(
    error: BaseException,
    rank: int,
    last_instants: dict[str, dict[str, Any]],
    *,
    where: Mapping[str, Any] | None = None,
    log: str = "",
) -> FailureRecord:
    """Make the record of an error on this rank, now.

    Args:
        error: The error; one of ours knows where it was.
        rank: This rank.
        last_instants: The recorder's last instants.
        where: Where the rank was, for an error that is not ours.
        log: The file with its traceback or stack, if this rank has no log.
    """
    message = error
    if not isinstance(message, PPWorkError):
        notes = map(str, getattr(error, "__notes__", ()))
        check_first = "; ".join([*notes, f"the traceback in {log or OF_RANK}"])
        message = PPWorkError(
            (message_of(error) + cause_of(error)).lstrip(), where=where, check_first=check_first
        )
    check_first = message.check_first
    if log:
        check_first = check_first.replace(STACKS_IN_LOG, f"the stack in {log}")
    return FailureRecord(
        rank=rank,
        error_type=type(error).__name__,
        what=legible(message.what),
        where={"rank": rank, **message.where},
        check_first=legible(check_first),
        symptom=any(map(_is_symptom, _chain(error))),
        at_ns=time.monotonic_ns(),
        traceback=legible("".join(traceback.format_exception(error))),
        source=legible(message.source or source_of(error)),
        between=message.between,
        last_instants=last_instants,
    )


def legible(message: str) -> str:
    """Return a message in a form that JSON can carry."""
    # Python decodes a file name that is not UTF-8 to lone surrogates, which JSON cannot carry.
    return message.encode(errors="backslashreplace").decode()


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes, the innermost last."""
    chain = [error]
    # `raise error from error` is legal, so a cause may come round again.
    while (cause := chain[-1].__cause__) is not None and all(cause is not earlier for earlier in chain):
        chain.append(cause)
    return chain


def _is_symptom(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return as_peer_error(error, "a call") is not None
    return isinstance(error, SYMPTOMS)


def source_of(error: BaseException) -> str:
    """Return ``file:line`` of the user's code that an error came from; empty if there is none."""
    # The innermost cause is where the trouble began: a StageError wraps the user's exception. If that has
    # only frames of libraries or of ours, the line is in the error that was raised from it.
    frames = (
        f for each in reversed(_chain(error)) for f in reversed(traceback.extract_tb(each.__traceback__))
    )
    return next((f"{frame.filename}:{frame.lineno}" for frame in frames if is_users(frame.filename)), "")


def is_users(file: str) -> bool:
    """Say whether a file of a stack is probably the user's own: not Python's, installed, compiled or ours.

    The workloads that ship with the package count as the user's: they take the place of a user's stages.
    """
    others = file.startswith(OWN) or _LIBRARY.search(file) or _COMPILED.search(file)
    return file.startswith(WORKLOADS) or not others


def failure_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's record."""
    return Path(run_dir) / f"failure-rank{rank}.json"


def write_record(run_dir: Path, record: FailureRecord) -> None:
    """Write a record into the run folder."""
    write_whole(failure_file(run_dir, record.rank), msgspec.json.encode(record))


def read_records(run_dir: Path, world_size: int) -> list[FailureRecord]:
    """Read the records that the ranks of a run left; skip a file that does not read as its rank's."""
    return [record for rank in range(world_size) if (record := read_record(run_dir, rank)) is not None]


def read_record(run_dir: Path, rank: int) -> FailureRecord | None:
    """Read a rank's record; ``None`` if there is none, or if it does not read as that rank's."""
    record = read_json(failure_file(run_dir, rank), FailureRecord)
    return record if record is not None and _is_of(rank, record) else None


def _is_of(rank: int, record: FailureRecord) -> bool:
    words = {"role", "group"}
    sound = all(isinstance(fact, str if key in words else int) for key, fact in record.where.items())
    return sound and record.rank == rank and record.where.keys() <= set(WHERE_KEYS)


def first_cause(records: Sequence[FailureRecord], apart: Collection[int] = ()) -> FailureRecord | None:
    """Return the record that explains the others: causes before symptoms, then by time.

    Args:
        records: Failure records of a run, their times on one clock.
        apart: Ranks whose clock is not known; their records come after all others.
    """
    return min(records, key=lambda record: (record.symptom, record.rank in apart, record.at_ns), default=None)
