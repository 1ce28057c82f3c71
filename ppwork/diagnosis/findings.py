"""A diagnosis, and what it is made of: a rule's finding, the waits of the ranks, the user's own lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ppwork.diagnosis.stacks import Frame, Stack
from ppwork.errors import RunFailed, named_ranks
from ppwork.records.failure import FailureRecord

NOBODY = -1
"""In place of a rank, where none is to blame."""
RANK_DIED = "RankDied"
"""Error type of a rank whose process ended without a word: it showed no exception."""
NO_RECORD = "NoRecord"
"""Error type of a rank of a run that ended without a record, and of whose end nothing else is known."""
CUT_OFF = "CutOff"
"""Error type of a rank whose traceback ends before its error."""
MOST_CALLERS = 3
MOST_CHARACTERS = 2000
"""Of a sentence on a console: the list of a model's missing keys can fill several screens."""


class Wait(NamedTuple):
    """A rank that was in a call which others had to complete."""

    rank: int
    call: str
    """Such as ``broadcast of call 5 on mesh_pg``, or ``all_reduce at train.py:31``."""
    waits_for: tuple[int, ...]

    def __str__(self) -> str:
        whom = named_ranks(self.waits_for) if self.waits_for else "nobody"
        return f"rank {self.rank} waits for {whom}: {self.call}"


@dataclass(frozen=True)
class Finding:
    """Answer of a rule about a job.

    Attributes:
        ranks: Ranks to look at, the first one first.
        stack: Place of the first of them, if the log shows it.
        unknown: Questions that the logs leave open.
        seen: Evidence beside it, a line each.
        weight: Strength of the evidence; the heaviest finding is the answer.
    """

    ranks: tuple[int, ...]
    error_type: str
    what: str
    check_first: str
    stack: Stack | None = None
    unknown: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    weight: int = 0


def _beginning(sentence: str) -> str:
    """Return the sentence; of one that no screen has room for its beginning, and how much is left out."""
    left_out = len(sentence) - MOST_CHARACTERS
    if left_out <= 0:
        return sentence
    return f"{sentence[:MOST_CHARACTERS]} ... ({left_out:,} characters more in the log of that rank)"


def source_lines(users: Frame | None, callers: Sequence[Frame] = ()) -> tuple[str, ...]:
    """Return the user's own line as it is shown first of all: file and line, function, source if known.

    ``callers``: the calls that led there, the nearest first; no more than ``MOST_CALLERS`` are shown.
    """
    if users is None:
        return ()
    place = f"{users.at}, in {users.function}" if users.function else users.at
    calls = dict.fromkeys(f"{Path(each.file).name}:{each.line}" for each in callers if each.at != users.at)
    place += "".join(f", called at {call}" for call in [*calls][:MOST_CALLERS])
    return (place, *([f"    {users.text}"] if users.text else []))


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Account of a run or job that has ended.

    Attributes:
        source: The folder or file that was read.
        cause: The record of what went wrong first, or ``None``: nothing failed.
        lines: The user's own file, line and source, if the cause came from there; shown first of all.
        log: The log of the rank that failed first.
        seen: Evidence beside the headline, a line each; also of a run that did not fail.
        others: Records of the other ranks, by time.
        places: One line for each other rank, by time: where it was last.
        waits: Who waited for whom when it ended.
        flight: Groups whose ranks were at different collectives, by the flight recorder.
        unknown: Questions that these files cannot answer.
        headline: Sentence about the cause; default: its rank, type and text.
        advice: Where to look, if no cause was found.
        is_odd: Whether it ended well and yet not as it was planned: other results, chunks, cuts, threads.
    """

    source: Path
    cause: FailureRecord | None = None
    lines: tuple[str, ...] = ()
    log: str = ""
    seen: tuple[str, ...] = ()
    others: tuple[FailureRecord, ...] = ()
    places: dict[int, str] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    flight: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    headline: str = ""
    advice: str = ""
    is_odd: bool = False

    @property
    def check_first(self) -> str:
        """One or two things to look at."""
        return (self.cause.check_first or self.log) if self.cause is not None else self.advice

    @property
    def sentence(self) -> str:
        """The event, without files and the other ranks; of a very long message its beginning."""
        if self.headline:
            return _beginning(self.headline)
        if self.cause is None:
            return f"Nothing failed in {self.source}."
        return _beginning(f"Rank {self.cause.rank} failed first: {self.cause.error_type}: {self.cause.what}")

    @property
    def story(self) -> str:
        """All but ``where`` and ``check_first``: the user's line, the cause, then the other ranks."""
        if self.cause is None:
            advice = [f"  check first: {self.advice}"] if self.advice else []
            unknown = (f"  not known: {question}" for question in self.unknown)
            return "\n".join([self.sentence, *self.seen, *advice, *unknown])
        return "\n".join(
            [
                *self.lines,
                self.sentence,
                *([f"  log: {self.log}"] if self.log else []),
                *(f"  {line}" for line in (*self.seen, *self.places.values())),
                *(f"  {wait}" for wait in self.waits),
                *(f"  flight recorder, {difference}" for difference in self.flight),
                *(f"  not known: {question}" for question in self.unknown),
            ]
        )

    @property
    def text(self) -> str:
        """Everything, as it is printed."""
        return str(self.as_error()) if self.cause is not None else self.story

    def as_error(self) -> RunFailed:
        """Return the error that ``launch`` raises."""
        where = self.cause.where if self.cause is not None else {}
        return RunFailed(self.story, where=where, check_first=self.check_first, headline=self.sentence)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "source": str(self.source),
            "failed": self.cause is not None,
            "odd": self.is_odd,
            "cause": msgspec.to_builtins(self.cause),
            "others": msgspec.to_builtins(self.others),
            "seen": list(self.seen),
            "waits": [wait._asdict() for wait in self.waits],
            "flight": list(self.flight),
            "unknown": list(self.unknown),
            "check_first": self.check_first,
            "text": self.text,
        }

    def __repr__(self) -> str:
        return self.text
