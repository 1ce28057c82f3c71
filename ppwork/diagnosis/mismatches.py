"""Rules of a job's diagnosis: the backend compared the ranks, or named one that was missing."""

from __future__ import annotations

import re
import signal
from collections import Counter
from dataclasses import replace

from ppwork.diagnosis.findings import Finding
from ppwork.diagnosis.job_evidence import DETAIL, JobEvidence, capital
from ppwork.diagnosis.logs import LONGER
from ppwork.diagnosis.nccl import lagging, terminated
from ppwork.diagnosis.weights import COMPARED, DIED, DIED_FIRST, SYMPTOMS, WATCHED
from ppwork.errors import named_ranks

WHY_ODD = "what makes this rank's branch, count or shape differ just before this call"
Fingerprint = tuple[str | None, ...]
"""Number, operation, shape and type of a call, as ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` shows it."""
_PRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+)(?:, )?OpType=(\w+)"
    r"(?:, TensorShape=\[([^\]]*)\], TensorDtypes=(\w+))?"
)
_OTHER = re.compile(r"CollectiveFingerPrint\(.{0,800}?but Rank (\d+) is running collective")


def mismatch(evidence: JobEvidence) -> Finding | None:
    """DETAIL: each rank tells its own call; what it says of others may be a call of DETAIL itself."""
    prints: dict[int, Fingerprint] = {}
    blamed: dict[int, int] = {}
    told: dict[int, Fingerprint] = {}
    for log in evidence.job.ranks.values():
        if "CollectiveFingerPrint" not in log.text:
            continue
        own = _PRINT.search(log.text)
        if own is not None:
            prints.setdefault(int(own[1]), own.groups()[1:])
        other = _OTHER.search(log.text)
        if own is not None and other is not None:
            blamed[int(own[1])] = int(other[1])
            theirs = _PRINT.search(log.text, own.end())
            # Another operation may be one of DETAIL itself.
            if theirs is not None and theirs[1] == other[1] and theirs[3] == own[3] and theirs[4]:
                told[int(other[1])] = theirs.groups()[1:]
    if len(set(prints.values())) < 2:
        return _half_told(evidence, prints, blamed, told)
    (usual, most), *_ = Counter(prints.values()).most_common()
    odd = evidence.first_of(rank for rank, call in prints.items() if call != usual or most == 1)
    others = tuple(rank for rank in prints if rank not in odd) or odd[1:]
    what = f"{capital(odd[:1])} called {_call(prints[odd[0]])} where {named_ranks(others)} called "
    what += f"{_call(prints[others[0]])}."
    unknown = (f"which of {named_ranks(tuple(prints))} is the wrong one",) if most == 1 else ()
    stack = evidence.place.get(odd[0])
    return Finding(odd, "CollectiveMismatch", what, WHY_ODD, stack, unknown, weight=COMPARED)


def _half_told(
    evidence: JobEvidence,
    prints: dict[int, Fingerprint],
    blamed: dict[int, int],
    told: dict[int, Fingerprint],
) -> Finding | None:
    """DETAIL, and the rank that differed was ended before it could tell its call: the others name it."""
    spoke = tuple(sorted(rank for rank, other in blamed.items() if other not in prints))
    if not spoke:
        return None
    odd = blamed[spoke[0]]
    ranks = (odd, *spoke) if spoke[1:] else tuple(sorted((odd, *spoke)))
    instead = _call(told[odd]) if odd in told else "something else"
    what = f"{capital(spoke)} called {_call(prints[spoke[0]])} where rank {odd} called {instead}."
    unknown = [] if odd in told else [f"which call rank {odd} made instead: its log does not tell"]
    if not spoke[1:]:
        unknown.append(f"which of {named_ranks(ranks)} is the wrong one")
    stack = evidence.place.get(spoke[0])
    return Finding(ranks, "CollectiveMismatch", what, WHY_ODD, stack, tuple(unknown), weight=COMPARED)


def _call(fingerprint: Fingerprint) -> str:
    number, op, shape, dtype = fingerprint
    return f"{op} number {number}" + (f" on [{shape}] {dtype}" if shape is not None else "")


def aborted(evidence: JobEvidence) -> Finding | None:
    """Gloo aborts a process that is sent more than the buffer it posted; that cannot be caught."""
    sizes = {r: text for r, log in evidence.job.ranks.items() if (text := LONGER.search(log.text))}
    if not sizes and (text := LONGER.search(evidence.job.console)):
        sizes = {r: text for r, code in evidence.codes.items() if code == -signal.SIGABRT}
    if len(sizes) != 1:
        return None
    ((rank, text),) = sizes.items()
    world = len(evidence.job.ranks)
    sent = f"a message of {text[1]} bytes where it expected {text[2]}"
    if set(evidence.in_call().values()) == {"all_reduce"}:
        # gloo's ring: each rank takes its shares from the next one, so these two are certain to differ.
        ranks: tuple[int, ...] = (rank, (rank + 1) % world)
        what = f"{capital(ranks)} called all_reduce with different sizes: rank {rank} was sent {sent}"
        unknown: tuple[str, ...] = (f"which of {named_ranks(ranks)} has the wrong size",)
    else:
        ranks = (rank,)
        what = f"Rank {rank} was sent {sent}"
        unknown = ("which rank sent it",)
    stack = evidence.place.get(rank)
    # The others' line is its own only if all were at one.
    spots = {
        place.users.at: place for r in evidence.in_call() if (place := evidence.place[r]).users is not None
    }
    if (stack is None or stack.users is None) and len(spots) == 1:
        stack = next(iter(spots.values()))
    elif len(spots) > 1:
        unknown = (*unknown, f"in which call it was: {evidence.doing()}")
    what = f"{what}, and gloo aborted it."
    weight = DIED_FIRST + 1 if evidence.job.report.first == rank else DIED + 1
    return Finding(ranks, "SizeMismatch", what, DETAIL, stack, unknown, weight=weight)


def watchdog(evidence: JobEvidence) -> Finding | None:
    """NCCL's watchdog names the operation that did not end, by number; or it says why it ends the process."""
    texts = {rank: log.text for rank, log in evidence.job.ranks.items()}
    found = lagging(texts, evidence.job.console)
    if found is None:
        return _ended_by_nccl(terminated(texts, evidence.job.console))
    # Whoever waits is not to blame: where none is behind, nobody is named.
    ranks = () if "which rank failed to take part" in found.unknown else found.ranks
    return replace(found, ranks=ranks, weight=WATCHED)


def _ended_by_nccl(ends: dict[int, tuple[str, bool]]) -> Finding | None:
    """Return the ranks that the watchdog ended for an error of their own, or else for one about a peer."""
    if not ends:
        return None
    own = tuple(sorted(rank for rank, (_, is_about_peer) in ends.items() if not is_about_peer))
    if not own:
        what = f"NCCL ended {named_ranks(tuple(sorted(ends)))} because of a peer, and no log shows a cause: "
        what += f"{next(iter(ends.values()))[0]}."
        unknown = ("which peer it was, and what it did",)
        return Finding((), "OnlySymptoms", what, "the logs of all ranks", unknown=unknown, weight=SYMPTOMS)
    what = f"NCCL ended {named_ranks(own)}: {ends[own[0]][0]}."
    check_first = "CUDA_LAUNCH_BLOCKING=1: the traceback is then that of the call"
    return Finding(own[:1], "RankDied", what, check_first, weight=WATCHED)
