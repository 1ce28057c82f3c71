"""A program to be run by ranks: the command line of each, its files, and how they ended."""

from __future__ import annotations

import msgspec

from ppwork.claims.claim import Program

NOTES, OUTCOME = "notes{}.jsonl", "outcome{}.json"
"""Files of a rank: its notes, one JSON object a line; how it ended by itself, not killed or aborted."""
BEGUN, STACK = "begun{}", "stack{}.txt"
"""The mark that it has come to its program, from where its limit counts; where it was when that passed."""


class ClaimJob(msgspec.Struct, frozen=True):
    """One program, to be run in a folder, its groups made of a backend."""

    program: Program
    folder: str
    backend: str


class JobOutcome(msgspec.Struct, frozen=True):
    """How the ranks of a job ended: exit code (negative: signal), seconds, whether the limit passed."""

    exit_codes: list[int]
    seconds: list[float]
    hung: list[bool]
