"""Evidence of a run, on one clock: records, exit codes, pulses, entries, logs and flights of its ranks.

Nothing here raises because of what is in a file: a run folder is read after any kill, and a file that does
not read is named instead.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ppwork.diagnosis.logs import split_by_rank, tail
from ppwork.diagnosis.nccl import WatchdogReport, ends_of
from ppwork.diagnosis.report import (
    ENDED_BY_AGENT,
    Report,
    death,
    killed_by_us,
    longest_pause_s,
    stopped_and_killed,
)
from ppwork.diagnosis.stacks import Stack, thread_stacks
from ppwork.errors import PeerTimeoutError
from ppwork.plan import Plan
from ppwork.process import ORPHANED, SECONDARY, STUCK, UNWRITABLE
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK, Topology
from ppwork.records.clocks import Clock, clock_names, clock_offsets, host_of
from ppwork.records.collect import has_records, home_of, plan_of, torchrun_logs
from ppwork.records.failure import FailureRecord, failure_file, read_record
from ppwork.records.files import read_json
from ppwork.records.flight import Flight, read_flight
from ppwork.records.hosts import HostsRecord
from ppwork.records.last_stacks import last_stacks, signal_of, stacks_file
from ppwork.records.notes import odd_results
from ppwork.records.pulse import PulseView, read_pulse
from ppwork.records.run import SUMMARY_FILE, TORCHRUN_LOG, LaunchEnd, chunks_noted, log_file
from ppwork.records.spans import RESULTS_DIFFER, Entry, read_entries
from ppwork.records.threads import DeadThread, dead_threads

MEANINGS = {
    SECONDARY: "left because a peer did",
    ORPHANED: "left because its launcher went away",
    STUCK: "was ended by its own watchdog",
    UNWRITABLE: "left because it could not write its records",
}
"""Meaning of our exit codes, as the second part of a sentence."""
ENDED_WELL = "ended with exit code 0"
STEPS = ("encode", "generate", "decode")
"""Of a pulse, those that one says with their chunk."""
IDS = ("call_id", "chunk_index", "cache_epoch")
QUIET_NS = 500_000_000
_PAST_LIMIT = "ppwork: the run passed its limit"
"""Nanoseconds; less lies between the error that ends a span and the record that tells of it."""


@dataclass
class RunEvidence:
    """Files that a run left, as they were read.

    Attributes:
        folders: The run's, one of each host; where hosts share a file system, one.
        consoles: Files with what the torchrun of each host printed, that are in none of them.
        records: Records of failing ranks, their times on rank 0's clock but for ``apart``.
        unreadable: Names of files that do not read.
        pulses: By rank; a rank that never came so far has none.
        entries: Spans and instants by rank.
        flights: Flight records by rank.
    """

    folders: tuple[Path, ...]
    plan: Plan
    consoles: tuple[Path, ...] = ()
    records: list[FailureRecord] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    pulses: dict[int, PulseView] = field(default_factory=dict)
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)

    @classmethod
    def read(cls, *folders: Path, consoles: Sequence[Path] = ()) -> RunEvidence:
        """Read the folder of a run, or those that it left on several hosts.

        Raises:
            PlanError: None has a plan that reads, or they are of different runs.
        """
        evidence = cls(folders, plan_of(folders), tuple(consoles))
        homes = {rank: evidence.home(rank) for rank in range(evidence.topology.world_size)}
        for rank, home in homes.items():
            try:
                evidence.entries[rank] = read_entries(home, rank)
            except (OSError, ValueError):
                evidence.unreadable.append(f"spans-rank{rank}.jsonl")
            if (pulse := read_pulse(home, rank)) is not None:
                evidence.pulses[rank] = pulse
            if (flight := read_flight(home, rank)) is not None:
                evidence.flights[rank] = flight
        for rank, home in homes.items():  # on one clock, which the entries of all tell
            if (record := read_record(home, rank)) is not None:
                ahead_ns = evidence.ahead.get(rank, 0)
                evidence.records.append(msgspec.structs.replace(record, at_ns=record.at_ns - ahead_ns))
            elif (path := failure_file(home, rank)).exists():
                evidence.unreadable.append(path.name)
        return evidence

    def home(self, rank: int) -> Path:
        """Return the folder with the records of a rank."""
        return home_of(self.folders, rank)

    @property
    def run_dir(self) -> Path:
        """The folder that was named first."""
        return self.folders[0]

    @cached_property
    def clocks(self) -> dict[int, str]:
        """Name of each rank's clock, as far as somebody wrote it down; it begins with the host's."""
        return clock_names(self.entries)

    @cached_property
    def hosts(self) -> HostsRecord | None:
        """What the launcher wrote down of the hosts of its run."""
        return next(filter(None, map(HostsRecord.load, self.folders)), None)

    @cached_property
    def ahead(self) -> dict[int, int]:
        """Nanoseconds by which the clock of each rank is ahead of rank 0's, as far as they are known.

        What ranks measured comes before what the launcher saw by its beats, which is coarser.
        """
        return {
            **(self.hosts.ahead_of_rank0() if self.hosts is not None else {}),
            **clock_offsets(self.entries),
        }

    @cached_property
    def apart(self) -> frozenset[int]:
        """Ranks whose times can be compared with nobody else's."""
        recorded = {record.rank for record in self.records}
        timed = [rank for rank in self.entries if self.entries[rank] or rank in recorded]
        return frozenset(rank for rank in timed if rank not in self.ahead)

    @cached_property
    def absent(self) -> dict[int, str]:
        """Ranks of whom nothing is here because their host's folder is not, and that host, if it is known.

        A rank that left nothing in a folder that its host did leave is not among them.
        """
        if not self.clocks:
            return {}  # of an older version, or nobody came so far: of one host, as far as one can see
        silent = [
            rank
            for rank in range(self.topology.world_size)
            if not has_records(self.home(rank), rank) and rank not in self.report.codes
        ]
        here = {host_of(name) for rank, name in self.clocks.items() if rank not in silent}
        hosts = {rank: host_of(self.clocks.get(rank, "")) for rank in silent}
        ours = self.end is not None or self.torchrun_log.exists()  # our launcher has one host
        return {rank: host for rank, host in hosts.items() if (host not in here if host else not ours)}

    @property
    def topology(self) -> Topology:
        """The run's."""
        return self.plan.topology

    @property
    def of_loop(self) -> bool:
        """Say whether the ranks ran a loop of one's own: its plan names no stages."""
        return not self.plan.stage1

    def in_their_words(self, call: str) -> str:
        """Return what tells of a call with the name that its stage has for it: the mesh's is ``generate``."""
        return call if self.of_loop else re.sub(r"^generate\b|(?<=\bin )generate\b", "step", call)

    @property
    def torchrun_log(self) -> Path:
        """The file with torchrun's output; of several hosts the first one's."""
        return next(iter(self._printed), self.run_dir / TORCHRUN_LOG)

    @cached_property
    def torchrun_text(self) -> str:
        """The end of torchrun's output, of all hosts."""
        return "\n".join(map(self._tail, self._printed))

    def _tail(self, log: Path) -> str:
        try:
            return tail(log)
        except OSError:  # of another user
            if log.name not in self.unreadable:
                self.unreadable.append(log.name)
            return ""

    @cached_property
    def _printed_by(self) -> dict[int, tuple[list[str], list[str]]]:
        """Lines of torchrun's output by the rank that printed them."""
        return split_by_rank(self.torchrun_text, self.report.ranks)[0]

    @cached_property
    def _printed(self) -> list[Path]:
        return [*(log for folder in self.folders for log in torchrun_logs(folder)), *self.consoles]

    @cached_property
    def report(self) -> Report:
        """The closing report of torchrun; of a run past its limit, what it said until it was ended."""
        return Report.of(self.torchrun_text.partition(_PAST_LIMIT)[0])

    @cached_property
    def nccl_ends(self) -> dict[int, WatchdogReport]:
        """NCCL's last words by rank, of those that it spoke of."""
        ranks = range(self.topology.world_size)
        return ends_of({rank: self.text_of(rank) for rank in ranks}, self.topology)

    @property
    def past_limit(self) -> bool:
        """The launcher ended the run because its time was up."""
        return _PAST_LIMIT in self.torchrun_text

    @property
    def all_gone(self) -> bool:
        """Every rank that had begun is gone from this host; false where that cannot be seen."""
        return bool(self.pulses) and all(p.here and p.process() is None for p in self.pulses.values())

    @property
    def stopped_ns(self) -> int:
        """Time at which torchrun's log ended, on rank 0's clock; 0: that is not this host's."""
        if self.clocks.get(STAGE0_RANK) not in (None, Clock.of_this_host().name):
            return 0
        try:
            return _written_ns(self.torchrun_log)
        except OSError:
            return 0

    @cached_property
    def end(self) -> LaunchEnd | None:
        """The launcher's last word."""
        return next(filter(None, map(LaunchEnd.load, self.folders)), None)

    @cached_property
    def paused_s(self) -> float:
        """Longest time for which the launcher did not run, in seconds: with its ranks, or alone (Ctrl-Z)."""
        return longest_pause_s(self.torchrun_text)

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """``summary.json``, or ``None``: rank 0 did not come to its end."""
        found = (read_json(folder / SUMMARY_FILE, dict[str, Any]) for folder in self.folders)
        return next((summary for summary in found if summary is not None), None)

    @cached_property
    def odd_results(self) -> list[int]:
        """Chunks of which the mesh ranks returned different results, by what they or the launcher wrote."""
        mesh = {rank: self.entries.get(rank, []) for rank in self.topology.mesh_ranks}
        return sorted({*odd_results(self.summary or {}), *chunks_noted(mesh, RESULTS_DIFFER)})

    @property
    def paused_source_s(self) -> float:
        """Seconds for which the source had said that it has no chunk, at rank 0's last beat; else 0."""
        pulse = self.pulses.get(STAGE0_RANK)
        return 0.0 if pulse is None else pulse.paused_s

    def log_of(self, rank: int) -> str:
        """Return the path of a rank's log; torchrun's, if it did not open its own, or for no rank (-1).

        Nothing in a job that somebody else's torchrun has started: where it writes is not known here.
        """
        of_rank = [log_file(self.home(rank), rank)] if rank >= 0 else []
        paths = (*of_rank, self.torchrun_log)
        return next((str(path) for path in paths if path.exists()), "")

    def text_of(self, rank: int) -> str:
        """Return the end of what a rank printed, and its last stacks, where the folder has them."""
        path = log_file(self.home(rank), rank)
        if path.exists():
            return self._tail(path)
        printed, last_words = self._printed_by.get(rank, ([], []))
        return "\n".join([*printed, *last_words, last_stacks(self.home(rank), rank)])

    def stacks_of(self, rank: int) -> str:
        """Return the name of the file with a rank's last stacks, as one says where to look; its log, else."""
        path = stacks_file(self.home(rank), rank)
        return path.name if path.exists() else "its log"

    def last_words_of(self, rank: int) -> list[Path]:
        """Return the file that shows where a rank was at its end, if it left one: record or stacks."""
        paths = (failure_file(self.home(rank), rank), stacks_file(self.home(rank), rank))
        return [path for path in paths if path.exists() and path.stat().st_size][:1]

    def signal_of(self, rank: int) -> int:
        """Return the signal that ended a rank by its last stacks; 0: none, or it left no stacks."""
        return signal_of(last_stacks(self.home(rank), rank))

    @cached_property
    def terminated_first(self) -> int | None:
        """The rank that got SIGTERM before any rank had failed: torchrun has no reason to send it then.

        ``None`` if it is not known, as of several ranks, of another host, or of a copied folder: the time of
        a rank's stacks is that of their file, and is good if the file of the first record is as old as that.
        """
        first = min(self.records, key=lambda record: record.at_ns, default=None)
        if first is None or {*self.clocks.values()} - {Clock.of_this_host().name}:
            return None
        try:
            late_ns = _written_ns(failure_file(self.home(first.rank), first.rank)) - first.at_ns
            before = [
                rank
                for rank in range(self.topology.world_size)
                if self.signal_of(rank) == signal.SIGTERM
                and _written_ns(stacks_file(self.home(rank), rank)) < first.at_ns
            ]
        except OSError:  # somebody has removed one meanwhile
            return None
        return before[0] if len(before) == 1 and abs(late_ns) < QUIET_NS else None

    def dead_threads(self, rank: int) -> list[DeadThread]:
        """Return the threads of a rank that died, by what it wrote down."""
        return dead_threads(self.home(rank), rank)

    def last_point(self, rank: int) -> str:
        """Return a rank's newest step or commitment point with its chunk; what its pulse said before any."""
        of_calls = [entry for entry in self.entries.get(rank, []) if entry.call_id >= 0]
        if not of_calls:
            return self.pulses[rank].doing if rank in self.pulses else ""
        last = max(of_calls, key=lambda entry: entry.end_ns)
        return f"{last.name}, call {last.call_id}, chunk {last.chunk_index}"

    def last_sign_ns(self, rank: int) -> int:
        """Return when a rank last wrote anything down, or 0; it was alive then, and maybe long after.

        On rank 0's clock but for ``apart``.
        """
        entries = self.entries.get(rank, [])
        since = self.pulses[rank].since_ns if rank in self.pulses else 0
        newest = max([since, *(entry.end_ns for entry in entries)], default=0)
        return newest - self.ahead.get(rank, 0) if newest else 0

    def stack_of(self, rank: int) -> Stack | None:
        """Return where in the user's code a rank was when its stacks were last written, if they were."""
        stacks = reversed(thread_stacks(self.text_of(rank)))
        return next((stack for stack in stacks if stack.users is not None), None)

    def ids_of(self, rank: int) -> dict[str, int]:
        """Return the chunk that a rank's main thread was at last, or nothing; by its pulse and its entries.

        Its lanes are further on, a whole depth at most: a mesh rank was at the first chunk that it had not
        ended, of those that its lanes had taken or the leader had begun to broadcast. Rank 0 in no step
        waited for the result of the oldest chunk on its way.
        """
        entries = [entry for entry in self.entries.get(rank, []) if entry.chunk_index >= 0]
        own = [entry for entry in entries if entry.lane == "main" and entry.name != "mesh.broadcast"]
        at = max(own, key=lambda entry: entry.end_ns, default=None)
        pulse = self.pulses.get(rank)
        # Of a rank that writes no steps down, a beat comes a few times a second: it may be chunks further on.
        if pulse is not None and pulse.ids and (at is None or pulse.since_ns >= at.end_ns):
            return dict(pulse.ids)
        ended = -1 if at is None else at.chunk_index
        if rank == STAGE0_RANK:
            done = {entry.chunk_index for entry in own if entry.name in ("emit", "drop")}
            on_their_way = [e for e in own if e.name == "encode" and e.chunk_index not in done]
            at = min(on_their_way, key=lambda entry: entry.chunk_index, default=at)
        if rank in self.topology.mesh_ranks:
            # Its own entry of a chunk that came comes behind the chunk: it may have been killed before.
            entries += [e for e in self.entries.get(LEADER_RANK, []) if e.name == "mesh.broadcast"]
            at = min((e for e in entries if e.chunk_index > ended), key=lambda e: e.chunk_index, default=at)
        ids = {} if at is None else {name: getattr(at, name) for name in IDS}
        return {name: value for name, value in ids.items() if value >= 0}

    def at_chunk(self, rank: int) -> str:
        """Return the step and the chunk that a rank was at last (``encode of chunk 5``), or nothing."""
        ids, pulse = self.ids_of(rank), self.pulses.get(rank)
        if "chunk_index" not in ids:
            return ""
        step = pulse.doing if pulse is not None and dict(pulse.ids) == ids and pulse.doing in STEPS else ""
        return (
            self.in_their_words(f"{step} of chunk {ids['chunk_index']}")
            if step
            else f"chunk {ids['chunk_index']}"
        )

    @property
    def bound_passed(self) -> bool:
        """Say whether somebody's bound passed before any rank was gone.

        The first to write may only have lost who then gave up. If all have written, none was gone before.
        """
        types = [record.error_type for record in sorted(self.records, key=lambda record: record.at_ns)]
        all_wrote = len(types) == self.topology.world_size
        return PeerTimeoutError.__name__ in (types if all_wrote else types[:1])

    def before_the_first_record(self) -> dict[int, list[Entry]]:
        """Return the entries of the time when nobody had failed: an error ends the spans it goes through.

        Only good for a hang: it was still for longer than ``QUIET_NS`` before somebody's bound passed.
        """
        if not self.records:
            return self.entries
        known = [record.at_ns for record in self.records if record.rank not in self.apart]
        until_ns = min(known, default=0) - QUIET_NS
        return {
            rank: [entry for entry in entries if entry.end_ns - self.ahead[rank] <= until_ns]
            if rank in self.ahead and known
            else entries
            for rank, entries in self.entries.items()
        }

    def code_of(self, rank: int) -> int | None:
        """Return a rank's exit code: torchrun's report, or else what the rank chose and wrote down.

        Where nobody kept a console, that of the signal which its last stacks tell.
        """
        pulse = self.pulses.get(rank)
        code = self.report.codes.get(rank, pulse.exit_code if pulse is not None else None)
        return code if code is not None else -self.signal_of(rank) or None

    def ended_by_torchrun(self, rank: int) -> bool:
        """Say whether a rank's signal was torchrun's: by its own words, or else because it had a reason."""
        code = self.code_of(rank)
        if code not in ENDED_BY_AGENT:
            return False
        if self.report.closed:
            return rank in self.report.closed or rank not in self.report.pids
        followed = {record.rank for record in self.records if record.symptom}
        codes = [code for other, code in self.report.codes.items() if other not in followed]
        failed = any(code not in (0, SECONDARY, *ENDED_BY_AGENT) for code in codes)
        return failed or self.past_limit or any(not record.symptom for record in self.records)

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
            if is_gone and not self.torchrun_log.exists():  # of somebody else's torchrun, whose report it has
                by_abort = "" if stacks_file(self.home(rank), rank).exists() else ", by an abort"
                return f"was ended by a signal such as SIGKILL{by_abort} or by os._exit,"
            if not self.report.codes:
                return "left no exit code"
            # torchrun waits for all its ranks and reports each whose code is not 0.
            is_whole = self.torchrun_log.exists() and self.hosts is None and not self.report.is_cut
            return ENDED_WELL if is_whole else "is not in torchrun's report"
        if self.ended_by_torchrun(rank):
            return "was ended by torchrun"
        if code == -signal.SIGTERM:
            return "got SIGTERM"
        return MEANINGS.get(code) or death(code)


def _written_ns(path: Path) -> int:
    """Return when a file was last written, on this host's monotonic clock.

    Raises:
        OSError: It is not there.
    """
    return path.stat().st_mtime_ns - (time.time_ns() - time.monotonic_ns())
