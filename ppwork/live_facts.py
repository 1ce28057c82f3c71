"""What can be known of a run while it goes: how far each stage is, what each rank does, the ends of the logs.

Read from the files that the ranks write anyway; nothing is asked of them, so that a look costs them nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.pulse import PulseState, read_pulse
from ppwork.run import log_file
from ppwork.tail import SpanTail, last_lines
from ppwork.timeline import span_file
from ppwork.topology import LEADER_RANK, STAGE0_RANK

if TYPE_CHECKING:
    from pathlib import Path

    from ppwork.plan import Plan

LOG_LINES = 2
"""Of each rank; all of it is in the run folder."""
STEPS = {"encode": STAGE0_RANK, "generate": LEADER_RANK, "decode": STAGE0_RANK}
"""What a chunk goes through, and the rank whose spans say that it has."""
STAGES = {"encode": "stage 0, encode", "generate": "stage 1, generate", "decode": "stage 0, decode"}


@dataclass(frozen=True)
class RankNow:
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


class LiveFacts:
    """Follows the files of one run.

    Args:
        plan: The resolved plan.
        run_dir: The run's folder.

    Attributes:
        name: Of the run.
        total: Chunks that will go through.
        done: Chunks that have passed each step so far, by the step's title.
    """

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan, self._run_dir = plan, run_dir
        self._tails = {rank: SpanTail(span_file(run_dir, rank)) for rank in (STAGE0_RANK, LEADER_RANK)}
        self.name, self.total = run_dir.name, plan.chunks or 0
        self.done = dict.fromkeys(STAGES.values(), 0)

    def look(self) -> list[RankNow]:
        """Read what is new, count chunks into ``done``, and return every rank as it is now."""
        for rank, tail in self._tails.items():
            for entry in tail.read():
                if STEPS.get(entry.name) == rank:
                    title = STAGES[entry.name]
                    self.done[title] = max(self.done[title], entry.chunk_index + 1)
        return [self._rank(rank) for rank in range(self._plan.world_size)]

    def _rank(self, rank: int) -> RankNow:
        role = self._plan.topology.role(rank).value
        log = tuple(last_lines(log_file(self._run_dir, rank), LOG_LINES))
        pulse = read_pulse(self._run_dir, rank)
        if pulse is None:
            return RankNow(rank, role, "not started", "", log)
        doing = pulse.doing
        if doing and "chunk_index" in pulse.ids:
            doing += f", chunk {pulse.ids['chunk_index']}"
        if pulse.state is PulseState.LEFT:
            doing = f"code {pulse.exit_code}"
        elif pulse.here and pulse.process() is None:
            return RankNow(rank, role, "gone", f"was in {doing}" if doing else "", log)
        elif pulse.state in (PulseState.SLOW, PulseState.STUCK) and pulse.here:
            doing += f", for {(time.monotonic_ns() - pulse.since_ns) / 1e9:.0f} s"
        return RankNow(rank, role, pulse.state.value, doing, log)
