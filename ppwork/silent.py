"""What is said for ranks that left no record of a cause: killed, stopped, aborted, or unable to write one."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ppwork.agent_watch import killed_by_us
from ppwork.errors import PeerFrozenError, StuckError
from ppwork.exit_codes import FAILED, ORPHANED, SECONDARY, UNWRITABLE
from ppwork.failure import FailureRecord
from ppwork.remains import MEANINGS
from ppwork.stacks import Stack, thread_stacks, tracebacks
from ppwork.torchrun_logs import LONGER, death

if TYPE_CHECKING:
    from ppwork.remains import Remains

RANK_DIED = "RankDied"
"""The error type of a rank whose process ended without a word."""
_STOPPED = re.compile(r"^ppwork: rank (\d+) \(pid \d+, stopped\)", re.MULTILINE)
_ENDED_BY_OTHERS = (None, 0, -signal.SIGTERM, -signal.SIGINT)


def silent_causes(left: Remains) -> list[FailureRecord]:
    """Make records for ranks that left none of a cause, as far as something shows what happened to them."""
    said = {record.rank: record for record in left.records}
    found: list[FailureRecord | None] = []
    for rank in range(left.topology.world_size):
        if rank not in said:
            found.append(_silent(left, rank))
        elif said[rank].symptom:
            found.append(_frozen(left, rank))  # it went on, and found that its peers had left
    return [record for record in found if record is not None]


def _silent(left: Remains, rank: int) -> FailureRecord | None:
    text, code, frozen = left.text_of(rank), left.code_of(rank), _frozen(left, rank)
    if frozen is not None and "SIGSTOP" in frozen.what:
        return frozen  # the backstop of its watchdog is a clock on the wall, and may fire when it goes on
    if (longer := LONGER.search(text)) is not None:
        what = f"Rank {rank} was aborted by gloo: {longer[1]} bytes came into a buffer of {longer[2]}."
        return _made(left, rank, RANK_DIED, what, "does anybody else use this group?")
    stacks = thread_stacks(text)
    stack = next((one for one in reversed(stacks) if one.users is not None), None)
    blind = next((one.error for one in stacks if one.error), "")
    if blind.startswith("Timeout") and code in (FAILED, None):
        what = f"Rank {rank} made no progress and held the interpreter, so that no watchdog could run."
        check = "the stack in its log: a call that never gives back Python's lock (GIL)"
        return _made(left, rank, StuckError.__name__, what, check, stack)
    if frozen is not None:
        return frozen
    if blind.startswith("Fatal Python error") and code is not None and code < 0:
        what = f"Rank {rank} {death(code)} and left no record: {blind}."
        return _made(left, rank, RANK_DIED, what, "the stack in its log", stack)
    if code in _ENDED_BY_OTHERS or rank in killed_by_us(left.torchrun_text):
        return None
    assert code is not None  # noqa: S101  None is among those
    errors = tracebacks(text)
    if code == FAILED and errors:
        what = f"Rank {rank} failed before it could write a record: {errors[-1].error}: {errors[-1].message}"
        return _made(left, rank, errors[-1].error, what, "the traceback in its log", errors[-1])
    what = f"Rank {rank} {MEANINGS.get(code) or death(code)} and left no record."
    check = "the end of its log; the kernel's log if it was the out-of-memory killer"
    check = "free space in the run folder" if code == UNWRITABLE else check
    record = _made(left, rank, RANK_DIED, what, check, stack)
    return replace(record, symptom=code in (SECONDARY, ORPHANED))


def _frozen(left: Remains, rank: int) -> FailureRecord | None:
    """Return what peers, or the launcher, saw of a rank that was there and did not run."""
    about = [record for record in left.records if record.where.get("peer") == rank]
    saw = [record for record in about if record.error_type == PeerFrozenError.__name__]
    if saw:
        first = min(saw, key=lambda record: record.at_ns)
        what = f"{first.what.rstrip('.')}; rank {first.rank} noticed."
        made = _made(left, rank, first.error_type, what, first.check_first)
        return replace(made, where={**made.where, "peer": first.rank})
    if str(rank) in _STOPPED.findall(left.torchrun_text):
        what = f"Rank {rank}'s process was stopped (SIGSTOP) and had to be killed."
        return _made(left, rank, PeerFrozenError.__name__, what, "a debugger, Ctrl-Z, a batch system?")
    return None


def _made(
    left: Remains, rank: int, error_type: str, what: str, check_first: str, stack: Stack | None = None
) -> FailureRecord:
    users = stack.users if stack is not None else None
    return FailureRecord(
        rank=rank,
        error_type=error_type,
        what=what,
        where={"rank": rank, **left.ids_of(rank)},
        check_first=check_first,
        symptom=False,
        at_ns=left.last_sign_ns(rank),
        traceback="",
        source=users.at if users is not None else "",
    )
