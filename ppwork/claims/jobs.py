"""What is asked of a warm process, and what it answers; plain JSON lines."""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One program, to be run by so many ranks."""

    folder: str
    path: str
    ranks: int
    limit_s: float
    timeout_s: float
    backend: str
    environment: dict[str, str] = {}
    fresh: bool = False


class Done(msgspec.Struct, frozen=True):
    """How the ranks of a job ended: exit code (negative: signal), seconds, whether the limit passed."""

    exit_codes: list[int]
    seconds: list[float]
    hung: list[bool]
