"""Who noticed when: a failed run as moments in seconds from its beginning, for picture, table and sentence.

It is put together from what the ranks left: span files, failure records and torchrun's report. Ranks of one
host share a clock; of others the measured offset is subtracted, as in every timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.clocks import clock_offsets
from ppwork.errors import PlanError
from ppwork.failure import read_records
from ppwork.fault import INJECTED
from ppwork.lives import WORK, aligned
from ppwork.pulse import read_pulse
from ppwork.run import TORCHRUN_LOG
from ppwork.timeline import Instant, Span
from ppwork.torchrun_logs import death, exit_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ppwork.pulse import PulseView
    from ppwork.run import Run
    from ppwork.timeline import Entry

MAIN = "main"
"""The lane of a rank's main thread."""


@dataclass(frozen=True)
class RankStory:
    """One rank of a failed run; times are in seconds from the beginning of the failure."""

    rank: int
    role: str
    struck: bool
    """Whether it is the rank in which the failure began."""
    doing: str
    """What it was in at the beginning."""
    work: tuple[tuple[float, float], ...]
    """When its stage worked, before and after."""
    noticed_s: float | None
    """When it wrote down that something is wrong; ``None``: it never spoke."""
    error_type: str
    """What it took it for; empty if it never spoke."""
    ended: str
    """How torchrun saw it end, such as ``was killed by SIGKILL``; empty if it did not say."""


@dataclass(frozen=True)
class FailureStory:
    """A failed run, from the moment when something went wrong."""

    fault: str
    """Of the catalogue, with its case; empty when nothing was injected."""
    ranks: tuple[RankStory, ...]

    @property
    def struck(self) -> RankStory:
        """The rank in which it began."""
        return next(rank for rank in self.ranks if rank.struck)

    @property
    def noticed(self) -> dict[int, float]:
        """When each rank spoke, the first one first, in seconds; ranks that never did are not in it."""
        spoke = [(rank.noticed_s, rank.rank) for rank in self.ranks if rank.noticed_s is not None]
        return {rank: at for at, rank in sorted(spoke)}

    @property
    def peers_noticed(self) -> dict[int, float]:
        """``noticed``, of the other ranks: those in which it did not begin."""
        return {rank: at for rank, at in self.noticed.items() if rank != self.struck.rank}


def failure_story(run: Run) -> FailureStory:
    """Put together who was doing what when a run failed, and who noticed when.

    It begins with the injection; where nothing was injected, with the record of the rank that is named first,
    or the last that is known of it.

    Raises:
        PlanError: The run did not fail, or no rank of it can be named.
    """
    named = run.failure.where.get("rank") if run.failure is not None else None
    if named is None:
        raise PlanError(f"No rank of {run.run_dir} is known to have failed.", check_first="Run.failure")
    plan = run.plan
    recorded = {rank: run.entries(rank) for rank in range(plan.world_size)}
    offsets, entries = clock_offsets(recorded), aligned(recorded)
    records = {record.rank: record for record in read_records(run.run_dir, plan.world_size)}
    noticed = {rank: record.at_ns - offsets.get(rank, 0) for rank, record in records.items()}
    struck, zero_ns = _beginning(entries, noticed, named)
    log = run.run_dir / TORCHRUN_LOG
    codes = exit_codes(log.read_text(errors="replace")) if log.exists() else {}

    def seconds(at_ns: int) -> float:
        return (at_ns - zero_ns) / 1e9

    return FailureStory(
        plan.fault,
        tuple(
            RankStory(
                rank=rank,
                role=str(plan.topology.role(rank)),
                struck=rank == struck,
                doing=_doing(entries[rank], zero_ns, read_pulse(run.run_dir, rank), offsets.get(rank, 0)),
                work=tuple((seconds(span.start_ns), seconds(span.end_ns)) for span in _work(entries[rank])),
                noticed_s=seconds(noticed[rank]) if rank in noticed else None,
                error_type=records[rank].error_type if rank in records else "",
                ended=death(codes[rank]) if rank in codes else "",
            )
            for rank in entries
        ),
    )


def _beginning(entries: dict[int, list[Entry]], noticed: dict[int, int], named: int) -> tuple[int, int]:
    """Return the rank in which it began, and when."""
    for rank, found in entries.items():
        for entry in found:
            if isinstance(entry, Instant) and entry.name == INJECTED:
                return rank, entry.at_ns
    if named in noticed:
        return named, noticed[named]
    return named, max((_end_ns(entry) for entry in entries[named]), default=min(noticed.values(), default=0))


def _doing(entries: Sequence[Entry], zero_ns: int, pulse: PulseView | None, offset_ns: int) -> str:
    """Return what a rank was in: its stage's work if it was at any, else a transfer or a wait."""
    spans = [
        entry for entry in entries if isinstance(entry, Span) and entry.start_ns <= zero_ns < entry.end_ns
    ]
    if spans:
        inner = max(spans, key=lambda span: (span.name in WORK, span.start_ns))
        place = f", chunk {inner.chunk_index}" if inner.name in WORK else f" on {inner.lane}"
        return inner.name + place
    # A span is written when it ends: what a rank died in, or froze in, only its pulse can say, and only if it
    # beat since the step began.
    before = [entry for entry in entries if entry.lane == MAIN and _end_ns(entry) <= zero_ns]
    last = max(before, key=_end_ns, default=None)
    ended_ns = _end_ns(last) if last is not None else 0
    if pulse is not None and pulse.doing and ended_ns <= pulse.since_ns - offset_ns <= zero_ns:
        return f"{pulse.doing}, chunk {pulse.ids.get('chunk_index', '?')}"
    if last is None:
        return "at its start"
    return f"after {last.name}" + (f", chunk {last.chunk_index}" if last.chunk_index >= 0 else "")


def _end_ns(entry: Entry) -> int:
    return entry.end_ns if isinstance(entry, Span) else entry.at_ns


def _work(entries: Iterable[Entry]) -> list[Span]:
    return [entry for entry in entries if isinstance(entry, Span) and entry.name in WORK]
