"""Evidence of a run, on one clock: records, exit codes, pulses, entries, logs and flights of its ranks.

Nothing here raises because of what is in a file: a run folder is read after any kill, and a file that does
not read is named instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ppwork.diagnosis.logs import split_by_rank, tail
from ppwork.diagnosis.nccl import End, ends_of
from ppwork.diagnosis.report import (
    ENDED_BY_AGENT,
    Report,
    death,
    killed_by_us,
    longest_pause_s,
    stopped_and_killed,
)
from ppwork.diagnosis.stacks import Stack, thread_stacks
from ppwork.plan import Plan
from ppwork.process import ORPHANED, SECONDARY, STUCK, UNWRITABLE
from ppwork.protocol.topology import Topology
from ppwork.records.clocks import clock_offsets
from ppwork.records.failure import FailureRecord, failure_file, read_records
from ppwork.records.files import read_json
from ppwork.records.flight import Flight, read_flights
from ppwork.records.pulse import PulseView, read_pulse
from ppwork.records.run import SUMMARY_FILE, TORCHRUN_LOG, LaunchEnd, log_file
from ppwork.records.spans import Entry, read_entries

MEANINGS = {
    SECONDARY: "left because a peer did",
    ORPHANED: "left because its launcher went away",
    STUCK: "was ended by its own watchdog",
    UNWRITABLE: "left because it could not write its records",
}
"""Meaning of our exit codes, as the second part of a sentence."""
QUIET_NS = 500_000_000
"""Nanoseconds; less lies between the error that ends a span and the record that tells of it."""


@dataclass
class RunEvidence:
    """Files that a run left, as they were read.

    Attributes:
        records: Records of failing ranks, their times on rank 0's clock.
        unreadable: Names of files that do not read.
        pulses: By rank; a rank that never came so far has none.
        entries: Spans and instants by rank.
        flights: Flight records by rank.
    """

    run_dir: Path
    plan: Plan
    records: list[FailureRecord] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    pulses: dict[int, PulseView] = field(default_factory=dict)
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)

    @classmethod
    def read(cls, run_dir: Path) -> RunEvidence:
        """Read a run's folder.

        Raises:
            PlanError: It is not one: there is no plan that reads.
        """
        evidence = cls(run_dir, Plan.load(run_dir))
        ranks = range(evidence.topology.world_size)
        for rank in ranks:
            try:
                evidence.entries[rank] = read_entries(run_dir, rank)
            except (OSError, ValueError):
                evidence.unreadable.append(f"spans-rank{rank}.jsonl")
            if (pulse := read_pulse(run_dir, rank)) is not None:
                evidence.pulses[rank] = pulse
        records = read_records(run_dir, len(ranks))
        recorded = {record.rank for record in records}
        others = [failure_file(run_dir, rank) for rank in ranks if rank not in recorded]
        evidence.unreadable += [path.name for path in others if path.exists()]
        ahead = clock_offsets(evidence.entries)
        evidence.records = [
            msgspec.structs.replace(record, at_ns=record.at_ns - ahead.get(record.rank, 0))
            for record in records
        ]
        evidence.flights = read_flights(run_dir, len(ranks))
        return evidence

    @property
    def topology(self) -> Topology:
        """The run's."""
        return self.plan.topology

    @property
    def torchrun_log(self) -> Path:
        """The file with torchrun's output."""
        return self.run_dir / TORCHRUN_LOG

    @cached_property
    def torchrun_text(self) -> str:
        """The end of torchrun's output."""
        return tail(self.torchrun_log)

    @cached_property
    def report(self) -> Report:
        """The closing report of torchrun."""
        return Report.of(self.torchrun_text)

    @cached_property
    def nccl_ends(self) -> dict[int, End]:
        """NCCL's last words by rank, of those that it spoke of."""
        ranks = range(self.topology.world_size)
        return ends_of({rank: self.text_of(rank) for rank in ranks}, self.topology)

    @property
    def past_limit(self) -> bool:
        """The launcher ended the run because its time was up."""
        return "ppwork: the run passed its limit" in self.torchrun_text

    @property
    def all_gone(self) -> bool:
        """Every rank that had begun is gone from this host; false where that cannot be seen."""
        return bool(self.pulses) and all(p.here and p.process() is None for p in self.pulses.values())

    @property
    def stopped_ns(self) -> int:
        """Time at which torchrun's log ended, on this host's monotonic clock."""
        try:
            written_ns = self.torchrun_log.stat().st_mtime_ns
        except OSError:
            return 0
        return written_ns - (time.time_ns() - time.monotonic_ns())

    @cached_property
    def end(self) -> LaunchEnd | None:
        """The launcher's last word."""
        return LaunchEnd.load(self.run_dir)

    @cached_property
    def paused_s(self) -> float:
        """Longest time for which the launcher did not run, in seconds: with its ranks, or alone (Ctrl-Z)."""
        return longest_pause_s(self.torchrun_text)

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """``summary.json``, or ``None``: rank 0 did not come to its end."""
        return read_json(self.run_dir / SUMMARY_FILE, dict[str, Any])

    def log_of(self, rank: int) -> str:
        """Return the path of a rank's log; torchrun's, if it did not open its own, or for no rank (-1).

        Nothing in a job that somebody else's torchrun has started: where it writes is not known here.
        """
        paths = (*([log_file(self.run_dir, rank)] if rank >= 0 else []), self.torchrun_log)
        return next((str(path) for path in paths if path.exists()), "")

    def text_of(self, rank: int) -> str:
        """Return the end of what a rank printed."""
        path = log_file(self.run_dir, rank)
        if path.exists():
            return tail(path)
        printed, last_words = split_by_rank(self.torchrun_text, self.report.ranks)[0].get(rank, ([], []))
        return "\n".join(printed + last_words)

    def last_point(self, rank: int) -> str:
        """Return a rank's newest step or commitment point with its chunk; what its pulse said before any."""
        of_calls = [entry for entry in self.entries.get(rank, []) if entry.call_id >= 0]
        if not of_calls:
            return self.pulses[rank].doing if rank in self.pulses else ""
        last = max(of_calls, key=lambda entry: entry.end_ns)
        return f"{last.name}, call {last.call_id}, chunk {last.chunk_index}"

    def last_sign_ns(self, rank: int) -> int:
        """Return when a rank last wrote anything down, or 0; it was alive then, and maybe long after."""
        entries = self.entries.get(rank, [])
        since = self.pulses[rank].since_ns if rank in self.pulses else 0
        newest = max([since, *(entry.end_ns for entry in entries)], default=0)
        return newest - clock_offsets({rank: entries}).get(rank, 0) if newest else 0

    def stack_of(self, rank: int) -> Stack | None:
        """Return where in the user's code a rank was when its stacks were last written, if they were."""
        stacks = reversed(thread_stacks(self.text_of(rank)))
        return next((stack for stack in stacks if stack.users is not None), None)

    def ids_of(self, rank: int) -> dict[str, int]:
        """Return the chunk that a rank was at last, by its pulse or what it wrote down, or nothing."""
        pulse = dict(self.pulses[rank].ids) if rank in self.pulses else {}
        newest = max(self.entries.get(rank, []), key=lambda entry: entry.call_id, default=None)
        # A pulse beats a few times a second: a quick stage is chunks further on. While a chunk is encoded it
        # has no call_id yet.
        counter = "chunk_index" if pulse and "call_id" not in pulse else "call_id"
        if newest is None or getattr(newest, counter) <= pulse.get(counter, -1):
            return pulse
        ids = {name: getattr(newest, name) for name in ("call_id", "chunk_index", "cache_epoch")}
        return {name: value for name, value in ids.items() if value >= 0}

    def before_the_first_record(self) -> dict[int, list[Entry]]:
        """Return the entries of the time when nobody had failed: an error ends the spans it goes through.

        Only good for a hang: it was still for longer than ``QUIET_NS`` before somebody's bound passed.
        """
        if not self.records:
            return self.entries
        until_ns = min(record.at_ns for record in self.records) - QUIET_NS
        ahead = clock_offsets(self.entries)
        return {
            rank: [entry for entry in entries if entry.end_ns - ahead.get(rank, 0) <= until_ns]
            for rank, entries in self.entries.items()
        }

    def code_of(self, rank: int) -> int | None:
        """Return a rank's exit code: torchrun's report, or else what the rank chose and wrote down."""
        pulse = self.pulses.get(rank)
        return self.report.codes.get(rank, pulse.exit_code if pulse is not None else None)

    def end_of(self, rank: int) -> str:
        """Say how a rank ended, as the second part of a sentence."""
        code = self.code_of(rank)
        if rank in killed_by_us(self.torchrun_text):
            stopped = "was stopped (SIGSTOP), " if rank in stopped_and_killed(self.torchrun_text) else ""
            return f"{stopped}did not leave and was killed by the launcher"
        if code is None:
            if self.past_limit:
                return "was running when its time was up"
            is_gone = rank in self.pulses and self.pulses[rank].here and self.pulses[rank].process() is None
            return "is gone" if is_gone and not self.torchrun_log.exists() else "is not in torchrun's report"
        if code in ENDED_BY_AGENT:
            return "was ended by torchrun"
        return MEANINGS.get(code) or death(code)
