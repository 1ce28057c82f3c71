"""What a live view shows of a run or a program that goes, read from the files that its ranks write anyway."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ppwork.launcher.script import rank_log
from ppwork.launcher.standstill import Standstill
from ppwork.pictures.lanes import Bar
from ppwork.pictures.style import call, chunk_style
from ppwork.plan import Plan
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.calls import Call
from ppwork.records.clocks import CLOCK, HOST, clock_offsets
from ppwork.records.hosts import HostsRecord
from ppwork.records.pulse import LONG_PAUSE_S, PulseState, nothing_to_encode, read_pulse
from ppwork.records.run import log_file
from ppwork.records.spans import Instant, Span, span_file
from ppwork.records.tail import CallTail, SpanTail, last_lines
from ppwork.records.threads import dead_threads
from ppwork.timeline.chunks import WORK

SPANS = 40
"""Of each rank, for the moving lanes."""
LOG_LINES = 2
"""Of each rank; all of it is in the run folder."""
STEPS = {
    ("encode", STAGE0_RANK): "stage 0, encode",
    ("generate", LEADER_RANK): "stage 1, generate",
    ("decode", STAGE0_RANK): "stage 0, decode",
}
"""Titles of what a chunk goes through, by the spans that say that it has, and their rank."""


@dataclass(frozen=True)
class RankState:
    """One rank at one moment.

    Attributes:
        state: A ``PulseState``, ``not started``, or ``gone``: its process is, and it did not say so.
        doing: The step of the stage it is in and its chunk, or nothing.
        log: The last lines of its log.
    """

    rank: int
    role: str
    state: str
    doing: str
    log: tuple[str, ...]


class Facts(Protocol):
    """Facts that a view can show: of a run, or of a program of one's own."""

    name: str
    total: int
    done: dict[str, int]
    """Number out of ``total`` that have passed each step, by its title; empty: there is nothing to count."""
    bars: list[Bar]
    """What the ranks did last, as of the last look,"""
    now_ns: int
    """and its moment, by the clock of their times."""
    notice: str = ""
    """What the user should know of it now, if anything."""

    def look(self) -> list[RankState]:
        """Read what is new, and return every rank as it is now."""
        ...


class RunProgress(Facts):
    """Follows the files of one run.

    Args:
        plan: The resolved plan.
        run_dir: The run's folder.
        over: It has ended: a rank of another host that did not say that it left is silent.
    """

    def __init__(self, plan: Plan, run_dir: Path, *, over: bool = False) -> None:
        self._plan, self._run_dir, self._over = plan, run_dir, over
        self._tails = {rank: SpanTail(span_file(run_dir, rank)) for rank in range(plan.world_size)}
        self._spans: dict[int, deque[Span]] = {rank: deque(maxlen=SPANS) for rank in self._tails}
        self.bars: list[Bar] = []
        self.name, self.total = run_dir.name, plan.chunks or 0
        self.done = dict.fromkeys(STEPS.values(), 0)
        self._clocks: dict[int, list[Instant]] = {rank: [] for rank in self._tails}
        self._ahead: dict[int, int] | None = None

    def look(self) -> list[RankState]:
        """Read what is new, count chunks into ``done``, and return every rank as it is now."""
        for rank, tail in self._tails.items():
            for entry in tail.read():
                if title := STEPS.get((entry.name, rank)):
                    self.done[title] = max(self.done[title], entry.chunk_index + 1)
                if isinstance(entry, Span) and entry.name in WORK and entry.chunk_index >= 0:
                    self._spans[rank].append(entry)
                elif isinstance(entry, Instant) and entry.name.startswith((CLOCK, HOST)):
                    self._clocks[rank].append(entry)
        ahead, self.now_ns = self._ahead_of_us(), time.monotonic_ns()
        self.bars = [_bar(rank, s, ahead.get(rank, 0)) for rank, spans in self._spans.items() for s in spans]
        return [self._with_dead_threads(self._rank(rank)) for rank in range(self._plan.world_size)]

    def _with_dead_threads(self, state: RankState) -> RankState:
        died = map(str, dead_threads(self._run_dir, state.rank))
        return replace(state, doing="; ".join(filter(None, [state.doing, *died])))

    def _ahead_of_us(self) -> dict[int, int]:
        """Return how far each rank's clock is ahead: by the beats, and finer where the ranks have met."""
        if self._ahead is None and (hosts := HostsRecord.load(self._run_dir)) is not None:
            self._ahead = hosts.ahead_of_us()
        if not self._ahead or STAGE0_RANK not in self._ahead:
            return self._ahead or {}
        rank0 = self._ahead[STAGE0_RANK]
        met = clock_offsets({rank: said for rank, said in self._clocks.items() if said})
        return self._ahead | {rank: rank0 + offset for rank, offset in met.items()}

    def _rank(self, rank: int) -> RankState:
        role = self._plan.topology.role(rank).value
        log = tuple(last_lines(log_file(self._run_dir, rank), LOG_LINES))
        pulse = read_pulse(self._run_dir, rank)
        if pulse is None:
            return RankState(rank, role, "not started", "", log)
        doing, chunk = pulse.doing, pulse.ids.get("chunk_index", -1)
        newest = self._spans[rank][-1] if self._spans[rank] else None
        if doing and newest is not None and newest.chunk_index > chunk >= 0:
            # A pulse beats a few times a second: what the rank has written meanwhile is newer.
            doing, chunk = newest.name, newest.chunk_index
        elif doing and pulse.here and pulse.since_ns and chunk >= 0:
            self.bars.append(Bar(rank, pulse.since_ns, None, f"{doing} {chunk}", chunk_style(chunk)[0]))
        if doing and "chunk_index" in pulse.ids:
            doing += f", chunk {chunk}"
        if pulse.state is PulseState.LEFT:
            doing = f"code {pulse.exit_code}"
        elif self._over or (pulse.here and pulse.process() is None):
            state = "gone" if pulse.here else "silent"
            return RankState(rank, role, state, f"was in {doing}" if doing else "", log)
        elif pulse.state in (PulseState.SLOW, PulseState.STUCK) and pulse.here:
            doing += f", for {(time.monotonic_ns() - pulse.since_ns) / 1e9:.0f} s"
        elif pulse.paused_s >= LONG_PAUSE_S:
            doing = nothing_to_encode(pulse.paused_s)
        return RankState(rank, role, pulse.state.value, doing, log)


def _bar(rank: int, span: Span, ahead_ns: int) -> Bar:
    colour, _ = chunk_style(span.chunk_index)
    return Bar(
        rank, span.start_ns - ahead_ns, span.end_ns - ahead_ns, f"{span.name} {span.chunk_index}", colour
    )


def _bar_of_call(rank: int, made: Call, ahead_ns: int) -> Bar:
    end_ns = None if made.end_ns is None else made.end_ns - ahead_ns
    return Bar(rank, made.start_ns - ahead_ns, end_ns, made.name, call(made.name)["facecolor"])


class ScriptProgress(Facts):
    """Follows a program: the ends of its ranks' output, and the calls that they make.

    Args:
        run_dir: The program's folder.
        nproc: Number of its ranks.
        limit_s: Seconds after which it is stopped.
    """

    def __init__(self, run_dir: Path, nproc: int, limit_s: float) -> None:
        self._run_dir, self._nproc = run_dir, nproc
        self._tails = {rank: CallTail(run_dir, rank) for rank in range(nproc)}
        self._standstill = Standstill(run_dir, limit_s)
        self._ahead: dict[int, int] | None = None
        self.bars: list[Bar] = []
        self.name, self.total = run_dir.name, 0
        self.done: dict[str, int] = {}

    def look(self) -> list[RankState]:
        """Return every rank as it is now."""
        calls, self.now_ns = {rank: tail.read() for rank, tail in self._tails.items()}, time.monotonic_ns()
        self.notice = self._standstill.look()
        if self._ahead is None and (hosts := HostsRecord.load(self._run_dir)) is not None:
            self._ahead = hosts.ahead_of_us()
        self.bars = [
            _bar_of_call(rank, call, (self._ahead or {}).get(rank, 0))
            for rank, of_rank in calls.items()
            for call in of_rank
        ]
        return [self._rank(rank, calls[rank]) for rank in range(self._nproc)]

    def _rank(self, rank: int, calls: list[Call]) -> RankState:
        paths = [rank_log(self._run_dir, rank, stream) for stream in ("stdout", "stderr")]
        log = [line for path in paths if path is not None for line in last_lines(path, LOG_LINES)]
        stands = next((call for call in reversed(calls) if call.end_ns is None), None)
        doing = f"{stands.text} ({stands.line})" if stands is not None else ""
        return RankState(rank, "", "started" if any(paths) else "not started", doing, tuple(log))
