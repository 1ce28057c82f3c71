"""The stretch of a program's time that its picture shows, and what of it is left out.

Start-up ends with ``init_process_group``, and work with the last call that does not shut down: both tell
nothing of the program, and take longer than it. A stand of seconds after milliseconds of work is broken.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace

from ppwork.diagnosis.program_waits import ProgramWaits
from ppwork.errors import PlanError
from ppwork.records.calls import Call
from ppwork.timeline.meetings import START, Meetings

END = "destroy_process_group"
SHOWN = 30
"""Calls of one rank that are shown at most, where nobody says what to show."""
BEFORE, AFTER, OPEN = 0.01, 0.05, 0.2
"""Room before the first moment, after the last, and for ranks that stand for ever; in parts of the time."""
BROKEN = 0.9
"""Part of the time from which on a stand hides all else."""
SHORT_NS = 100_000_000
"""A stand that is drawn whole: beside a shorter one a call of a millisecond is still seen."""
BREAK = 0.25
"""Width of a break, in parts of what is shown beside it."""


@dataclass(frozen=True)
class ShownTime:
    """A stretch of a program's time.

    Attributes:
        zero_ns: Where milliseconds count from.
        start_ns: Its first moment.
        end_ns: Its last moment.
        last_ns: The last moment of the program's calls, but those that shut down and are left out.
        gap: What is left out in the middle, if anything: from a moment until another.
        cut_end: Whether calls that shut down are left out.
        since: What milliseconds count from, in words.
    """

    zero_ns: int
    start_ns: int
    end_ns: int
    last_ns: int
    gap: tuple[int, int] | None = None
    cut_end: bool = False
    since: str = "from the first call after start-up"

    @classmethod
    def of(
        cls,
        met: Meetings,
        end: ProgramWaits | None,
        from_ms: float | None = None,
        until_ms: float | None = None,
        after: str = "",
    ) -> ShownTime:
        """Choose it, or take what somebody asks for.

        Args:
            met: The program's calls.
            end: Where its ranks stand.
            from_ms: Begin that somebody asks for.
            until_ms: End that somebody asks for.
            after: A function: milliseconds count from where a rank has left its last call of it, and what
                comes before is not shown.

        Raises:
            PlanError: There is no call in it, or none of this function.
        """
        every = _every(met)
        zero = _end_of(after, every) if after else zero_of(met)
        cut_end = not _is_subject(met, end) and any(call.name != END for call in every)
        counted = [call for call in every if not (cut_end and call.name == END)]
        last_ns = max(_moments(counted))
        if from_ms is not None or until_ms is not None:
            start_ns = zero if from_ms is None else zero + round(from_ms * 1e6)
            end_ns = last_ns if until_ms is None else zero + round(until_ms * 1e6)
            cut_end = cut_end and until_ms is None
            shown = cls(zero, start_ns, max(end_ns, start_ns + 1000), last_ns, None, cut_end)
        else:
            start_ns, end_ns = _stretch(met, end, zero if after else min(zero, last_ns), last_ns)
            gap = _gap(counted, start_ns, end_ns)
            seen = end_ns - start_ns - (gap[1] - gap[0] if gap else 0)
            stands = any(call.end_ns is None for call in counted) and end_ns == last_ns
            end_ns += max(round((OPEN if stands else AFTER) * seen), 1000) if end_ns == last_ns else 0
            shown = cls(zero, start_ns, end_ns, last_ns, gap, cut_end)
        if after:
            shown = replace(shown, since=f"after the last {after}")
        if not any(shown.shows(call) for call in every):
            first, last = shown.ms(shown.start_ns), shown.ms(shown.end_ns)
            raise PlanError(
                f"There is no call between {first:.1f} and {last:.1f} ms.",
                check_first=f"the program's last moment is {shown.ms(max(_moments(every))):.1f} ms",
            )
        return shown

    def ms(self, at_ns: int) -> float:
        """Return a moment in milliseconds."""
        return (at_ns - self.zero_ns) / 1e6

    def x(self, at_ns: int) -> float:
        """Return where a moment is drawn: in milliseconds up to the gap, which is as wide as a break."""
        if self.gap is None or at_ns <= self.gap[0]:
            return self.ms(at_ns)
        first, then = self.gap
        inside = min(1.0, (at_ns - first) / (then - first))
        return self.ms(first) + inside * self._break_ms + max(0, at_ns - then) / 1e6

    @property
    def limits(self) -> tuple[float, float]:
        """Ends of the axis, as ``x`` has them."""
        start, end = self.x(self.start_ns), self.x(self.end_ns)
        return start - BEFORE * (end - start), end

    @property
    def _break_ms(self) -> float:
        first, then = self.gap or (0, 0)
        return BREAK * (self.end_ns - self.start_ns - (then - first)) / 1e6

    @property
    def words(self) -> str:
        """What of the program is shown, in words; nothing if all of it is."""
        start, end, last = (
            self.ms(at) for at in (self.start_ns, min(self.end_ns, self.last_ns), self.last_ns)
        )
        digits = 0 if end - start >= 10 else 1
        if self.gap is not None:
            out = (self.gap[1] - self.gap[0]) / 1e6
            digits = 0 if round(last) > round(out) else 1
            return f"{last:.{digits}f} ms; {out:.{digits}f} of them are left out at the //"
        if self.start_ns <= self.zero_ns and self.end_ns >= self.last_ns:
            return ""
        if self.start_ns <= self.zero_ns:
            return f"the first {end:.{digits}f} of {last:.0f} ms"
        if self.end_ns >= self.last_ns:
            return f"the last {end - start:.{digits}f} of {last:.0f} ms"
        return f"{start:.{digits}f} to {end:.{digits}f} of {last:.0f} ms"

    def shows(self, call: Call) -> bool:
        """Say whether a call is in it, or a part of one."""
        return call.start_ns <= self.end_ns and (call.end_ns is None or call.end_ns >= self.start_ns)


def zero_of(met: Meetings) -> int:
    """Return the first moment after start-up: ranks come to that as their processes start."""
    every = _every(met)
    after = [call.start_ns for call in every if call.name not in (START, END)]
    return min(after or [call.start_ns for call in every])


def _every(met: Meetings) -> list[Call]:
    return [call for of_rank in met.ranks.values() for call in of_rank.calls]


def _end_of(name: str, every: list[Call]) -> int:
    """Return when the first rank came out of its last call of a function."""
    ends: dict[int, int] = {}
    for call in every:
        if call.name == name and call.end_ns is not None:
            ends[call.rank] = max(call.end_ns, ends.get(call.rank, 0))
    if not ends:
        raise PlanError(
            f"No call of {name} came to its end.",
            check_first=f"after: one of {', '.join(sorted({call.name for call in every}))}",
        )
    return min(ends.values())


def _moments(calls: Collection[Call]) -> list[int]:
    moments = [moment for call in calls for moment in (call.start_ns, call.end_ns) if moment is not None]
    return moments + [call.device.end_ns for call in calls if call.device is not None]


def _is_subject(met: Meetings, end: ProgramWaits | None) -> bool:
    """Say whether the shut-down is what went wrong: it did not end well, or others were left in a call."""
    for of_rank in met.ranks.values():
        for leaves in (call for call in of_rank.calls if call.name == END):
            if leaves.error or leaves.end_ns is None:
                return True
            for call in (c for c in _every(met) if c.rank != leaves.rank and c.name not in (START, END)):
                was_left = call.end_ns is not None and call.error and call.end_ns >= leaves.start_ns
                stands = call.end_ns is None and end is not None and not end.mismatches
                if call.start_ns <= (leaves.end_ns or call.start_ns) and (was_left or stands):
                    return True
    return False


def _stretch(met: Meetings, end: ProgramWaits | None, first_ns: int, last_ns: int) -> tuple[int, int]:
    """Return an ordinary stretch: all, or ``SHOWN`` calls about what is worth a look."""
    busiest = max(met.ranks.values(), key=lambda of_rank: len(of_rank.calls))
    calls = [call for call in busiest.calls if call.start_ns >= first_ns]
    if len(calls) <= SHOWN:
        return first_ns, last_ns
    if end is not None and end.waits:
        return calls[-SHOWN].start_ns, last_ns
    about_ns = met.stalls[0].call.start_ns if met.stalls else first_ns
    at = next((n for n, call in enumerate(calls) if call.start_ns >= about_ns), 0)
    at = max(0, min(at - SHOWN // 3, len(calls) - SHOWN))
    until = calls[at + SHOWN - 1]
    return calls[at].start_ns, until.end_ns or last_ns


def _gap(calls: list[Call], start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Return a long time in which nothing happens but that ranks stand, if there is work beside it."""
    inside = [call for call in calls if call.name != START and call.start_ns >= start_ns]
    moments = sorted({at for at in _moments(inside) if start_ns <= at <= end_ns})
    if len(moments) < 2:
        return None
    first, then = max(itertools.pairwise(moments), key=lambda two: two[1] - two[0])
    stood = [call for call in inside if call.start_ns <= first and call.error and (call.end_ns or 0) >= then]
    beside = [call for call in inside if (call.end_ns or then) <= first or call.start_ns >= then]
    if not stood or not beside or then - first < max(BROKEN * (end_ns - start_ns), SHORT_NS):
        return None
    # So much of the stand is left on both sides that it is seen to begin and to end.
    seen = (end_ns - start_ns - (then - first)) // 6
    return first + seen, then - seen
