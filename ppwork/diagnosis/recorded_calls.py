"""What the calls of a program add to what its logs tell: who waited for whom, and which calls did not fit."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import msgspec

from ppwork.diagnosis.findings import NOBODY, Diagnosis
from ppwork.diagnosis.program_waits import program_waits
from ppwork.errors import UnreadableError
from ppwork.records.calls import read_calls
from ppwork.timeline.meetings import Meetings

FROM_PLACES = ("CollectiveMismatch", "LeftEarly", "NeverCame", "OnlySymptoms", "Timeout", "Unmatched")
"""What the logs are read to say where nothing but the places of the ranks is known: their calls tell more."""


def with_calls(found: Diagnosis, folder: Path) -> Diagnosis:
    """Return the diagnosis of a job's logs with what its ranks called, if their folder has that, too."""
    end, asked = None, (*FROM_PLACES, "Stopped")
    if found.cause is not None and found.cause.error_type in asked:
        with contextlib.suppress(UnreadableError):  # the calls do not read
            end = program_waits(Meetings(read_calls(folder)))
    if end is None or found.cause is None:
        return found
    if found.cause.error_type == "Stopped":  # what ended it is known, and where the ranks were is not
        headline = " ".join((found.headline, end.sentence))
        cause = msgspec.structs.replace(found.cause, what=headline, check_first=end.check_first)
        return replace(found, cause=cause, places={}, waits=end.waits, unknown=(), headline=headline)
    rank = NOBODY if end.rank is None else end.rank
    known = rank == found.cause.rank
    where = {} if end.rank is None else {"rank": rank}
    cause = msgspec.structs.replace(
        found.cause, rank=rank, what=end.sentence, where=where, check_first=end.check_first
    )
    return replace(
        found,
        cause=cause,
        lines=found.lines if known else (),
        log=found.log if known else "",
        seen=(),
        places={},
        waits=end.waits,
        unknown=found.unknown if end.rank is None else (),
        headline=end.sentence,
    )
