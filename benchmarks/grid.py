"""The grid that ``overlap`` measures and ``simulate`` predicts: points, plans, and what was written down."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

import msgspec
from common import RESULTS

import ppwork as pp
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BALANCES = {"balanced": (1.0, 1.0), "3:1": (1.0, 1 / 3), "1:3": (1 / 3, 1.0)}
"""Stage 0 to stage 1, as shares of the longest stage."""
LONGEST_MS = (20, 60, 200)
PAYLOADS = {"0": (0, 0), "1": (1, 1), "16": (16, 16), "16 there": (16, 0)}
"""MB of a chunk, there and back."""
ONE_WAY = "16 there"
DEPTHS = (1, 2, 3, 4)
SCHEDULES = ("overlap", "send-after-decode")
LONG_ENOUGH_MS = 3000.0
CHUNKS = (16, 100)
"""Least and most chunks of a run; between them, as many as fill ``LONG_ENOUGH_MS`` if all overlaps."""
RECORDS = "records.jsonl"


class Point(msgspec.Struct, frozen=True, order=True):
    """One point of the grid."""

    balance: str
    longest_ms: float
    payload: str

    @property
    def options(self) -> dict[str, float]:
        """The synthetic stages' options; stage 0 is split evenly into encode and decode."""
        stage0, stage1 = (share * self.longest_ms for share in BALANCES[self.balance])
        times = {"encode_ms": stage0 / 2, "decode_ms": stage0 / 2, "stage1_ms": stage1}
        there, back = PAYLOADS[self.payload]
        return {**times, "payload_mb": float(there), "result_mb": float(back)}

    def __str__(self) -> str:
        return f"{self.balance.replace(':', 'to')}-{self.longest_ms:g}ms-{self.payload.replace(' ', '-')}mb"


class Record(msgspec.Struct, frozen=True):
    """One measured run; times in milliseconds."""

    point: Point
    depth: int
    schedule: str
    round: int
    run_dir: str
    period_ms: float
    stage0_ms: float
    stage1_ms: float
    efficiency: float
    overlap_score: float
    mesh_idle_ms: float
    others_share: float
    """Of the machine's CPU, by other processes, during the run."""

    @property
    def variant(self) -> tuple[Point, int, str]:
        """What is the same in every round."""
        return self.point, self.depth, self.schedule


def variants(
    points: Iterable[Point], depths: Iterable[int], schedules: Iterable[str]
) -> list[tuple[Point, int, str]]:
    """Return the runs of these points; at depth 1 both are the sequential loop.

    The classic mistake is the same whatever comes back, so it is left out where only the way there is loaded.
    """
    found = []
    for point in points:
        found.append((point, 1, "overlap"))
        pairs = itertools.product(depths, schedules if point.payload != ONE_WAY else ("overlap",))
        found += [(point, depth, schedule) for depth, schedule in pairs if depth > 1]
    return found


def plan_of(point: Point, depth: int, schedule: str, mesh_size: int = 2) -> pp.Plan:
    """Return the plan of one run."""
    least, most = CHUNKS
    return pp.Plan(
        mesh_size=mesh_size,
        chunks=max(least, min(most, round(LONG_ENOUGH_MS / point.longest_ms))),
        backend="gloo",
        in_flight_depth=depth,
        schedule=schedule,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options=point.options,
    )


def record_of(point: Point, round_: int, run: pp.Run, others_share: float, folder: Path) -> Record:
    """Return what a run's summary says."""
    names = ("period_ms", "stage0_ms", "stage1_ms", "efficiency", "overlap_score", "mesh_idle_ms")
    figures = {name: run.summary[name] for name in names}
    plan, place = run.plan, str(run.run_dir.relative_to(folder.absolute()))
    return Record(
        point, plan.in_flight_depth, plan.schedule, round_, place, **figures, others_share=others_share
    )


def whole_grid() -> list[Point]:
    """Return all points."""
    return [Point(*place) for place in itertools.product(BALANCES, LONGEST_MS, PAYLOADS)]


def place_of(records: Iterable[Record], folder: Path) -> Path:
    """Return where the tables belong: with the others if the whole grid was measured, else with its runs."""
    there = {record.variant for record in records}
    return RESULTS if set(variants(whole_grid(), DEPTHS, SCHEDULES)) <= there else folder


def line_of(record: Record) -> bytes:
    """Return the line that stands for a record on disk."""
    return msgspec.json.encode(record) + b"\n"


def read_records(folder: Path) -> list[Record]:
    """Return what has been measured so far; a last line cut by a kill is left out."""
    path = folder / RECORDS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Record) for line in lines if line.endswith(b"\n")]


def by_variant(records: Iterable[Record]) -> dict[tuple[Point, int, str], list[Record]]:
    """Group records of all rounds, in the order of the grid."""
    found: dict[tuple[Point, int, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.variant):
        found.setdefault(record.variant, []).append(record)
    return found


def median_of(records: list[Record], name: str) -> float:
    """Return the median of a figure over rounds."""
    return round(statistics.median(getattr(record, name) for record in records), 4)
