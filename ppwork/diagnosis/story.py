"""The story of a failed run for picture, table and sentence: who noticed when, in seconds from its beginning.

Its sources are span files, failure records and torchrun's report. Ranks of one host share a clock; of others
the measured offset is subtracted, as in every timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppwork.diagnosis.logs import tail
from ppwork.diagnosis.report import Report, death
from ppwork.diagnosis.runs import diagnose
from ppwork.errors import PlanError, named_ranks
from ppwork.records.clocks import clock_offsets
from ppwork.records.failure import read_records
from ppwork.records.pulse import PulseView, read_pulse
from ppwork.records.run import TORCHRUN_LOG, Run
from ppwork.records.spans import INJECTED, Entry, Instant, Span
from ppwork.timeline.chunks import WORK, aligned, steps_of

LAST_PART = 0.02
"""Of the time until a rank noticed: in its last part the step ended that raised what it noticed."""
MAIN = "main"
"""The lane of a rank's main thread."""


@dataclass(frozen=True)
class RankStory:
    """One rank of a failed run; times are in seconds from the beginning of the failure."""

    rank: int
    role: str
    struck: bool
    """The failure began in this rank."""
    doing: str
    """Step or transfer that it was in at the beginning."""
    waited: str
    """The ranks for which it waited when the first of them spoke, such as ``rank 2``; empty: for none."""
    work: tuple[tuple[float, float], ...]
    """Times in which its stage worked, before and after."""
    unfinished_s: float | None
    """Start of a step of its stage that has no end on record, as its pulse says it."""
    noticed_s: float | None
    """Time at which it wrote down that something is wrong; ``None``: it never spoke."""
    error_type: str
    """Type of the error that it wrote down; empty if it never spoke."""
    ended: str
    """End as torchrun saw it, such as ``was killed by SIGKILL``; empty if it did not say."""

    @property
    def stood(self) -> tuple[float, float] | None:
        """The step of its stage in which it was from the failure on, until it noticed; ``None``: in none."""
        if self.noticed_s is None:
            return None
        if self.unfinished_s is not None and self.unfinished_s < self.noticed_s:
            return self.unfinished_s, self.noticed_s
        # A step that an exception ended has an end on record, just before its rank writes down what it was.
        late = self.noticed_s - LAST_PART * self.noticed_s
        return next(
            ((start, end) for start, end in self.work if start <= 0 < late <= end <= self.noticed_s), None
        )


@dataclass(frozen=True)
class FailureStory:
    """A failed run, from the moment when something went wrong."""

    fault: str
    """Fault of the catalogue, with its case; empty when nothing was injected."""
    ranks: tuple[RankStory, ...]

    @property
    def struck(self) -> RankStory:
        """The rank in which it began; the first of several."""
        return next(rank for rank in self.ranks if rank.struck)

    @property
    def noticed(self) -> dict[int, float]:
        """Seconds until each rank spoke, the first one first; ranks that never did are not in it."""
        spoke = [(rank.noticed_s, rank.rank) for rank in self.ranks if rank.noticed_s is not None]
        return {rank: at for at, rank in sorted(spoke)}

    @property
    def peers_noticed(self) -> dict[int, float]:
        """``noticed``, of the other ranks: those in which it did not begin."""
        struck = [rank.rank for rank in self.ranks if rank.struck]
        return {rank: at for rank, at in self.noticed.items() if rank not in struck}


def failure_story(run: Run) -> FailureStory:
    """Return who was doing what when a run failed, and who noticed when.

    It begins with the injection; where nothing was injected, with the record of the rank that is named first,
    or the last that is known of it.

    Raises:
        PlanError: The run did not fail, or no rank of its plan can be named.
    """
    named = _first_named(run)
    if named is None:
        raise PlanError(
            f"No rank of {run.run_dir} is known to have failed.",
            check_first="`ppwork diagnose` with that folder",
        )
    plan = run.plan
    offsets, entries = clock_offsets(run.entries_by_rank), aligned(run.entries_by_rank)
    if named not in entries:
        raise PlanError(
            f"Rank {named} is named in {run.run_dir}, and not in its plan.", check_first="plan.json"
        )
    records = {record.rank: record for record in read_records(run.run_dir, plan.world_size)}
    noticed = {rank: record.at_ns - offsets[rank] for rank, record in records.items() if rank in offsets}
    struck, zero_ns = _beginning(entries, noticed, named)
    alike = records[struck].between if struck == named and struck in records else ()
    broken = [rank for rank in alike if rank in entries] or [struck]
    codes = Report.of(tail(run.run_dir / TORCHRUN_LOG)).codes
    waited = {wait.rank: named_ranks(wait.waits_for) for wait in diagnose(run).waits if wait.waits_for}

    def seconds(at_ns: int) -> float:
        return (at_ns - zero_ns) / 1e9

    return FailureStory(
        plan.fault,
        tuple(
            RankStory(
                rank=rank,
                role=str(plan.topology.role(rank)),
                struck=rank in broken,
                doing=_doing(entries[rank], zero_ns, read_pulse(run.run_dir, rank), offsets.get(rank, 0)),
                waited=waited.get(rank, ""),
                work=tuple(
                    (seconds(span.start_ns), seconds(span.end_ns)) for span in steps_of(entries[rank], *WORK)
                ),
                unfinished_s=_unfinished_s(run, rank, entries[rank], zero_ns + offsets.get(rank, 0)),
                noticed_s=seconds(noticed[rank]) if rank in noticed else None,
                error_type=records[rank].error_type if rank in records else "",
                ended=death(codes[rank]) if rank in codes else "",
            )
            for rank in entries
        ),
    )


def _unfinished_s(run: Run, rank: int, entries: Sequence[Entry], zero_ns: int) -> float | None:
    """Return when a step began whose span was never written, in seconds from a moment of the rank's clock."""
    pulse = read_pulse(run.run_dir, rank)
    if pulse is None or pulse.doing not in WORK or not pulse.since_ns:
        return None
    chunk = pulse.ids.get("chunk_index")
    if any(span.chunk_index == chunk for span in steps_of(entries, pulse.doing)):
        return None
    return (pulse.since_ns - zero_ns) / 1e9


def _first_named(run: Run) -> int | None:
    """Return the rank that the launcher named; of a run that was read back, the one that its folder names."""
    if run.failure is not None:
        return run.failure.where.get("rank")
    cause = diagnose(run).cause if run.exit_code is None else None
    return cause.rank if cause is not None and cause.rank >= 0 else None


def _beginning(entries: dict[int, list[Entry]], noticed: dict[int, int], named: int) -> tuple[int, int]:
    """Return the rank in which it began, and when."""
    for rank, of_rank in entries.items():
        for entry in of_rank:
            if isinstance(entry, Instant) and entry.name == INJECTED:
                return rank, entry.at_ns
    if named in noticed:
        return named, noticed[named]
    return named, max((entry.end_ns for entry in entries[named]), default=min(noticed.values(), default=0))


def _doing(entries: Sequence[Entry], zero_ns: int, pulse: PulseView | None, offset_ns: int) -> str:
    """Return what a rank was in: its stage's work if it was at any, else a transfer or a wait."""
    spans = [
        entry for entry in entries if isinstance(entry, Span) and entry.start_ns <= zero_ns < entry.end_ns
    ]
    if spans:
        inner = max(spans, key=lambda span: (span.name in WORK, span.start_ns))
        which = f", chunk {inner.chunk_index}" if inner.name in WORK else f" on {inner.lane}"
        return inner.name + which
    # A span is written when it ends: what a rank died in, or froze in, only its pulse can say, and only if it
    # beat since the step began.
    before = [entry for entry in entries if entry.lane == MAIN and entry.end_ns <= zero_ns]
    last = max(before, key=lambda entry: entry.end_ns, default=None)
    ended_ns = last.end_ns if last is not None else 0
    if pulse is not None and pulse.doing and ended_ns <= pulse.since_ns - offset_ns <= zero_ns:
        return f"{pulse.doing}, chunk {pulse.ids.get('chunk_index', '?')}"
    if last is None:
        return "at its start"
    return f"after {last.name}" + (f", chunk {last.chunk_index}" if last.chunk_index >= 0 else "")
