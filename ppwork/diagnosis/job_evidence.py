"""Evidence of a torchrun job, anybody's: what ended each rank, how sure that is, and where the rank was.

*Did this exception end the process?* torch's own hook shows only exceptions that did (``[rank0]:``). Any
other traceback may have been logged: it counts if the exit code is 1, or unknown, and nothing stands below. A
rank that torchrun ended did not die of what it had logged. ``job_errors`` says whose an exception is.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path

from ppwork.diagnosis.call_texts import is_of_all_ranks, names_a_group
from ppwork.diagnosis.findings import Wait
from ppwork.diagnosis.job_errors import AGENTS, PEERS, about_peer, is_torchruns, own, said_of, says, wrapped
from ppwork.diagnosis.logs import LINE, JobLogs, RankLog
from ppwork.diagnosis.report import ENDED_BY_AGENT, death, stopped_and_killed, words_before
from ppwork.diagnosis.source_numbers import Half, Numbers, halves_with, peer_in_line, tag_in_line
from ppwork.diagnosis.stacks import Stack, fragments, half_of, is_noise, tracebacks
from ppwork.errors import (
    named_ranks,
    ranks_by_value,
)
from ppwork.protocol.backend_errors import LOST_TEXTS
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.calls import awaited_by
from ppwork.records.failure import is_users

DETAIL = "run it once more with TORCH_DISTRIBUTED_DEBUG=DETAIL: it names ranks, calls and shapes"
ITS_LINE = "start with PYTHONFAULTHANDLER=1: a rank that crashes, or that gloo aborts, then shows its line"
IN_REPORT = "torchrun's closing report has it (give a file with what the console showed, too)"
STACKS = (
    "`ppwork trace --nproc N PROGRAM` runs it and says who waited for whom, and which calls did not meet; or "
    "ask while it stands: `ppwork diagnose`, without a path, looks into its ranks (`pip install py-spy`)"
)
MORE_RANKS = "whether there were more ranks: one that printed nothing is not in this file"
OTHER_HALF = "peer and tag of that line, and which rank has the other half"
NO_REPORT = "the console's text ends before torchrun's closing report, which has it"
SURE, LIKELY, PERHAPS = 100, 70, 50
"""How sure it is that an exception ended its rank: the exit code or torch's hook says so; it is the last in
the log; it is, and a logger wrote it."""
STOPPED = "stood stopped (SIGSTOP), until it was killed"
"""Of a rank that could not leave by itself."""
OWN_LINES, MOST_OWN = 2, 4
"""So many lines are shown that a rank alone printed, and of so many ranks."""
LAST_LINES = 5
"""So many are shown of a rank that left no exception."""
_BELOW = 3
"""So many lines may stand below the exception that ended a rank."""
MISSED_BARRIER = re.compile(
    r"(?:\[Rank (\d+)\]: )?Ranks? ([\d, ]+) failed to pass monitoredBarrier in \d+ ms"
)
_CALLED = re.compile(r"(\w+)\(")
WAITS_OF = {"receive_result": "stage0", "await_result": "stage0", "chunks": "mesh"}
"""Calls of a plane that wait for another rank, and on which side."""


class JobEvidence:
    """Each rank's log as far as it speaks of its end: its error, its place, its call.

    Attributes:
        error: Exception that ended each rank, as far as it is known; ``certainty`` has how sure that is.
        raised: Ranks whose exception is their own.
        lost: Ranks whose peers were gone; ``late``: whose bound passed.
        place: Where each rank was when it ended.
        silent: Ranks of which neither is known.
        nobodys: Exceptions on the console that bear no rank, without torchrun's own.
        agents: Those of torchrun itself, but for what it says when a rank failed or a signal came.
        aborted_by_nccl: Ranks that the watchdog of NCCL ended: their SIGABRT is a symptom.
        stopped: Ranks that our launcher found stopped and killed: their SIGKILL says nothing.
    """

    def __init__(self, job: JobLogs) -> None:
        self.job, self.codes = job, job.report.codes
        self.stopped = sorted(stopped_and_killed(job.console))
        ends = {rank: end for rank, log in job.ranks.items() if (end := _end(log, self.codes.get(rank)))}
        ends = {rank: end for rank, end in ends.items() if end[1] == SURE or not self._went_on(rank, end[0])}
        self.error: dict[int, Stack] = {rank: error for rank, (error, _) in ends.items()}
        self.certainty = {rank: certainty for rank, (_, certainty) in ends.items()}
        self.raised = [
            r for r, e in self.error.items() if own(e) is not None and e.error != "KeyboardInterrupt"
        ]
        symptoms = {rank: error for rank, error in self.error.items() if rank not in self.raised}
        wraps = {wrapped(error) for error in symptoms.values() if about_peer(error) is not error}
        self.raised = [
            r for r in self.raised if about_peer(self.error[r]) or wrapped(self.error[r]) not in wraps
        ]
        self.lost = [r for r, e in symptoms.items() if says(e, LOST_TEXTS)]
        self.late = [r for r, e in symptoms.items() if r not in self.lost and (about_peer(e) is not None)]
        self.place = {r: stack for r, log in job.ranks.items() if (stack := self._place(log)) is not None}
        if job.standing:
            self.late = [rank for rank, stack in self.place.items() if stack.call or _in_cpp(stack)]
        seen = [r for r in job.ranks if job.standing and job.ranks[r].threads]  # if in no line of a user's
        self.silent = [r for r in job.ranks if r not in (*self.place, *self.error, *seen)]
        shown = tracebacks(job.console)
        if all(error.aside for error in shown):
            shown += fragments(job.console)
        self.nobodys = [error for error in shown if not is_torchruns(error)]
        self.agents = [error for error in shown if is_torchruns(error) and error.error not in AGENTS]
        self.aborted_by_nccl = [
            rank for rank, code in self.codes.items()
            if code == -signal.SIGABRT
            and ("Watchdog caught" in job.ranks[rank].text or f"[Rank {rank}] Watchdog caught" in job.console)
        ]  # fmt: skip

    @property
    def in_planes(self) -> list[int]:
        """Ranks that wait in a plane of ours for another rank: whatever holds that one up, holds them up."""
        return [rank for rank, stack in self.place.items() if stack.peer is not None]

    @property
    def asked(self) -> list[int]:
        """Ranks that somebody ended with SIGABRT to see their stacks: several, each in a call of the backend.

        torchrun may have ended the rest before their handler ran, if it was not stopped meanwhile.
        """
        aborted = [rank for rank, code in self.codes.items() if code == -signal.SIGABRT]
        blind = [r for r in aborted if r in self.place and self.place[r].blind and self.call(r)]
        rest = [rank for rank in self.codes if rank not in aborted]
        others = [r for r in aborted if r not in blind and r not in self.silent]
        others += [r for r in rest if self.codes[r] not in ENDED_BY_AGENT]
        return blind if blind[1:] and not others else []

    def first_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return ranks with the one that torchrun saw fail first at the front."""
        return tuple(sorted(ranks, key=lambda rank: (rank != self.job.report.first, rank)))

    def call(self, rank: int) -> str:
        """Return the call that a rank was in; C++ calls the backend without a frame, as in ``backward``."""
        stack = self.place.get(rank)
        if stack is None or stack.call or rank not in (*self.lost, *self.late):
            return stack.call if stack is not None else ""
        named = _CALLED.findall(stack.users.text) if stack.users is not None else []
        if "wait" in named:
            return "wait"
        return named[-1] if named else stack.frames[-1].function if stack.frames else ""

    def in_call(self, but: Iterable[int] = ()) -> dict[int, str]:
        """Return the call of each rank that was in one."""
        return {rank: call for rank in self.place if rank not in but and (call := self.call(rank))}

    @property
    def outside(self) -> tuple[int, ...]:
        """Ranks that were in a line of their program, and in no call of the backend."""
        calls = self.in_call()
        return tuple(
            rank for rank, stack in self.place.items()
            if rank not in calls and rank not in self.raised and stack.users is not None
        )  # fmt: skip

    def half(self, rank: int) -> str:
        """Return which half of a message a rank waited in, as ``half_of`` does."""
        stack = self.place.get(rank)
        return half_of(self.call(rank), stack.users if stack is not None else None)

    def peer(self, rank: int) -> int | None:
        """Return the rank that the line of a rank in a message names as its peer; ``None``: not known."""
        if (stack := self.place.get(rank)) is not None and stack.plane:
            return stack.peer
        # Ranks of ours print only the frames of their users.
        if stack is not None and (role := stack.in_runtime or WAITS_OF.get(self.call(rank), "")):
            peer = awaited_by(rank)
            return peer if (role == "stage0") == (rank == STAGE0_RANK) and peer in self.job.ranks else None
        named = self._named_peer(rank)
        return named if named != rank and named in self.job.ranks else None

    def unheard_peer(self, rank: int) -> int | None:
        """Return the rank that a line in a message names, if a console's text has no word of it."""
        named = None if self.job.complete or self.peer(rank) is not None else self._named_peer(rank)
        return named if named != rank and named not in self.job.ranks and named not in self.codes else None

    def _named_peer(self, rank: int) -> int | None:
        return peer_in_line(self._text(rank), self.call(rank), self._numbers(rank))

    def tag(self, rank: int) -> int | None:
        """Return the tag that the line of a rank in a message names, or leaves at 0; ``None``: not known."""
        return tag_in_line(self._text(rank), self.call(rank), self._numbers(rank))

    def halves_to(self, peer: int, by: int | None = None) -> list[Half]:
        """Return the halves of messages with a rank that the programs have, by one rank or any other.

        Programs are those of lines where ranks stood.
        """
        users = [stack.users for stack in self.place.values() if stack.users is not None]
        frames = {frame.file: frame for frame in users}.values()
        others = [rank for rank in self.job.ranks if rank != peer and by in (None, rank)]
        every = (halves_with(f, rank, len(self.job.ranks), peer) for f in frames for rank in others)
        return [*dict.fromkeys(half for halves in every for half in halves)]

    def let_go(self, rank: int, peer: int, half: str) -> str:
        """Return where a rank may have begun a half (``send``, ``recv``) with a peer, and kept no handle."""
        lost = [h for h in self.halves_to(peer, rank) if h.is_let_go and h.call == f"i{half}"]
        if (stack := self.place.get(rank)) is not None:  # where it stood is behind those that it made
            lost = [h for h in lost if any(h.is_before(frame) for frame in stack.frames)]
        return " and ".join(h.at for h in lost)

    def is_of_all(self, rank: int) -> bool:
        """Say whether a rank stood in a collective that all ranks have to make: its line names no group."""
        return is_of_all_ranks(self._text(rank), self.call(rank))

    def in_two_groups(self, spots: Mapping[int, tuple[str, str]]) -> tuple[str, str]:
        """Say that some ranks' collective is of all ranks, others' of a group, and ask; empty if none is so.

        Args:
            spots: Call and line of each rank.
        """
        for call, ranks in ranks_by_value({rank: call for rank, (call, _) in spots.items()}).items():
            of_all = [rank for rank in ranks if self.is_of_all(rank)]
            of_group = [rank for rank in ranks if names_a_group(self._text(rank), call)]
            if of_all and of_group:
                line, other = spots[of_all[0]][1], spots[of_group[0]][1]
                told = f"the groups differ: the {call} at {line} names none, and is of all ranks"
                return f"{told}; that at {other} names one", f"is `group=` missing at {line}? "
        return "", ""

    def _numbers(self, rank: int) -> Numbers:
        stack = self.place.get(rank)
        frames = [frame for frame in stack.frames if is_users(frame.file)] if stack is not None else []
        return Numbers(rank, len(self.job.ranks), frames)

    def _text(self, rank: int) -> str:
        stack = self.place.get(rank)
        return stack.users.text if stack is not None and stack.users is not None else ""

    @cached_property
    def following(self) -> dict[int, int | None]:
        """Ranks in a message with a rank that waits elsewhere, or is silent, and that rank: not to blame.

        One rank alone in a message waits for such a one, also if its line does not tell for which. Of two
        that do not tell, each may wait for the other. Who waits for a rank in a circle follows from that.
        """
        peers = {
            rank: self.peer(rank) for rank in self.in_call() if self.half(rank) or rank in self.in_planes
        }
        if len(peers) == 1:
            return peers
        return {rank: peer for rank, peer in peers.items() if self._is_behind(rank, peers)}

    @staticmethod
    def _is_behind(rank: int, peers: Mapping[int, int | None]) -> bool:
        """Say whether a rank's chain of peers leads away from it: out of the messages, or into a circle."""
        passed, peer = {rank}, peers[rank]
        while peer is not None and peer in peers and peer not in passed:
            passed.add(peer)
            peer = peers[peer]
        return peer is not None and peer != rank

    @property
    def unfailed(self) -> tuple[int, ...]:
        """Ranks that said nothing and have no failure in torchrun's report, if there is one."""
        return tuple(rank for rank in self.silent if self.codes.get(rank) is None)

    @property
    def gone(self) -> tuple[int, ...]:
        """Those of them that left before the others, and broke connections by that."""
        return self.unfailed if self.lost else ()

    def doing(self, but: Iterable[int] = ()) -> str:
        """Say which ranks were in which call, as a part of a sentence."""
        return ", ".join(
            f"{named_ranks(ranks)} {were(tuple(ranks))} in {call}"
            for call, ranks in ranks_by_value(self.in_call(but)).items()
        )

    def line(self, rank: int) -> str:
        """Say where a rank was and how it ended."""
        stack, error, code = self.place.get(rank), self.error.get(rank), self.codes.get(rank)
        users = stack.users if stack is not None else None
        at = f", in {self.call(rank) or users.function} at {users.at}" if stack and users else ""
        if users is not None and not is_users(users.file):
            at = f", in {self.call(rank) or users.function}, in a loop of ppwork"
        for caller in stack.callers[:2] if stack and users else ():
            at += f", called at {Path(caller.file).name}:{caller.line}"
        if error is not None:
            return f"rank {rank}{at}: {said_of(error).splitlines()[0]}"
        if rank in self.stopped:
            return f"rank {rank}{at}: {STOPPED}"
        if code is None and "Watchdog caught" in self.job.ranks[rank].text:
            return f"rank {rank}{at}: NCCL's watchdog ended it"
        if self.job.standing and code is None:
            return f"rank {rank}{at or ', in no line of your code'}"
        word = "showed no exception" if self.job.ranks[rank].text else "left no word"
        return f"rank {rank}{at}: {word if code is None else death(code)}"

    def waits(self, culprits: tuple[int, ...]) -> tuple[Wait, ...]:
        """Return the calls in which the other ranks waited for somebody; who raised itself did not."""
        return tuple(
            Wait(
                rank,
                f"{call} at {users.at}" if is_users(users.file) else f"{call}, in a loop of ppwork",
                awaited,
            )
            for rank, call in self.in_call(but=(*culprits, *self.raised)).items()
            if (users := self.place[rank].users) is not None and (awaited := self._awaited(rank, culprits))
        )

    def _awaited(self, rank: int, culprits: tuple[int, ...]) -> tuple[int, ...]:
        """Return for whom a rank waited: the peer that its line names, or the culprits; nobody: not known.

        A rank in a group of some ranks may wait for one in another collective, or in a message, unless that
        one waits for it.
        """
        if (peer := self.peer(rank)) is not None:
            return (peer,)
        calls = self.in_call(but=(*self.raised, *self.in_planes))
        in_messages = [r for r, call in calls.items() if self.half(r) or call == "wait"]
        if rank in in_messages:
            return culprits if len(self.job.ranks) == 2 else ()
        at = self.place[rank].users
        if self.is_of_all(rank):
            there = [c for c in culprits if in_messages and c in calls and c not in in_messages]
            return tuple(c for c in culprits if c not in there or self.place[c].users != at)
        in_one_place = all(self.place[r].users == at for r in calls if r not in (*in_messages, *culprits))
        return culprits if in_one_place and all(self._leads(r, rank) for r in in_messages) else ()

    def _leads(self, rank: int | None, other: int) -> bool:
        """Say whether a rank in a message waits for another one, over others or at once."""
        while rank is not None and rank != other:
            rank = self.following.get(rank)
        return rank == other

    def hints(self, rank: int) -> tuple[str, ...]:
        """Return what a rank had logged or lost in a thread, and others had not: it may be why."""
        said = {r: {said_of(e).splitlines()[0] for e in log.errors} for r, log in self.job.ranks.items()}
        others = set().union(*(texts for r, texts in said.items() if r != rank))
        hints = []
        for error in self.job.ranks[rank].errors if rank in said else ():
            text = said_of(error).splitlines()[0]
            if about_peer(error) is None and text not in others:
                at = next((f" at {part.users.at}" for part in error.chain if part.users is not None), "")
                where = "in a thread or child" if error.aside else "before"
                hints.append(f"its log had {where}: {text}{at}")
        return tuple(dict.fromkeys(hints))[-2:]

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """Return the last lines of a rank; where it has none of its own, those that bear no rank."""
        log = self.job.ranks.get(rank)
        lines, whose = (log.last_lines(LAST_LINES) if log is not None else []), f"of rank {rank}"
        if not lines and not self.job.complete:
            words = words_before(self.job.console).splitlines()
            lines = [*dict.fromkeys(line[:LINE] for line in words if line.strip())][-LAST_LINES:]
            whose = "that bear no rank"
        return (f"last lines {whose}:", *(f"  {line}" for line in lines)) if lines else ()

    def seen_of(self, *ranks: int) -> tuple[str, ...]:
        """Return what was seen of ranks that left without an exception: hints, and their last lines."""
        return tuple(line for rank in ranks for line in (*self.hints(rank), *self.last_lines(rank)))

    def own_lines(self) -> tuple[str, ...]:
        """Return what ranks printed last and no other rank did, such as an exception that was passed over."""
        printed = {r: dict.fromkeys(log.printed.splitlines()) for r, log in self.job.ranks.items()}
        counts = Counter(line for lines in printed.values() for line in lines)
        shown: list[str] = []
        for rank, lines in printed.items():
            alone = (line for line in reversed(lines) if counts[line] == 1 and line.strip())
            tells = (line[:LINE] for line in alone if not is_noise(line) and not PEERS.search(line[:LINE]))
            last = [*islice(tells, OWN_LINES)]
            if last and len(printed) > 1:
                shown += [f"rank {rank} alone printed last:", *(f"  {line}" for line in reversed(last))]
        return tuple(shown[: MOST_OWN * (OWN_LINES + 1)])

    def _went_on(self, rank: int, error: Stack) -> bool:
        """Say whether another rank wrote the same and something else after it."""
        others = [log.errors for other, log in self.job.ranks.items() if other != rank]
        return any(said_of(error) == said_of(one) for errors in others for one in errors[:-1])

    def _place(self, log: RankLog) -> Stack | None:
        """Return where a rank was when it ended: its last exception, or its main thread's stack."""
        error = self.error.get(log.rank)
        if error is not None:
            error = own(error) or error
            return next((cause for cause in error.chain if cause.users is not None), error)
        return next((stack for stack in reversed(log.threads) if stack.users is not None), None)


def _in_cpp(stack: Stack) -> bool:
    """Say whether a thread that stands now is in a handle's ``wait``, or in a backward: neither is Python."""
    innermost = stack.frames[-1]
    in_wait = innermost == stack.users and "wait" in _CALLED.findall(innermost.text)
    return in_wait or innermost.function == "_engine_run_backward"


def sentence(text: str) -> str:
    """Return a text with a full stop at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _end(log: RankLog, code: int | None) -> tuple[Stack, int] | None:
    """Return the exception that ended a rank, and how sure that is."""
    errors = [error for error in log.errors if not error.aside]
    if not errors:
        # A child of no exit code may be the rank itself, as in vLLM.
        children = [error for error in log.errors if error.above.startswith("Process ")]
        return (children[-1], LIKELY) if children and code is None else None
    last = errors[-1]
    if last.uncaught:
        return last, SURE
    below = [line for line in log.text[last.end :].splitlines() if line.strip()]
    if len(below) > _BELOW:
        return None
    if code in ENDED_BY_AGENT:
        return (last, PERHAPS) if own(last) is None else None  # it only says where the rank was
    if code not in (None, 1, -signal.SIGABRT):
        return None
    if code is not None:
        return (last, SURE) if (code == 1) == bool(last.frames) else None
    return last, PERHAPS if last.logged else LIKELY


def were(ranks: tuple[int, ...]) -> str:
    """Return the verb for one rank or several."""
    return "were" if ranks[1:] else "was"


def capital(ranks: tuple[int, ...]) -> str:
    """Return ranks as a sentence begins with them.

    >>> capital((0, 1))
    'Ranks 0 and 1'
    """
    return named_ranks(ranks).capitalize()
