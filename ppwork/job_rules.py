"""Rules that read a job's cause from its logs: each takes the evidence and says what it found, or nothing.

These have evidence at first hand: an exception, a signal, or a text of the backend that names ranks. The
order in which they are asked is in ``logs_diagnosis``.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import TYPE_CHECKING

from ppwork.errors import named_ranks
from ppwork.job_evidence import DETAIL, ENDED_BY_AGENT, STACKS, Found, capital, said_of
from ppwork.torchrun_logs import LONGER, death
from ppwork.watchdog_lines import lagging

if TYPE_CHECKING:
    from ppwork.job_evidence import Evidence

_PRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+)(?:, )?OpType=(\w+)"
    r"(?:, TensorShape=\[([^\]]*)\], TensorDtypes=(\w+))?"
)
_MISSED = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier in \d+ ms")


def mismatch(evidence: Evidence) -> Found | None:
    """DETAIL: each rank tells its own call; what it says of others may be a call of DETAIL itself."""
    prints: dict[int, tuple[str | None, ...]] = {}
    for log in evidence.job.ranks.values():
        for own in _PRINT.finditer(log.text):
            prints.setdefault(int(own[1]), own.groups()[1:])
            break
    if len(set(prints.values())) < 2:
        return None
    (usual, most), *_ = Counter(prints.values()).most_common()
    odd = evidence.first_of(rank for rank, one in prints.items() if one != usual or most == 1)
    others = tuple(rank for rank in prints if rank not in odd) or odd[1:]
    what = f"{capital(odd[:1])} called {_call(prints[odd[0]])} where {named_ranks(others)} called "
    what += f"{_call(prints[others[0]])}."
    unknown = (f"which of {named_ranks(tuple(prints))} is the wrong one",) if most == 1 else ()
    return Found(
        odd,
        "CollectiveMismatch",
        what,
        "what makes this rank's branch, count or shape differ just before this call",
        evidence.place.get(odd[0]),
        unknown,
    )


def _call(one: tuple[str | None, ...]) -> str:
    number, op, shape, dtype = one
    return f"{op} number {number}" + (f" on [{shape}] {dtype}" if shape is not None else "")


def barrier(evidence: Evidence) -> Found | None:
    """``monitored_barrier`` names who is missing."""
    for rank, log in evidence.job.ranks.items():
        if (missed := _MISSED.search(log.text)) is not None:
            ranks = tuple(int(one) for one in re.findall(r"\d+", missed[1]))
            return Found(
                ranks,
                "NeverCame",
                f"{capital(ranks)} never came to the monitored_barrier of rank {rank}.",
                f"where {named_ranks(ranks)} went instead; {STACKS}",
                evidence.place.get(ranks[0]),
            )
    return None


def raised(evidence: Evidence) -> Found | None:
    """A rank whose own exception is not about a peer."""
    if not evidence.raised:
        return None
    ranks = evidence.first_of(evidence.raised)
    error = evidence.error[ranks[0]]
    also = f" So did {named_ranks(ranks[1:])}." if ranks[1:] else ""
    return Found(
        ranks[:1],
        error.error,
        f"Rank {ranks[0]} raised {said_of(error)}{also}",
        "the line above and the traceback in its log",
        evidence.place[ranks[0]],
    )


def aborted(evidence: Evidence) -> Found | None:
    """Of gloo: it aborts a process that is sent more than the buffer it posted; it cannot be caught."""
    aborted = [r for r, log in evidence.job.ranks.items() if LONGER.search(log.text)]
    if not aborted and LONGER.search(evidence.job.console):
        aborted = [r for r, code in evidence.codes.items() if code == -signal.SIGABRT]
    if len(aborted) != 1:
        return None
    rank, world = aborted[0], len(evidence.job.ranks)
    sizes = LONGER.search(evidence.job.ranks[rank].text) or LONGER.search(evidence.job.console)
    assert sizes is not None  # noqa: S101  found above
    calls = set(evidence.in_call().values())
    sent = f"a message of {sizes[1]} bytes where it expected {sizes[2]}"
    if calls == {"all_reduce"}:
        # gloo's ring: each rank takes its shares from the next one, so these two are certain to differ.
        ranks: tuple[int, ...] = (rank, (rank + 1) % world)
        what = f"{capital(ranks)} called all_reduce with different sizes: rank {rank} was sent {sent}"
        unknown = (f"which of {named_ranks(ranks)} has the wrong size",)
    else:
        ranks = (rank,)
        what = f"Rank {rank} was sent {sent}"
        unknown = ("which rank sent it",)
    stack = evidence.place.get(rank) or next((evidence.place[r] for r in evidence.in_call()), None)
    return Found(ranks, "SizeMismatch", f"{what}, and gloo aborted it.", DETAIL, stack, unknown)


def killed(evidence: Evidence) -> Found | None:
    """A rank that a signal or an exit code of its own ended without an exception."""
    ended = [
        rank
        for rank in evidence.first_of(evidence.codes)
        if evidence.codes[rank] not in (0, *ENDED_BY_AGENT) and rank not in evidence.error
    ]
    everybody = [rank for rank in ended if evidence.codes[rank] == -signal.SIGABRT]
    if not ended or len(everybody) == len(evidence.job.ranks):
        return None  # somebody ended the whole job to see its stacks
    rank = ended[0]
    if rank != evidence.job.report.first and not evidence.lost:
        return None  # torchrun kills those that do not follow its SIGTERM
    stack = evidence.place.get(rank)
    crash = f" ({stack.error})" if stack is not None and stack.blind else ""
    memory = "; the kernel's log, if it was the out-of-memory killer" if evidence.codes[rank] == -9 else ""
    return Found(
        (rank,),
        "RankDied",
        f"Rank {rank} {death(evidence.codes[rank])}{crash} and showed no exception.",
        f"the end of its log{memory}",
        stack,
    )


def watchdog(evidence: Evidence) -> Found | None:
    """NCCL's watchdog names the operation that did not end, by number."""
    texts = {rank: log.text for rank, log in evidence.job.ranks.items()}
    found = lagging(texts, evidence.job.console)
    if found is None:
        return None
    return Found(found.ranks, "CollectiveTimeout", found.what, found.check_first, None, found.unknown)
