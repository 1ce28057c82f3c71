"""Rules of a job's diagnosis: words of torch and of launchers that count or name ranks, whoever printed them.

They stand in lines of C++ or of a logger, which bear no rank of their own, and often are all that somebody
kept of a log.
"""

from __future__ import annotations

import re

from ppwork.diagnosis.absent_ranks import NOBODY
from ppwork.diagnosis.evidence_weights import ENDED, NAMED, SYMPTOMS, WATCHED
from ppwork.diagnosis.findings import CUT_OFF, Finding
from ppwork.diagnosis.job_errors import PEERS, is_torchruns
from ppwork.diagnosis.job_evidence import JobEvidence, capital, sentence, were
from ppwork.diagnosis.logs import LINE
from ppwork.diagnosis.stacks import Stack, cut_off
from ppwork.errors import named_ranks

_JOINED = re.compile(
    r"store based barrier[\w ]{0,40} rank: (?P<rank>\d+), (?:for )?key: store_based_barrier_key:(?P<key>\d+) "
    r"\(world_size=(?P<size>\d+), worker_count=(?P<came>\d+)"
)
_ALL_CAME = re.compile(r"Completed store-based barrier for key:store_based_barrier_key:(\d+)")
_UNREACHABLE = re.compile(
    r"connectFullMesh failed with (?P<why>.{0,400}?remote=\[(?P<host>[^\]]{1,60})\][^(]{0,40}"
    r"\(rank=(?P<rank>\d+), size=(?P<size>\d+))", re.DOTALL)  # fmt: skip
_DIED = re.compile(r"(?:WorkerProc rank=\[?|Worker proc \w{1,40}-)(\d+)\]? died unexpectedly")
_STUCK = re.compile(r"Rank (\d+)\] .{0,80}?watchdog got stuck for (\d+) seconds")
_STORE_LOST = re.compile(r'Rank (\d+)\] Failed to check the "should dump" flag on TCPStore')
_STORE_SILENT = re.compile(r"TCPStore\.cpp:\d+\] \[c10d\] (?:recvValue|sendBytes) failed")
_RESORTS = (
    re.compile(r"(The (?:server|client) socket has (?:failed to|timed out).{0,160})"),
    re.compile(r"NCCL WARN (\S.{0,200})"),
    re.compile(r"(CUDA error: [\w ]{1,80})"),
    re.compile(r"(\b[A-Z]\w{0,60}(?:Error|Exception)(?:\(\w{1,60}\))?: \S.{0,200})"),
    re.compile(r"\[[EF][\d: .]{0,40} ?\w{1,60}\.cpp:\d{1,6}\] (.{1,200})"),
)
"""What a library says of an error without an exception that can be read, the surest first."""
_BY_LIBRARIES = 3
"""So many of them are a library's own words; the rest may be anybody's."""
_TELLS = (
    re.compile(r"\b(?:assertion|error|failed|failure|fatal|fault|exception|kill(?:ed|ing)|abort(?:ed|ing)|dumped|died|crashed"
               r"|terminat(?:ed|ing)|SIG[A-Z]{3,6})\b", re.IGNORECASE),
    re.compile(r"\b(?:errors|time-?outs?|timed out|cannot|could not|unable to|refused)\b", re.IGNORECASE),
)  # fmt: skip
"""Words of a line that may tell of an error, the surest first."""
_CHILD_FAILED = "ChildFailedError"
_LONG = 400
"""Characters of such a line that are read."""
_NO_GRADIENT = re.compile(
    r"(Expected to have finished reduction in the prior iteration.{0,120})(?:[^\0]{0,2000}?"
    r"did not receive grad for rank (\d+))?"
)
_LOOPBACK = ("127.", "::1", "localhost")
_MOST_SHOWN, _MOST_RANKS = 8, 1 << 16


def joined(evidence: JobEvidence) -> Finding | None:
    """The barrier at the start of a group counts who came: too few, or more than there can be."""
    texts = _texts(evidence)
    whole = {int(done[1]) for text in texts for done in _ALL_CAME.finditer(text)}
    told = [line for text in texts for line in _JOINED.finditer(text) if int(line["key"]) not in whole]
    if not told:
        return None
    key = max(int(line["key"]) for line in told)
    of_key = [line for line in told if int(line["key"]) == key]
    size, came = (max(int(line[name]) for line in of_key) for name in ("size", "came"))
    waiting = tuple(sorted({int(line["rank"]) for line in of_key}))
    call = ("init_process_group" if key == 1 else f"the making of group {key}") + " (store based barrier)"
    if came > size:
        what = f"{came} processes came to {call}, and it is for {size}: {named_ranks(waiting)} waited on."
        check_first = (
            "what an earlier run left in the store (remove the file of a file:// init_method); another job "
            "on the same MASTER_PORT; is WORLD_SIZE the number of processes?"
        )
        return Finding((), "TooMany", what, check_first, weight=NAMED - 2)
    if came == size:
        return None
    others = tuple(sorted(set(range(min(size, _MOST_RANKS))) - set(waiting)))
    what = f"{came} of {size} ranks came to {call}; {named_ranks(waiting[:_MOST_SHOWN])} waited there"
    whom = f"the {size - len(waiting)} others" if others[_MOST_SHOWN:] else named_ranks(others)
    if len(others) == size - came:
        what += f", and {whom} never came."
        check_first = f"the log of {whom}: was it started, and what did it do first?"
        return Finding(others, "NeverCame", what, check_first, weight=NAMED - 2)
    check_first = "the logs of the ranks that did not wait: were they started, and what did they do first?"
    return Finding(
        (), "NeverCame", f"{what}.", check_first, unknown=(f"which of {whom} did not",), weight=NAMED - 2
    )


def unreachable(evidence: JobEvidence) -> Finding | None:
    """Gloo could not connect two ranks, and says to which address."""
    told = next((line for text in _texts(evidence) if (line := _UNREACHABLE.search(text))), None)
    if told is None:
        return None
    rank, host = int(told["rank"]), told["host"]
    why = " ".join(told["why"].split()).partition(" (rank=")[0]
    what = sentence(f"Rank {rank} of {told['size']} could not connect to a peer at {host}: {why}")
    check_first = "is that peer's process there, and its port open between the hosts?"
    if host.startswith(_LOOPBACK):
        check_first = (
            f"on several hosts: {host} is no address for others; what does the host name resolve to there? "
            "GLOO_SOCKET_IFNAME names the interface. On one host: the peer's own log"
        )
    return Finding((rank,), "Unreachable", what, check_first, weight=SYMPTOMS + 2)


def worker_died(evidence: JobEvidence) -> Finding | None:
    """An executor says that a worker is gone, and the worker says nothing."""
    texts = [text for text in _texts(evidence) if "died unexpectedly" in text]
    told = [line for text in texts for line in _DIED.finditer(text)]
    if not told:
        return None
    ranks = tuple(dict.fromkeys(int(line[1]) for line in told))[:_MOST_SHOWN]
    what = f"{capital(ranks)} died: the executor says so, and nothing here says of what."
    check_first = f"exit code and last lines of {named_ranks(ranks)}; the kernel's log, if memory ran out"
    unknown = (f"why {named_ranks(ranks)} {were(ranks)} gone: it left no words",)
    return Finding(ranks, "WorkerDied", what, check_first, unknown=unknown, weight=WATCHED + 2)


def stuck(evidence: JobEvidence) -> Finding | None:
    """NCCL's watchdog itself stood still, and ended its process for that."""
    told = {int(line[1]): line[2] for text in _texts(evidence) for line in _STUCK.finditer(text)}
    if not told:
        return None
    ranks = tuple(sorted(told))
    shown = named_ranks(ranks[:_MOST_SHOWN])
    what = f"NCCL's watchdog was stuck for {told[ranks[0]]} s in {shown}, and ends the process for that."
    check_first = (
        "a call of CUDA or NCCL that does not come back, or a thread that keeps Python's lock: py-spy dump"
    )
    unknown = ("in which call it stood: nothing here shows a stack",)
    return Finding(
        ranks[:1] if len(ranks) == 1 else (), "Stuck", what, check_first, unknown=unknown, weight=SYMPTOMS
    )


def store_lost(evidence: JobEvidence) -> Finding | None:
    """Ranks cannot reach the store any more: whoever holds it was gone before."""
    told = {int(line[1]) for text in _texts(evidence) for line in _STORE_LOST.finditer(text)}
    told |= {rank for rank, log in evidence.job.ranks.items() if _STORE_SILENT.search(log.text)}
    if not told:
        return None
    ranks = tuple(sorted(told))
    what = (
        f"{capital(ranks[:_MOST_SHOWN])} lost the TCPStore: the process that holds it was gone before, most "
    )
    what += "often rank 0's or its launcher's."
    unknown = ("why that process was gone: these are symptoms only",)
    return Finding((), "OnlySymptoms", what, "the log of rank 0", unknown=unknown, weight=SYMPTOMS - 1)


def no_gradient(evidence: JobEvidence) -> Finding | None:
    """DDP misses gradients, and names the rank below: also where no exception can be read around it."""
    told = next((line for text in _texts(evidence) if (line := _NO_GRADIENT.search(text))), None)
    if told is None:
        return None
    ranks = (int(told[2]),) if told[2] is not None else ()
    who = capital(ranks) if ranks else "A rank"
    what = sentence(f"{who} did not use all parameters for its loss: {told[1]}")
    check_first = "find_unused_parameters=True, or which branch of forward leaves those parameters out"
    unknown = () if ranks else ("which rank it was",)
    return Finding(ranks, "RuntimeError", what, check_first, unknown=unknown, weight=SYMPTOMS - 1)


def ends_in_a_call(evidence: JobEvidence) -> Finding | None:
    """A traceback is cut off before its error, a rank's or torchrun's: only where it stood is known."""
    texts = [*((rank, log.text) for rank, log in evidence.job.ranks.items()), (NOBODY, evidence.job.console)]
    cut = [(rank, Stack(tuple(frames), "")) for rank, text in texts if (frames := cut_off(text))]
    if not cut:
        return None
    rank, stack = min(cut, key=lambda one: is_torchruns(one[1]))
    is_own = not is_torchruns(stack)
    spots = dict.fromkeys([stack.users or stack.frames[-1], stack.frames[-1]])
    at = ", in ".join(f"{frame.function} at {frame.at}" for frame in spots)
    who = "torchrun itself" if not is_own else f"rank {rank}" if rank != NOBODY else "a rank"
    what = f"The traceback of {who} is cut off before its error; it stood in {at}."
    unknown = ("what its error was, and whether it was about a peer" if is_own else "what its error was",)
    ranks = (rank,) if is_own and rank != NOBODY else ()
    weight = ENDED + 1 if is_own else ENDED - 1
    return Finding(ranks, CUT_OFF, what, "the whole log", stack, unknown, weight=weight)


def last_resort(evidence: JobEvidence) -> Finding | None:
    """Nothing better is there: what torch's sockets, NCCL or CUDA say of an error, in lines of any kind."""
    for number, words in enumerate(_RESORTS):
        told = [line[1].strip() for text in _texts(evidence) for line in words.finditer(text)]
        if told:
            # What speaks of a peer is a symptom of what the others speak of.
            said = tuple(sorted(dict.fromkeys(told), key=lambda line: PEERS.search(line) is not None))
            what = sentence(f"The log tells of an error, and shows no exception: {said[0]}")
            seen = tuple(f"also: {line}" for line in said[1:3])
            unknown = ("which rank it was",)
            check_first = "the whole log: the lines before and after it"
            return Finding(
                (),
                "OnlySymptoms",
                what,
                check_first,
                unknown=unknown,
                seen=seen,
                weight=SYMPTOMS - 3 - number if number < _BY_LIBRARIES else ENDED - number,
            )
    return None


def lines_of_error(evidence: JobEvidence) -> Finding | None:
    """Return the lines of a console that may tell of an error: no rule has found anything in it."""
    lines = dict.fromkeys(line.strip() for text in _texts(evidence) for line in text.splitlines())
    found = ((line, words.search(line[:_LONG])) for words in _TELLS for line in lines)
    told = [*dict.fromkeys(_around(line, word.start()) for line, word in found if word is not None)]
    if not told or evidence.job.complete:
        return None
    what = sentence(f"No exception and no exit code is in this log; this line may tell: {told[0]}")
    if _CHILD_FAILED in evidence.job.console:
        what = (
            f"torchrun says that a rank failed ({_CHILD_FAILED}); which one, and of what, is not in this log."
        )
    seen = tuple(f"also: {line}" for line in told[1:4])
    unknown = ("which rank it was, and whether it failed",)
    check_first = "the whole log: the lines before and after it"
    return Finding((), "OnlySymptoms", what, check_first, unknown=unknown, seen=seen)


def _around(line: str, start: int) -> str:
    """Return what is shown of a long line: the part around its telling word."""
    start = max(0, min(start - LINE // 2, len(line) - LINE))
    return f"{'... ' if start else ''}{line[start : start + LINE]}"


def _texts(evidence: JobEvidence) -> list[str]:
    return [*(log.text for log in evidence.job.ranks.values()), evidence.job.console]
