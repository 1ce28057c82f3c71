"""What a rank saw, made short for the cases of the claims' judges."""

from __future__ import annotations

from ppwork.claims.claim import RankEnd, RankSeen


def seen(ended=RankEnd.RETURNED, **fields) -> RankSeen:
    return RankSeen(ended=ended, **fields)


def noted(*notes) -> list[RankSeen]:
    """Ranks that returned, each with its notes."""
    return [seen(notes=each) for each in notes]


def raised(error, line="", **notes) -> RankSeen:
    return seen(RankEnd.RAISED, error_type="RuntimeError", error=error, line=line, notes=notes)
