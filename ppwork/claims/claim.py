"""A claim about ``torch.distributed``: its statement, the programs that try it, and how a verdict is reached.

Pure data and pure judging. The programs are plain ``torch.distributed`` of a few lines (``programs/``); they
note what they see, and ``judge`` makes a verdict of nothing but those notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

# Beginnings of ``Claim.source``: where a claim is from.
CARD = "API card of torch.distributed"
"""A team's summary of the documentation: 11 claims, 10 gotchas."""
DOCS = "documentation of torch.distributed"
SEEN = "seen with torch 2.13"
"""Nowhere documented: found by running it."""
NOTES = "release notes of torch.distributed"
CHECKPOINT_NOTES = "release notes of distributed checkpoint"
BRIEFING = "briefing on torch.distributed of June 2026"
"""On the renaming of collectives and the NCCL that is required."""


class Verdict(StrEnum):
    """Result of a claim's programs on this machine."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold here"
    NOT_TESTABLE = "not testable here"
    ERROR = "error"
    """The programs did not show what a verdict needs: a defect of ours, never a finding."""


class RankEnd(StrEnum):
    """How one rank of a program ended."""

    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"
    """With a code that the program did not choose to report, such as an abort in C++."""
    HUNG = "hung"
    """It was still running at the limit, and was killed."""


class RankSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one rank of one program."""

    ended: RankEnd
    notes: dict[str, Any] = {}
    """Notes of the program, in its own words; survives an abort and a hang."""
    error_type: str = ""
    error: str = ""
    """First line of the exception."""
    exit_code: int = 0
    """Negative: the signal that ended it."""
    seconds: float = 0.0
    line: str = ""
    """Source line that it was in when it raised or hung."""
    output: str = ""
    """The end of what it printed, warnings included."""


Seen = Mapping[str, list[RankSeen]]
"""By program name, what each rank did."""


class ClaimFinding(msgspec.Struct, frozen=True):
    """A verdict and the sentence that it rests on."""

    verdict: Verdict
    observed: str
    """Events in one sentence, made from the notes."""


@dataclass(frozen=True)
class Program:
    """One program of a claim.

    Attributes:
        path: ``module:function`` below ``ppwork.claims.programs``, such as ``p2p:send_waits_for_recv``.
        ranks: Processes to start.
        limit_s: From when all ranks have come to the program; who still runs then has hung and is killed.
        timeout_s: Of the process group that is set up for the program; 0 is none: it makes its own.
        environment: Added to each rank's, before torch reads it.
        fresh: Start new interpreters instead of forking one that has torch warm: for what torch reads at
            import, and for the way out of an interpreter.
    """

    path: str
    ranks: int = 2
    limit_s: float = 10.0
    timeout_s: float = 5.0
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False


def unhurried(path: str, ranks: int = 2, environment: Mapping[str, str] | None = None) -> Program:
    """Return a program that imports or starts a lot before its first message, each rank at its own pace.

    Its bounds are only there to end it: what it claims says nothing of time.
    """
    return Program(path, ranks, limit_s=60.0, timeout_s=30.0, environment=environment or {})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One entry of the catalogue.

    Attributes:
        id: As in the catalogue: ``C04``, ``G02``, ``D07``, ``T03``.
        statement: What is said, in our words; one sentence that stands alone.
        source: Where it is said, with its section.
        backends: The backends it speaks of.
        programs: What is run, by name; a claim about a trap has ``broken`` and ``mended``.
        judge: Makes the finding from what the ranks saw and nothing else.
        advice: What your code must do, given either verdict.
        theme: What it means for pipeline-parallel code: the group it is listed in; default: its file's.
        gpus: GPUs that it needs; 0 runs anywhere.
        alone: Its times count, so nothing else may run meanwhile.
    """

    id: str
    statement: str
    source: str
    backends: tuple[str, ...] = ("gloo", "nccl")
    programs: Mapping[str, Program]
    judge: Callable[[Seen], ClaimFinding]
    advice: str
    theme: str = ""
    gpus: int = 0
    alone: bool = False


def holds(observed: str, *, when: bool = True) -> ClaimFinding:
    """Return the finding that the claim is as it says; or, unless ``when``, that something else happened."""
    return ClaimFinding(Verdict.HOLDS, observed) if when else does_not_hold(observed)


def does_not_hold(observed: str) -> ClaimFinding:
    """Return the finding that something else happened."""
    return ClaimFinding(Verdict.DOES_NOT_HOLD, observed)


def not_testable(reason: str) -> ClaimFinding:
    """Return the finding that this machine or version cannot say."""
    return ClaimFinding(Verdict.NOT_TESTABLE, reason)


def between(extremes: list[float]) -> str:
    """Return the smallest and the largest number of a tensor in words: one number, or a mixture."""
    low, high = extremes
    return f"{low:g}" if low == high else f"a mixture of {low:g} and {high:g}"


def end_of(rank: RankSeen) -> str:
    """Return how a rank ended, to be read after its name."""
    if rank.ended is RankEnd.EXITED:
        return (
            f"was ended by signal {-rank.exit_code}" if rank.exit_code < 0 else f"left with {rank.exit_code}"
        )
    return f"raised {rank.error_type}" if rank.ended is RankEnd.RAISED else str(rank.ended)
