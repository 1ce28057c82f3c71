"""What each rank's log says of its end, in a torchrun job of anybody's: its error, its place, its call.

Errors about a peer ("Connection closed by peer", "Timed out waiting") are symptoms on every rank that has
one: they only say where that rank was.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import named_ranks
from ppwork.findings import Wait
from ppwork.peers import LOST_TEXTS, TIMEOUT_TEXTS
from ppwork.torchrun_logs import death, without_noise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ppwork.stacks import Stack
    from ppwork.torchrun_logs import JobLogs, RankLog

DETAIL = "run it once more with TORCH_DISTRIBUTED_DEBUG=DETAIL: it names ranks, calls and shapes"
STACKS = "start with PYTHONFAULTHANDLER=1 and end a hang with SIGABRT to all ranks: each then shows its stack"
ENDED_BY_AGENT = (-signal.SIGTERM, -signal.SIGINT)
"""Exit codes of ranks that torchrun ended because another one had failed, or because of a Ctrl-C."""
_ABOUT_OTHERS = ("Detected mismatch between collectives", "monitoredBarrier", "Watchdog caught")


@dataclass(frozen=True)
class Found:
    """What a rule says.

    Attributes:
        ranks: Who is to be looked at, the first one first.
        stack: Where that was, if the log shows it.
    """

    ranks: tuple[int, ...]
    error_type: str
    what: str
    check_first: str
    stack: Stack | None = None
    unknown: tuple[str, ...] = ()


class Evidence:
    """What each rank's log says of its end."""

    def __init__(self, job: JobLogs) -> None:
        self.job, self.codes = job, job.report.codes
        self.error: dict[int, Stack] = {r: log.errors[-1] for r, log in job.ranks.items() if log.errors}
        self.raised = [r for r, e in self.error.items() if not _symptom(e) and e.error != "KeyboardInterrupt"]
        self.lost = [r for r, e in self.error.items() if _says(e, LOST_TEXTS)]
        self.late = [r for r, e in self.error.items() if _says(e, TIMEOUT_TEXTS) and r not in self.lost]
        self.place = {r: place for r, log in job.ranks.items() if (place := _place(log)) is not None}
        self.silent = [r for r in job.ranks if r not in self.place and r not in self.error]

    def first_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return ranks with the one that torchrun saw fail first at the front."""
        return tuple(sorted(ranks, key=lambda rank: (rank != self.job.report.first, rank)))

    def in_call(self, but: Iterable[int] = ()) -> dict[int, str]:
        """Return the call of each rank that was in one."""
        return {r: stack.call for r, stack in self.place.items() if stack.call and r not in but}

    def doing(self, but: Iterable[int] = ()) -> str:
        """Say which ranks were in which call, as a part of a sentence."""
        by_call: dict[str, list[int]] = {}
        for rank, call in self.in_call(but).items():
            by_call.setdefault(call, []).append(rank)
        return ", ".join(
            f"{named_ranks(tuple(ranks))} {'were' if ranks[1:] else 'was'} in {call}"
            for call, ranks in by_call.items()
        )

    def line(self, rank: int) -> str:
        """Say where a rank was and how it ended."""
        place, error, code = self.place.get(rank), self.error.get(rank), self.codes.get(rank)
        users = place.users if place is not None else None
        at = ""
        if place is not None and users is not None:
            at = f", in {place.call or users.function} at {users.at}"
        if error is not None:
            return f"rank {rank}{at}: {said_of(error).splitlines()[0]}"
        return f"rank {rank}{at}: {'left no word' if code is None else death(code)}"

    def waits(self, culprits: tuple[int, ...]) -> tuple[Wait, ...]:
        """Return the calls in which the other ranks waited for the culprits."""
        return tuple(
            Wait(rank, f"{call} at {users.at}", culprits)
            for rank, call in self.in_call(but=culprits).items()
            if (users := self.place[rank].users) is not None and culprits
        )


def _symptom(error: Stack) -> bool:
    known = LOST_TEXTS + TIMEOUT_TEXTS + _ABOUT_OTHERS
    return any(one.error.endswith("Error") and any(t in one.message for t in known) for one in error.chain)


def _says(error: Stack, texts: tuple[str, ...]) -> bool:
    return any(text in one.message for one in error.chain for text in texts)


def said_of(error: Stack) -> str:
    """Return type and text of an exception, without gloo's source position and its advice."""
    text = without_noise(error.message)
    return f"{error.error}: {text}" if text else error.error


def _place(log: RankLog) -> Stack | None:
    """Return where a rank was when it ended: its last exception, or its main thread's stack."""
    if log.errors:
        return next((one for one in log.errors[-1].chain if one.users is not None), log.errors[-1])
    return next((stack for stack in reversed(log.threads) if stack.users is not None), None)


def capital(ranks: tuple[int, ...]) -> str:
    """Return ranks as a sentence begins with them.

    >>> capital((0, 1))
    'Ranks 0 and 1'
    """
    return named_ranks(ranks).capitalize()
