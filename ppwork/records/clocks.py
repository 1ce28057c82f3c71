"""One clock for the spans of all hosts: which ranks share a clock, and how far apart the others are.

Spans use each host's monotonic clock, which begins at boot. Ranks of one host share it, and nothing is
measured between them. Between hosts rank 0 asks for the time several times and takes the answer of the
quickest round: the peer read its clock between question and answer, so the middle of the two is wrong by at
most half of the round trip. The drift of two clocks after start-up is not followed. ``clock_exchange`` sends
the questions.
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
"""Prefix of the name of an instant that names a rank's clock; the figure ``rank`` says which rank's. In a
span file the rank's own comes first, and those of all others when they have met."""
TIME_NAMESPACE = Path("/proc/self/ns/time")


@dataclass(frozen=True)
class Clock:
    """The clock of a rank's spans.

    Attributes:
        name: Equal on two ranks exactly if they share the clock; the host's name, then the kernel's ids.
        now_ns: Reads the clock.
    """

    name: str
    now_ns: Callable[[], int] = time.monotonic_ns

    @classmethod
    def of_this_host(cls) -> Clock:
        """Return the monotonic clock of this boot of this kernel; a time namespace shifts it.

        Machines that were resumed from one snapshot share a boot id but no clock, so the host's name comes
        first; it stands alone if the kernel has neither id (anything but Linux).
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
    """The offset is wrong by at most this."""


SAME = Offset(0, 0)
"""Offset of a rank that shares rank 0's clock."""


@dataclass(frozen=True)
class Round:
    """One question for the time: sent and answered on the asker's clock, with the peer's time between."""

    left_ns: int
    peer_ns: int
    back_ns: int

    @property
    def offset(self) -> Offset:
        """Offset according to this round alone."""
        trip_ns = self.back_ns - self.left_ns
        return Offset(self.peer_ns - (self.left_ns + trip_ns // 2), (trip_ns + 1) // 2)


def best(rounds: Iterable[Round]) -> Offset:
    """Return the offset of the quickest round, which bounds the error most tightly."""
    return min((question.offset for question in rounds), key=lambda offset: offset.error_ns)


def ranks_elsewhere(names: Sequence[str]) -> list[list[int]]:
    """Group the ranks that do not share rank 0's clock, by clock, lowest rank first.

    Args:
        names: The name of every rank's clock, by rank.
    """
    return [ranks for name, ranks in ranks_by_value(dict(enumerate(names))).items() if name != names[0]]


def host_of(clock: str) -> str:
    """Return the name of the host whose clock this is.

    >>> host_of("gpu-a 5f0c time:[4026531834]")
    'gpu-a'
    """
    return clock.partition(" ")[0]


def whose_clock(rank: int, name: str) -> Instant:
    """Return an entry, with the present time, that names a rank's clock."""
    return Instant(HOST + name, "main", time.monotonic_ns(), figures={"rank": float(rank)})


def clock_names(entries_by_rank: Mapping[int, Iterable[Entry]]) -> dict[int, str]:
    """Return the name of each rank's clock, as far as any rank's entries name it."""
    said = [
        (rank == round(entry.figures.get("rank", -1)), round(entry.figures.get("rank", -1)), entry.name)
        for rank, entries in entries_by_rank.items()
        for entry in entries
        if isinstance(entry, Instant) and entry.name.startswith(HOST)
    ]
    # A rank's own entry comes last, and wins.
    names = {about: name.removeprefix(HOST) for _, about, name in sorted(said) if about >= 0}
    return dict(sorted(names.items()))


def clock_offsets(entries_by_rank: Mapping[int, Iterable[Entry]]) -> dict[int, int]:
    """Return the nanoseconds to subtract from each rank's times to be on rank 0's clock.

    Ranks that share a clock share its offset. A rank whose clock was not compared with any is left out, such
    as a rank of another host that never joined. If no rank names its clock, all are on one.
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
