"""Evidence of a torchrun job, anybody's: the end of each rank by its log, with its error, place and call.

Errors about a peer ("Connection closed by peer", "Timed out waiting") are symptoms on every rank that has
one: they only say where that rank was.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ppwork.diagnosis.findings import Wait
from ppwork.diagnosis.logs import ENDED_BY_AGENT, JobLogs, RankLog, death, without_noise
from ppwork.diagnosis.stacks import Stack
from ppwork.errors import named_ranks, ranks_by_value
from ppwork.protocol.backend_errors import LOST_TEXTS, TIMEOUT_TEXTS

DETAIL = "run it once more with TORCH_DISTRIBUTED_DEBUG=DETAIL: it names ranks, calls and shapes"
STACKS = (
    "start with PYTHONFAULTHANDLER=1; in a hang stop torchrun (SIGSTOP), send SIGABRT to all ranks, let it "
    "go on (SIGCONT): each rank then shows its stack"
)
_ABOUT_OTHERS = ("Detected mismatch between collectives", "monitoredBarrier", "Watchdog caught")


class JobEvidence:
    """Each rank's log as far as it speaks of its end: its error, its place, its call."""

    def __init__(self, job: JobLogs) -> None:
        self.job, self.codes = job, job.report.codes
        self.error: dict[int, Stack] = {r: log.errors[-1] for r, log in job.ranks.items() if log.errors}
        self.raised = [r for r, e in self.error.items() if not _symptom(e) and e.error != "KeyboardInterrupt"]
        self.lost = [r for r, e in self.error.items() if _says(e, LOST_TEXTS)]
        self.late = [r for r, e in self.error.items() if _says(e, TIMEOUT_TEXTS) and r not in self.lost]
        self.place = {r: stack for r, log in job.ranks.items() if (stack := _place(log)) is not None}
        self.silent = [r for r in job.ranks if r not in self.place and r not in self.error]

    @property
    def asked(self) -> list[int]:
        """Ranks that somebody ended with SIGABRT to see their stacks: several, each in a call of the backend.

        torchrun may have ended the rest before their handler ran, if it was not stopped meanwhile.
        """
        aborted = [rank for rank, code in self.codes.items() if code == -signal.SIGABRT]
        blind = [r for r in aborted if r in self.place and self.place[r].blind and self.place[r].call]
        rest = [rank for rank in self.codes if rank not in aborted]
        others = [r for r in aborted if r not in blind and r not in self.silent]
        others += [r for r in rest if self.codes[r] not in ENDED_BY_AGENT]
        return blind if blind[1:] and not others else []

    def first_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return ranks with the one that torchrun saw fail first at the front."""
        return tuple(sorted(ranks, key=lambda rank: (rank != self.job.report.first, rank)))

    def in_call(self, but: Iterable[int] = ()) -> dict[int, str]:
        """Return the call of each rank that was in one."""
        return {r: stack.call for r, stack in self.place.items() if stack.call and r not in but}

    def doing(self, but: Iterable[int] = ()) -> str:
        """Say which ranks were in which call, as a part of a sentence."""
        return ", ".join(
            f"{named_ranks(ranks)} {'were' if ranks[1:] else 'was'} in {call}"
            for call, ranks in ranks_by_value(self.in_call(but)).items()
        )

    def line(self, rank: int) -> str:
        """Say where a rank was and how it ended."""
        stack, error, code = self.place.get(rank), self.error.get(rank), self.codes.get(rank)
        users = stack.users if stack is not None else None
        at = f", in {stack.call or users.function} at {users.at}" if stack and users else ""
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
    texts = LOST_TEXTS + TIMEOUT_TEXTS + _ABOUT_OTHERS
    errors = [cause.message for cause in error.chain if cause.error.endswith("Error")]
    return any(text in message for message in errors for text in texts)


def _says(error: Stack, texts: tuple[str, ...]) -> bool:
    return any(text in cause.message for cause in error.chain for text in texts)


def said_of(error: Stack) -> str:
    """Return type and text of an exception, without gloo's source position and its advice."""
    text = without_noise(error.message)
    return f"{error.error}: {text}" if text else error.error


def _place(log: RankLog) -> Stack | None:
    """Return where a rank was when it ended: its last exception, or its main thread's stack."""
    if log.errors:
        return next((cause for cause in log.errors[-1].chain if cause.users is not None), log.errors[-1])
    return next((stack for stack in reversed(log.threads) if stack.users is not None), None)


def capital(ranks: tuple[int, ...]) -> str:
    """Return ranks as a sentence begins with them.

    >>> capital((0, 1))
    'Ranks 0 and 1'
    """
    return named_ranks(ranks).capitalize()
