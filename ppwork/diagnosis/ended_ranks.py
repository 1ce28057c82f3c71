"""Rules of a job's diagnosis: a rank ended by itself, by its own exception, a signal or an exit code."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ppwork.diagnosis.absent_ranks import NOBODY, absent_of, only_symptoms
from ppwork.diagnosis.call_texts import COLLECTIVES
from ppwork.diagnosis.evidence_weights import CAUGHT, DIED, DIED_FIRST, ENDED, PLACES, SYMPTOMS, WATCHED
from ppwork.diagnosis.findings import RANK_DIED, Finding
from ppwork.diagnosis.job_errors import about_peer, advice_of, own, rank_of, said_of, speaks_for_itself
from ppwork.diagnosis.job_evidence import (
    IN_REPORT,
    ITS_LINE,
    STACKS,
    STOPPED,
    SURE,
    JobEvidence,
    capital,
    sentence,
    were,
)
from ppwork.diagnosis.recorded_calls import FROM_PLACES
from ppwork.diagnosis.report import ENDED_BY_AGENT, death, signal_name, words_of_ours
from ppwork.diagnosis.stacks import Stack
from ppwork.errors import listed, named_ranks, ranks_by_value

_CRASHES = (-signal.SIGSEGV, -signal.SIGFPE, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL)
"""Exit codes of processes that faulthandler shows the stacks of, if it is on."""
_ONE_GPU = re.compile(r"Duplicate GPU detected : rank (\d+) and rank (\d+)")
_SOCKET = re.compile(r"The (?:client|server) socket has .{0,200}")
_NO_PROGRAM = re.compile(r"can't open file '[^'\n]{1,300}': \[Errno \d+\] [\w ]+")
"""Python's words about a program that is not there."""
INTERRUPTED = (
    "The job was interrupted (SIGINT, as by Ctrl-C); no rank had failed before. If it ran, nothing is wrong."
)
_LEFT_GROUP = "terminate called without an active exception"


def raised(evidence: JobEvidence) -> Finding | None:
    """A rank whose own exception is not about a peer."""
    if not evidence.raised:
        return None
    surest = max(_weight(evidence, rank) for rank in evidence.raised)
    ranks = evidence.first_of(rank for rank in evidence.raised if _weight(evidence, rank) == surest)
    if evidence.job.report.first not in ranks:
        # What many raised alike is more likely an answer to what one raised alone.
        ranks = tuple(sorted(ranks, key=lambda rank: sum(_alike(evidence, rank, other) for other in ranks)))
    first_told = ranks[0]
    first = evidence.error[first_told]
    alike = tuple(rank for rank in ranks[1:] if _alike(evidence, rank, ranks[0]))
    others = [rank for rank in ranks[1:] if rank not in alike]
    what = " ".join(
        [
            sentence(f"Rank {ranks[0]} raised {_in_full(first)}"),
            *([f"So did {named_ranks(alike)}."] if alike else []),
            *(sentence(f"Rank {rank} raised {_in_full(evidence.error[rank])}") for rank in others[:2]),
        ]
    )
    unknown = (f"which of {named_ranks(tuple(sorted((ranks[0], *others))))} was the first",) if others else ()
    stack = evidence.place[ranks[0]]
    shown = own(first) or first
    check_first = advice_of(shown) or "the line above and the traceback in its log"
    seen: tuple[str, ...] = ()
    if (origin := rank_of(first)) is not None and origin != ranks[0]:
        what, ranks = sentence(f"Rank {origin} raised {_in_full(first)}"), (origin,)
        seen = (f"rank {first_told} tells it: torch's checkpoint passes errors on",)
    return Finding(ranks[:1], shown.error, what, check_first, stack, unknown, seen, weight=surest)


def _weight(evidence: JobEvidence, rank: int) -> int:
    """Return how much an exception weighs: less, if its rank had noticed before that a peer was gone."""
    sure = evidence.certainty[rank]
    noticed = about_peer(evidence.error[rank]) or "to pass monitoredBarrier" in evidence.job.ranks[rank].text
    return min(CAUGHT, sure) if noticed else sure


def _alike(evidence: JobEvidence, one: int, other: int) -> bool:
    """Say whether two ranks raised the same: of one type, and with one text or at one line."""
    errors, places = [own(evidence.error[r]) for r in (one, other)], [evidence.place[r] for r in (one, other)]
    if errors[0] is None or errors[1] is None or errors[0].error != errors[1].error:
        return False
    users = [place.users.at if place.users is not None else "" for place in places]
    return errors[0].message == errors[1].message or users[0] == users[1] != ""


def _in_full(error: Stack) -> str:
    """Return what a rank raised, with what it came from."""
    error = own(error) or error
    first = error.chain[0]
    because = (
        f" (from {said_of(first)})" if first is not error and said_of(first) not in said_of(error) else ""
    )
    return said_of(error) + because


def died(evidence: JobEvidence) -> Finding | None:
    """A rank that a signal or an exit code of its own ended without an exception."""
    first = evidence.job.report.first
    ranks = [
        rank for rank in evidence.first_of(evidence.codes)
        if rank not in (*evidence.error, *evidence.aborted_by_nccl) and evidence.codes[rank] != 0
        and (evidence.codes[rank] not in ENDED_BY_AGENT or rank == first)
    ]  # fmt: skip
    if not ranks or evidence.asked or evidence.job.report.signal:
        return None
    rank = ranks[0]
    aborts = [r for r in ranks if evidence.codes[r] == -signal.SIGABRT]
    if len(aborts) == len(evidence.job.ranks) > 1:
        return None  # somebody ended the whole job to see its stacks
    if rank != first and (first is not None and not evidence.lost):
        return None  # torchrun kills those that do not follow its SIGTERM
    code = evidence.codes[rank]
    if any(bool(error.frames) == (code == 1) for error in evidence.nobodys) and code in (1, -signal.SIGABRT):
        return _nobodys_exception(evidence, rank)
    stack, log = evidence.place.get(rank), evidence.job.ranks[rank]
    crash = f" ({stack.error})" if stack is not None and stack.blind else ""
    same = tuple(r for r in ranks[1:] if evidence.codes[r] == code)
    what = f"{capital((rank, *same))} {death(code).replace('was', were((rank, *same)), 1)}{crash}"
    logged = evidence.hints(rank)
    what += "." if logged else "; there is no Python exception in the log."
    check_first = _by_code(code, log.text, shows_line=stack is not None and stack.blind)
    if code > 0 and not any(each.text.strip() for each in evidence.job.ranks.values()):
        what = f"torchrun says that {named_ranks((rank, *same))} exited with code {code}. What the ranks "
        what += "printed is not here, so it is not known why, nor if another rank was to blame."
        check_first = "where their output is: with `--log-dir LOGS --redirects 3` it is in LOGS, and `ppwork "
        check_first += "diagnose LOGS CONSOLE` reads both"
    if code == 2 and (said := _NO_PROGRAM.search(f"{log.text}\n{evidence.job.console}")) is not None:
        what = f"{capital((rank, *same))} exited with code 2: Python {said[0]}."
        check_first = "the program's name in torchrun's command, and the folder that it was given in"
    if (ours := words_of_ours(evidence.job.console).get(rank)) is not None:
        what, check_first = f"Rank {rank} {ours[0]}.", f"`{ours[1]}`: the run's folder has all of it"
    if rank in evidence.stopped:
        what, check_first = f"Rank {rank} {STOPPED}.", "who sent SIGSTOP to it?"
    elif evidence.stopped:  # what another rank did may be the answer to that
        check_first = f"who sent SIGSTOP to {named_ranks(evidence.stopped)}? Then {check_first}"
    if _LEFT_GROUP in log.text:
        check_first += "; did it exit without destroy_process_group? torch aborts such an exit at times"
    hints = (*logged, *evidence.last_lines(rank))
    weight = DIED_FIRST if rank == first else DIED
    if code == 1 and evidence.job.complete and not log.text.strip():
        weight = PLACES + 5  # its words were lost: what others say of it is better
    unknown = tuple(
        f"whether that came after rank {r} raised {said_of(evidence.error[r])}" for r in evidence.raised[:1]
    )
    if evidence.job.report.is_cut:
        unknown = (*unknown, "which rank was the first: torchrun's report is cut off before it says so")
    return Finding((rank, *same), RANK_DIED, what, check_first, stack, unknown, hints, weight)


def _by_code(code: int, text: str, *, shows_line: bool) -> str:
    """Return what is to be checked first of a rank that ended with this code and without an exception."""
    if code in ENDED_BY_AGENT:
        return "who sent it before torchrun ended the others: another process, or the program itself"
    if code == -signal.SIGKILL:
        return "the end of its log; the kernel's log, if it was the out-of-memory killer"
    if code in _CRASHES and not shows_line:
        return f"the end of its log; {ITS_LINE}" if text.strip() else ITS_LINE
    return "the end of its log"


def died_somewhere(evidence: JobEvidence) -> Finding | None:
    """One of several processes ended first, and its launcher does not say which one it was."""
    code = evidence.job.report.of_one
    if code is None:
        return None
    what = f"One of the ranks {death(code)}, and its launcher does not say which one."
    check_first = "the lines above it"
    if code == -signal.SIGKILL:
        check_first = "the kernel's log, if it was the out-of-memory killer"
    hints = evidence.last_lines(NOBODY)
    # An exception of its own says more than its exit code.
    weight = DIED if code != 1 else SYMPTOMS
    return Finding((), RANK_DIED, what, check_first, None, ("which rank it was",), hints, weight)


def all_aborted(evidence: JobEvidence) -> Finding | None:
    """Every rank was aborted, and none says of what: somebody who wants stacks does that, or C++ does."""
    ranks = evidence.first_of(rank for rank, code in evidence.codes.items() if code == -signal.SIGABRT)
    if len(ranks) < 2 or len(ranks) != len(evidence.job.ranks):
        return None
    if {*evidence.asked} == {*ranks}:
        return _stood(evidence)
    what = f"{capital(tuple(sorted(ranks)))} were killed by SIGABRT; torchrun saw rank {ranks[0]} first, and "
    what += "there is no Python exception in the log."
    check_first = (
        "what stands before it: C++ aborts after an assertion, CUDA's or its own; who wants stacks, too"
    )
    return Finding(ranks[:1], RANK_DIED, what, check_first, seen=evidence.last_lines(ranks[0]), weight=ENDED)


def _stood(evidence: JobEvidence) -> Finding:
    """Somebody asked all ranks for their stacks, and each was in a call: what they say is of a hang."""
    places = {rank: evidence.place[rank] for rank in sorted(evidence.asked)}
    calls = {rank: evidence.call(rank) for rank in places}
    at = {rank: f" at {place.users.at}" if place.users is not None else "" for rank, place in places.items()}
    what = "The job stood still, until somebody ended its ranks by SIGABRT to see their stacks: "
    what += f"{listed(f'rank {rank} was in {call}{at[rank]}' for rank, call in calls.items())}."
    check_first = "do these calls meet? `ppwork trace --nproc N PROGRAM` counts them and says so"
    sides = sorted(ranks_by_value({r: c for r, c in calls.items() if c in COLLECTIVES}).values(), key=len)
    ranks = tuple(rank for side in sides for rank in side) if len(sides) > 1 else tuple(places)
    if len(sides) > 1:
        what += f" Those of {named_ranks(ranks)} do not meet, if they are of one group."
        check_first = "which of these ranks made one call more or less before? `ppwork trace` counts them"
    return Finding(ranks, "Hang", what, check_first, places[ranks[0]], weight=ENDED)


def interrupted(evidence: JobEvidence) -> Finding | None:
    """One rank alone got a SIGINT, and the others lost it: somebody interrupted it, not the job."""
    ranks = [rank for rank, error in evidence.error.items() if error.error == "KeyboardInterrupt"]
    first = evidence.job.report.first
    if len(ranks) != 1 or evidence.job.report.signal or first not in (None, *ranks) or not evidence.lost:
        return None
    (rank,) = ranks
    stack = evidence.place.get(rank)
    doing = evidence.doing(but=ranks)
    what = sentence(f"Rank {rank} was interrupted by SIGINT" + (f"; {doing}" if doing else ""))
    if first is not None:
        check_first = "who sent it to this rank alone: another process, or the program itself"
        return Finding((rank,), RANK_DIED, what, check_first, stack, weight=DIED)
    check_first = "who sent it, and to whom"
    unknown = (f"whether the whole job was interrupted (Ctrl-C): {IN_REPORT}",)
    return Finding((rank,), RANK_DIED, what, check_first, stack, unknown, weight=PLACES + 1)


def as_interrupted(evidence: JobEvidence, finding: Finding | None) -> Finding | None:
    """Return a finding that only tells where ranks were as one of a job that somebody interrupted.

    It may have been well: then its ranks were in different calls, too, and nothing is wrong.
    """
    errors = [error.error for error in evidence.error.values()]
    is_jobs = evidence.job.report.signal == signal.SIGINT or len(errors) > 1
    if not is_jobs or {*errors} != {"KeyboardInterrupt"}:
        return finding
    if finding is None:
        finding = Finding((), "Stopped", "", STACKS, weight=ENDED)
    elif finding.error_type not in (*FROM_PLACES, "Stopped"):
        return finding
    then = f"{finding.what[:1].lower()}{finding.what[1:]}"
    if finding.error_type in ("OnlySymptoms", "Stopped"):
        then = sentence(evidence.doing() or "it is not known where its ranks were")
    seen = tuple(line for line in finding.seen if "KeyboardInterrupt" not in line)
    return replace(finding, what=f"{INTERRUPTED} If it stood still: {then}", seen=seen)


def _nobodys_exception(evidence: JobEvidence, rank: int) -> Finding:
    """An exit code of 1, and an exception without a rank: before a group exists torch does not write it."""
    errors = list(filter(speaks_for_itself, evidence.nobodys)) or evidence.nobodys
    error = errors[-1]
    code = f"Rank {rank} {death(evidence.codes[rank])}"
    if own(error) is None:
        return absent_of(evidence, {rank: error}) or only_symptoms(evidence, (rank,))
    what = sentence(f"{code}; an exception that bears no rank, probably its own: {_in_full(error)}")
    stack = next((part for part in error.chain if part.users is not None), error)
    others = {said_of(other) for other in errors} - {said_of(error)}
    hints = tuple(f"also without a rank: {said}" for said in sorted(others)[:2])
    weight = DIED if others else SURE
    return Finding((rank,), error.error, what, "the line above", stack, (), hints, weight)


def nobodys_words(evidence: JobEvidence) -> Finding | None:
    """An exception on the console that bears no rank, and no exit code."""
    errors = [error for error in evidence.nobodys if not error.aside]
    if not errors or evidence.codes:
        return None
    if own(errors[-1]) is None:
        what = sentence(f"A rank had an error about a peer: {said_of(errors[-1])}")
        named = absent_of(evidence, {NOBODY: errors[-1]})
        if named is not None:
            return replace(named, weight=SYMPTOMS)
        asked = ("which rank it was", "what the peer did")
        check = advice_of(errors[-1]) or "the logs of all ranks"
        return Finding((), "OnlySymptoms", what, check, errors[-1], asked, weight=SYMPTOMS)
    error = next(filter(speaks_for_itself, reversed(errors)), errors[-1])
    rank = rank_of(error)
    what = sentence(f"{'A rank' if rank is None else f'Rank {rank}'} raised {_in_full(error)}")
    stack = next((part for part in error.chain if part.users is not None), error)
    unknown = ("which rank it was",) if rank is None else ()
    ranks: tuple[int, ...] = () if rank is None else (rank,)
    check_first = "the line above" if stack.users is not None else "what stands above it in the whole log"
    check_first = advice_of(error) or check_first
    if (one_gpu := _ONE_GPU.search(error.message)) is not None:
        ranks, unknown = (int(one_gpu[1]), int(one_gpu[2])), ()
    # Who waits for it in a collective is a symptom; what a logger wrote may have been passed over, and what
    # comes with an error about a peer may come of it.
    is_alone = speaks_for_itself(error) and not error.logged and all(map(own, errors))
    weight = WATCHED + 1 if is_alone else SYMPTOMS + 1
    return Finding(ranks, error.error, what, check_first, stack, unknown, weight=weight)


def agent_failed(evidence: JobEvidence) -> Finding | None:
    """An exception of torchrun itself, and no rank had ended: it could not start them."""
    if not evidence.agents or evidence.codes or evidence.job.report.of_one is not None:
        return None
    error = evidence.agents[-1]
    text = f"{error.message}\n{evidence.job.console}"
    sockets = [line[0].strip() for line in _SOCKET.finditer(text)]
    what = sentence(f"torchrun itself failed, not a rank: {said_of(error.chain[0])}")
    is_taken = "EADDRINUSE" in text or "already in use" in text
    check_first = (
        "what else holds that port: an earlier job that still runs? --standalone takes a free one"
        if is_taken
        else "the same endpoint on all hosts, its host up first, its port open between them"
    )
    seen = tuple(f"torch said: {line}" for line in dict.fromkeys(sockets) if line not in what)[-2:]
    return Finding((), error.error, what, check_first, seen=seen, weight=SYMPTOMS + 1)


def ended(evidence: JobEvidence) -> Finding | None:
    """Somebody ended torchrun, and no rank said where it was."""
    number = evidence.job.report.signal
    if not number:
        return None
    name = signal_name(number)
    what = f"torchrun was ended from outside by {name}; no rank failed before."
    unknown = (f"where the ranks were: {name} leaves no stack",) if not evidence.place else ()
    closed = (
        "was a terminal or an ssh session closed? torchrun handles SIGHUP also under nohup; tmux keeps it"
    )
    check_first = closed if number == signal.SIGHUP else STACKS
    return Finding((), "Stopped", what, check_first, unknown=unknown, weight=ENDED)
