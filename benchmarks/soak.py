"""Ten thousand chunks, whoever is slow: memory stays flat and no queue goes past its bound.

Three real runs at a period of 2 to 3 ms: a slow producer (encode), a slow consumer (decode), a slow mesh. The
resident and the unshared size of every rank are read every 100 chunks, from outside. Memory is flat if the
median of the last tenth is within ``FLAT_MB`` of that of the second tenth; the first tenth is warm-up.

``python benchmarks/soak.py`` writes ``soak.md`` and exits with 1 if anything grew or went past its bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import psutil

import ppwork as pp
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1
from ppwork.process import is_torchrun
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.timeline.chunks import EntriesByRank, emissions, spans_by_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ppwork.records.spans import Entry

MB = 1 << 20
FLAT_MB = 4.0
"""Over 8000 chunks: half a kilobyte a chunk would be seen, and a forgotten payload at once."""
SLOW = {
    "producer": {"encode_ms": 1.6, "decode_ms": 0.2, "stage1_ms": 0.4},
    "consumer": {"encode_ms": 0.2, "decode_ms": 1.6, "stage1_ms": 0.4},
    "mesh": {"encode_ms": 0.2, "decode_ms": 0.2, "stage1_ms": 1.8},
}


def plan_of(slow: str, chunks: int, *, depth: int = 3, times: float = 1.0) -> pp.Plan:
    """Return a synthetic run with one slow part; ``times`` stretches all stages."""
    options = {name: ms * times for name, ms in SLOW[slow].items()}
    return pp.Plan(
        mesh_size=2,
        chunks=chunks,
        backend="gloo",
        in_flight_depth=depth,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={**options, "payload_mb": 0.25, "jitter": 0.5},
    )


@dataclass
class Memory:
    """Reads the memory of every rank while a run goes on; ``started`` and ``progress`` are for ``launch``.

    Attributes:
        every: Chunks between two readings.
        rss: Resident size by rank and chunk, in MB.
        uss: What of it no other process shares, in MB.
    """

    every: int
    rss: dict[int, dict[int, float]] = field(default_factory=dict)
    uss: dict[int, dict[int, float]] = field(default_factory=dict)
    _run_dir: Path = Path()
    _ranks: dict[int, psutil.Process] = field(default_factory=dict)

    def started(self, _plan: pp.Plan, run_dir: Path) -> None:
        """Remember whose ranks to look at."""
        self._run_dir = run_dir

    def progress(self, entry: Entry) -> None:
        """Read all ranks at every so many emissions."""
        if entry.name != "emit" or entry.chunk_index % self.every:
            return
        # Found once and kept: a psutil process is a pid and its start time, so no other is ever read.
        self._ranks = self._ranks or dict(self._find())
        for rank, process in self._ranks.items():
            try:
                found = process.memory_full_info()
            except psutil.NoSuchProcess:  # the run has ended meanwhile
                continue
            if not found.rss:  # its memory is gone, it is not yet
                continue
            self.rss.setdefault(rank, {})[entry.chunk_index] = found.rss / MB
            self.uss.setdefault(rank, {})[entry.chunk_index] = found.uss / MB

    def _find(self) -> Iterator[tuple[int, psutil.Process]]:
        for process in psutil.Process().children(recursive=True):
            command = process.cmdline()
            if command[-2:] == ["worker", str(self._run_dir)] and not is_torchrun(command):
                yield int(process.environ()["RANK"]), process


def middle(readings: dict[int, float], first: int, end: int) -> float:
    """Return the median of the readings at chunks from ``first`` on and before ``end``."""
    return statistics.median(value for chunk, value in readings.items() if first <= chunk < end)


def fullest(stays: Iterable[tuple[int, int]]) -> int:
    """Return how many stays, from when to when, there were at one time at most."""
    now = most = 0
    # At the same moment one leaves before another comes: an end sorts before a begin.
    for _, change in sorted(moment for begin, end in stays for moment in ((begin, 1), (end, -1))):
        now += change
        most = max(most, now)
    return most


def fills(entries_by_rank: EntriesByRank) -> dict[str, int]:
    """Return the most chunks that were in each place at one time, as the ranks recorded it.

    ``unfinished``: on rank 0, from encode to emission. ``arrived``: on the leader, received and not yet being
    broadcast. ``results``: on the leader, computed and not yet taken by rank 0. ``ready``: on a mesh rank,
    there and not yet being computed.
    """
    chunks, emits = spans_by_chunk(entries_by_rank), emissions(entries_by_rank)
    leader = LEADER_RANK
    found = {
        "unfinished": fullest((of[STAGE0_RANK, "encode"][0].start_ns, emits[k]) for k, of in chunks.items()),
        "arrived": fullest(
            (of[leader, "receive"][0].end_ns, of[leader, "broadcast"][0].start_ns) for of in chunks.values()
        ),
        "results": fullest(
            (of[leader, "generate"][0].end_ns, of[leader, "send_result"][0].end_ns) for of in chunks.values()
        ),
    }
    for rank in sorted(set(entries_by_rank) - {STAGE0_RANK}):
        there = "broadcast" if rank == leader else "receive"
        found[f"ready r{rank}"] = fullest(
            (of[rank, there][0].end_ns, of[rank, "generate"][0].start_ns) for of in chunks.values()
        )
    return found


def bounds(plan: pp.Plan) -> dict[str, int]:
    """Return the most chunks that may be in each place at one time.

    On rank 0 and the leader that is the depth. A follower may lag behind the leader, as nothing in these
    stages makes them meet; its queue (one longer than the depth) holds it back, with one more chunk in the
    hand of the lane that fills it and one in that of the main thread.
    """
    depth = plan.in_flight_depth
    places = ["unfinished", "arrived", "results", *(f"ready r{rank}" for rank in plan.topology.mesh_ranks)]
    followers = {f"ready r{rank}": depth + 3 for rank in plan.topology.mesh_ranks if rank != LEADER_RANK}
    return {**dict.fromkeys(places, depth), **followers}


def soak(slow: str, chunks: int, out: Path) -> dict[str, Any]:
    """Run one soak and return what was found; ``wrong`` says in words what is not as it should be."""
    plan, memory = plan_of(slow, chunks), Memory(every=100)
    start = time.monotonic()
    with common.Others() as others:
        run = pp.launch(plan, out=out, started=memory.started, progress=memory.progress)
    second, last = (chunks // 10, chunks // 5), (9 * chunks // 10, chunks)
    rows = []
    for rank in range(plan.world_size):
        rss = [middle(memory.rss[rank], *tenth) for tenth in (second, last)]
        uss = [middle(memory.uss[rank], *tenth) for tenth in (second, last)]
        rows.append({"rank": rank, "rss_mb": rss, "grew_mb": rss[1] - rss[0], "uss_grew_mb": uss[1] - uss[0]})
    emitted, queues = run.summary["chunks"], run.summary["queues"]
    places, allowed = fills({rank: run.entries(rank) for rank in range(plan.world_size)}), bounds(plan)
    wrong = [f"{chunks - emitted} chunks are missing"] if emitted != chunks else []
    wrong += [
        f"rank {row['rank']} grew by {grew:.2f} MB, {FLAT_MB} allowed"
        for row in rows
        if (grew := max(row["grew_mb"], row["uss_grew_mb"])) >= FLAT_MB
    ]
    wrong += [f"{name} held {most} chunks" for name, most in places.items() if most > allowed[name]]
    wrong += [f"queue {queue} is past its bound" for queue in queues if queue["most"] > queue["bound"]]
    return {
        "slow": slow,
        "chunks": emitted,
        "wall_s": time.monotonic() - start,
        "period_ms": run.summary["period_ms"],
        "taken_by_others": others.share,
        "memory": rows,
        "places": {name: (most, allowed[name]) for name, most in places.items()},
        "queues": queues,
        "wrong": wrong,
    }


def said(found: dict[str, Any]) -> str:
    """Return one soak as a paragraph and two tables."""
    memory = [
        (row["rank"], *row["rss_mb"], f"{row['grew_mb']:+.3f}", f"{row['uss_grew_mb']:+.3f}")
        for row in found["memory"]
    ]
    queues = [tuple(queue[key] for key in ("rank", "name", "most", "bound")) for queue in found["queues"]]
    places = ", ".join(f"{name} {most} of {allowed}" for name, (most, allowed) in found["places"].items())
    return "\n\n".join(
        [
            f"## Slow {found['slow']}",
            f"{found['chunks']} chunks in {found['wall_s']:.1f} s, period {found['period_ms']} ms; others "
            f"took {found['taken_by_others']:.0%} of the machine. Most chunks in one place: {places}.",
            common.table(["rank", "RSS MB, second tenth", "last tenth", "grew", "USS grew"], memory),
            common.table(["rank", "queue", "most", "bound"], queues),
            *(f"WRONG: {what}." for what in found["wrong"]),
        ]
    )


def main() -> int:
    """Run the soaks asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--slow", choices=list(SLOW), nargs="+", default=list(SLOW))
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        found = [soak(slow, asked.chunks, Path(scratch, slow)) for slow in asked.slow]
    parts = [said(one) for one in found]
    sys.stdout.write(common.report("soak", "Soak", parts, {"soaks": found}, asked.results))
    return 1 if any(one["wrong"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
