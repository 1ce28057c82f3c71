"""One clock for the spans of all hosts: who shares a clock, how far apart the others are, and how surely.

Spans are on each host's monotonic clock, which begins at its boot. Ranks of one host share it, and nothing
is measured between them. Between hosts rank 0 asks for the time and takes the answer of the quickest round:
the peer read its clock somewhere between question and answer, so the middle of the two is wrong by half of
the round trip at most. The drift of two clocks after start-up is not followed. ``clock_exchange`` does the
asking.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ppwork.errors import ranks_by_value
from ppwork.records.identity import BOOT_ID
from ppwork.records.spans import Entry, Instant

CLOCK = "clock"
"""Name of the instant that says how far a rank's clock is ahead; one in each span file."""
HOST = "host."
"""What the name of an instant begins with that says on which clock a rank is; its figure ``rank`` says whose
word it is about. A rank's own comes first in its span file, those of all others when they have met."""
TIME_NAMESPACE = Path("/proc/self/ns/time")


@dataclass(frozen=True)
class Clock:
    """The clock that a rank's spans are on.

    Attributes:
        name: The same on two ranks exactly if they share it; the host's name, then what the kernel says.
        now_ns: Reads it.
    """

    name: str
    now_ns: Callable[[], int] = time.monotonic_ns

    @classmethod
    def of_this_host(cls) -> Clock:
        """Return the monotonic clock of this boot of this kernel; a time namespace shifts it.

        Machines that were resumed from one snapshot share a boot's id and no clock, so the host's name comes
        first; it stands alone where the kernel tells neither (anything but Linux).
        """
        words = [platform.node().replace(" ", "-")]
        with suppress(OSError):
            words.append(BOOT_ID.read_text().strip())
            words.append(str(TIME_NAMESPACE.readlink()))  # not in every kernel
        return cls(" ".join(words))


class Offset(msgspec.Struct, frozen=True):
    """How far a rank's clock is ahead of rank 0's, in nanoseconds."""

    offset_ns: int
    error_ns: int
    """The offset is not further from the truth than this."""


SAME = Offset(0, 0)
"""Offset of a rank that shares rank 0's clock."""


@dataclass(frozen=True)
class Round:
    """One question for the time: left and came back by the asker's clock, answered by the peer's."""

    left_ns: int
    peer_ns: int
    back_ns: int

    @property
    def offset(self) -> Offset:
        """Offset by this round alone."""
        trip_ns = self.back_ns - self.left_ns
        return Offset(self.peer_ns - (self.left_ns + trip_ns // 2), (trip_ns + 1) // 2)


def best(rounds: Iterable[Round]) -> Offset:
    """Return the offset of the quickest round, which bounds the error most tightly."""
    return min((question.offset for question in rounds), key=lambda offset: offset.error_ns)


def ranks_elsewhere(names: Sequence[str]) -> list[list[int]]:
    """Group the ranks that do not share rank 0's clock by the clock they have, lowest rank first.

    Args:
        names: The name of every rank's clock, by rank.
    """
    groups = ranks_by_value(dict(enumerate(names)))
    return [ranks for name, ranks in groups.items() if name != names[0]]


def host_of(clock: str) -> str:
    """Return the name of the host that a clock is of.

    >>> host_of("gpu-a 5f0c time:[4026531834]")
    'gpu-a'
    """
    return clock.partition(" ")[0]


def whose_clock(rank: int, name: str) -> Instant:
    """Return the entry that says on which clock a rank is, now."""
    return Instant(HOST + name, "main", time.monotonic_ns(), figures={"rank": float(rank)})


def clock_names(entries_by_rank: Mapping[int, Iterable[Entry]]) -> dict[int, str]:
    """Return the name of each rank's clock, as far as its own entries or those of others say it."""
    said = [
        (rank == round(entry.figures.get("rank", -1)), round(entry.figures.get("rank", -1)), entry.name)
        for rank, entries in entries_by_rank.items()
        for entry in entries
        if isinstance(entry, Instant) and entry.name.startswith(HOST)
    ]
    # A rank's own word comes last, and stays.
    names = {about: name.removeprefix(HOST) for _, about, name in sorted(said) if about >= 0}
    return dict(sorted(names.items()))


def clock_offsets(entries_by_rank: Mapping[int, Iterable[Entry]]) -> dict[int, int]:
    """Return the nanoseconds to subtract from the times of each rank to be on rank 0's clock.

    Ranks that share a clock share its offset. A rank on a clock that was compared with nobody's is not in the
    result, such as one of another host that never joined. Where no rank names its clock all are on one.
    """
    said = _measured(entries_by_rank)
    names = clock_names(entries_by_rank)
    if not names:
        return {rank: said.get(rank, 0) for rank in entries_by_rank}
    of_clock = {names[rank]: offset for rank, offset in said.items() if rank in names}
    if not of_clock or 0 in names:
        of_clock.setdefault(names[min(names)], 0)
    return {rank: of_clock[name] for rank, name in names.items() if name in of_clock} | said


def _measured(entries_by_rank: Mapping[int, Iterable[Entry]]) -> dict[int, int]:
    return {
        rank: round(entry.figures["offset_ns"])
        for rank, entries in entries_by_rank.items()
        for entry in entries
        if isinstance(entry, Instant) and entry.name == CLOCK and "offset_ns" in entry.figures
    }
