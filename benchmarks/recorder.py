"""What recording costs a run: entries per chunk times the cost of one; and one run writing and not writing.

A chunk of 20 ms at depth 3 is the yardstick, and the goal under 1 % of it on every rank. The first table
counts the entries of a run under the launcher; an entry costs most when everything else has pushed it out of
the caches, so it is timed alone, after a copy of 8 MB. The second table is one run whose ranks write to a
file for 50 chunks, then to nowhere for 50, and so on: neighbours are compared.

``python benchmarks/recorder.py`` writes ``recorder.md`` and exits with 1 past the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common

import ppwork as pp
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1
from ppwork.records.spans import Instant, Recorder, Span, span_file

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_MS, GOAL = 20.0, 0.01
BLOCK = 50
"""Chunks between two switches of the recorder."""
IDS = {"call_id": 12_345, "chunk_index": 12_345, "cache_epoch": 1}


def plan_of(chunks: int) -> pp.Plan:
    """Return a balanced run of 20 ms a chunk, 1 MB each way."""
    half = PERIOD_MS / 2
    return pp.Plan(
        mesh_size=2,
        chunks=chunks,
        backend="gloo",
        in_flight_depth=3,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={"encode_ms": half, "decode_ms": half, "stage1_ms": PERIOD_MS, "payload_mb": 1.0},
    )


def entry_us(record: Callable[[], None], *, rounds: int = 300) -> float:
    """Return the median time of one entry that finds cold caches, in microseconds."""
    other, times = bytearray(8 << 20), []
    for _ in range(rounds):
        bytes(other)
        start_ns = time.perf_counter_ns()
        record()
        times.append((time.perf_counter_ns() - start_ns) / 1e3)
    return statistics.median(times)


def costs_us(folder: Path) -> dict[type, float]:
    """Return what a span and an instant cost, written to a file as in a run."""
    with Recorder(folder / "costs.jsonl") as recorder:
        return {
            Span: entry_us(lambda: recorder.add_span("generate", time.monotonic_ns(), ids=IDS)),
            Instant: entry_us(lambda: recorder.instant("emit", figures={"stage1_ms": 20.123456}, ids=IDS)),
        }


def counted(folder: Path, costs: dict[type, float]) -> list[dict[str, Any]]:
    """Return for each rank the entries of a chunk in a real run and what they cost."""
    chunks = 50
    run = pp.launch(plan_of(chunks), out=folder / "counted")
    rows = []
    for rank in range(run.plan.world_size):
        entries = [entry for entry in run.entries(rank) if entry.chunk_index >= 0]
        spans, instants = (sum(isinstance(entry, kind) for entry in entries) / chunks for kind in costs)
        us = spans * costs[Span] + instants * costs[Instant]
        share = us / (PERIOD_MS * 1e3)
        rows.append({"rank": rank, "spans": spans, "instants": instants, "us": us, "share": share})
    return rows


def alternated(folder: Path, blocks: int) -> list[dict[str, Any]]:
    """Run ranks that switch their recorder every block; return period and processor time, in ms a chunk.

    Of each, the medians with and without a file, and the median change between neighbours.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    arguments = [__file__, "--ranks-of", str(folder), "--blocks", str(blocks)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *arguments], check=True, env=environment)
    rows = []
    for rank in range(3):
        marks = json.loads((folder / f"marks-{rank}.json").read_text())
        # The first pair is warm-up: schemas and connections are new.
        spent = [[(b - a) / 1e6 / BLOCK for a, b in zip(*two, strict=True)] for two in pairwise(marks)][2:]
        row: dict[str, Any] = {"rank": rank}
        for column, name in enumerate(("period_ms", "cpu_ms")):
            on, off = ([block[column] for block in spent[first::2]] for first in (0, 1))
            change = statistics.median(a - b for a, b in zip(on, off, strict=True))
            row[name] = [statistics.median(on), statistics.median(off), change]
        rows.append(row)
    return rows


def be_rank(folder: Path, blocks: int) -> None:
    """Be one rank of ``alternated``: the runtime's own loops, with stages that switch the recorder."""
    from ppwork.runtime import FollowerPlane, LeaderPlane, PPControlPlane, Stage0Plane
    from ppwork.stage import NoTensorParallel, StageContext, Tensors
    from ppwork.worker.loops import follower_loop, leader_loop, stage0_loop
    from ppwork.worker.tally import Tally
    from ppwork.workloads.synthetic import SyntheticGenerator, SyntheticSource

    rank = int(os.environ["RANK"])
    marks: list[tuple[int, int]] = []

    def at(chunk_index: int) -> None:
        if chunk_index % BLOCK == 0:
            marks.append((time.monotonic_ns(), time.process_time_ns()))
            plane.recorder = recorders[chunk_index // BLOCK % 2]

    class Source(SyntheticSource):
        def encode(self, chunk_index: int) -> Tensors:
            at(chunk_index)
            return super().encode(chunk_index)

    class Generator(SyntheticGenerator):
        def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:
            at(int(tensors["payload"][0]))
            return super().step(tensors, step_index, num_steps)

    plan = plan_of((blocks + 2) * BLOCK + 1)  # a pair to warm up, and the chunk that marks the end
    recorders = Recorder(span_file(folder, rank)), Recorder(None)
    with recorders[0], recorders[1], PPControlPlane.join(plan, recorder=recorders[0]) as plane:
        context = StageContext(plan, plane.groups.device, NoTensorParallel())
        if isinstance(plane, Stage0Plane):
            stage0_loop(plane, plan, Source(context))
        tally = Tally(rank, str(plane.role), plan.compare_collectives)
        if isinstance(plane, LeaderPlane):
            leader_loop(plane, plan, Generator(context), tally)
        if isinstance(plane, FollowerPlane):
            follower_loop(plane, plan, Generator(context), tally)
    (folder / f"marks-{rank}.json").write_text(json.dumps(marks))


def main() -> int:
    """Measure, or be one of the ranks that are measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=20, help=f"of {BLOCK} chunks, an even number")
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    parser.add_argument("--ranks-of", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ranks_of is not None:
        be_rank(asked.ranks_of, asked.blocks)
        return 0
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        folder = Path(scratch)
        costs, others = common.measured_quietly(lambda _: costs_us(folder))
        rows, both = counted(folder, costs), alternated(folder, asked.blocks)
    parts = [
        f"One span costs {costs[Span]:.1f} us and one instant {costs[Instant]:.1f} us, caches cold; others "
        f"took {others:.0%} of the machine. The goal is under {GOAL:.0%} of a chunk of {PERIOD_MS:g} ms.",
        common.table(
            ["rank", "spans a chunk", "instants a chunk", "us a chunk", "share"],
            [(r["rank"], r["spans"], r["instants"], r["us"], f"{r['share']:.3%}") for r in rows],
        ),
        f"Writing to a file and to nowhere, {asked.blocks // 2} blocks of {BLOCK} chunks each; ms a chunk.",
        common.table(
            ["rank", "period, file", "nowhere", "change", "CPU, file", "nowhere", "change"],
            [(row["rank"], *row["period_ms"], *row["cpu_ms"]) for row in both],
        ),
    ]
    data = {"entry_us": {"span": costs[Span], "instant": costs[Instant]}, "counted": rows, "alternated": both}
    sys.stdout.write(common.report("recorder", "Cost of recording", parts, data, asked.results))
    return 0 if all(row["share"] < GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
