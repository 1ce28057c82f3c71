"""How cost grows: with the mesh, the chunks, the tensors and metadata of a chunk, and the depth.

Real runs on gloo whose stages take no time, but for those over the depth; each point a few times
(``--rounds``), interleaved. Beside each stands what theory says: nothing for the number of chunks; a straight
line from the first to the last point for ranks, tensors, metadata and memory; for depth the law of periods
(``max(stage0, stage1, (stage0 + stage1 + transport) / depth)``, transport from depth 1). "off" is how far the
measurement lies from it: what bends.

``period`` is the mean time between two emissions after warm-up. ``rank 0`` is the part of it in which rank
0's main thread is neither in ``encode`` or ``decode`` nor waiting for a result. ``memory`` is the largest
resident size of a rank less that of its run with chunks of one byte.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import common
import psutil

import ppwork as pp
from ppwork.process import is_torchrun
from ppwork.records.spans import Instant, Span

MB = 1 << 20
LARGE = "memory: depth, chunks of 8 MB"
WARM_UP = 4
"""Chunks left out at the start."""


@dataclass(frozen=True)
class Point:
    """One run.

    Attributes:
        axis: What grows.
        at: How much of it.
        theory: ``flat``, ``line`` or ``law``.
    """

    axis: str
    at: int
    theory: str = "line"
    mesh: int = 2
    chunks: int = 40
    tensors: int = 1
    payload: int = 64 << 10
    metadata: int = 0
    depth: int = 1
    stage_ms: float = 0.0

    @property
    def plan(self) -> pp.Plan:
        """The plan of the run."""
        half = self.stage_ms / 2
        times = {"encode_ms": half, "decode_ms": half, "stage1_ms": self.stage_ms}
        return pp.Plan(
            mesh_size=self.mesh, chunks=self.chunks, backend="gloo", in_flight_depth=self.depth,
            stage0="growth_stages:Source", stage1="growth_stages:Echo",
            options={**times, "tensors": self.tensors, "payload": self.payload, "metadata": self.metadata},
        )  # fmt: skip


POINTS = [
    *(Point("mesh size", n, mesh=n) for n in (1, 2, 3, 4, 6, 8)),
    *(Point("chunks", n, "flat", chunks=n) for n in (10, 100, 1000, 10_000)),
    *(Point("tensors a chunk", n, tensors=n) for n in (1, 16, 64, 256)),
    *(Point("metadata, KB", n, metadata=n << 10) for n in (0, 10, 100, 1000)),
    *(Point("depth", n, "law", depth=n, stage_ms=20.0) for n in (1, 2, 3, 4, 8)),
    *(
        Point("memory: depth, chunks of 8 MB", n, depth=n, payload=8 * MB, stage_ms=20.0)
        for n in (1, 2, 4, 8)
    ),
]


@dataclass
class Peak:
    """The largest resident size that ranks ever had; ``started`` and ``progress`` are for ``launch``.

    Attributes:
        by_rank: In MB.
    """

    by_rank: dict[int, float] = field(default_factory=dict)
    _folder: Path = Path()
    _ranks: dict[int, int] = field(default_factory=dict)

    def started(self, _plan: pp.Plan, run_dir: Path) -> None:
        """Remember whose ranks to look at."""
        self._folder = run_dir

    def progress(self, entry: Span | Instant) -> None:
        """Read what the kernel has noted of each rank, at some emissions."""
        if entry.name != "emit" or entry.chunk_index % 10:
            return
        self._ranks = self._ranks or self._found()
        for rank, pid in self._ranks.items():
            with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                text = Path(f"/proc/{pid}/status").read_text()
                self.by_rank[rank] = int(text.partition("VmHWM:")[2].split()[0]) / 1024

    def _found(self) -> dict[int, int]:
        found = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if command[-2:] == ["worker", str(self._folder)] and not is_torchrun(command):
                    found[int(process.environ()["RANK"])] = process.pid
        return found


def run(point: Point, folder: Path) -> dict[str, Any]:
    """Run a point once, and return its figures."""
    peak = Peak()
    finished = pp.launch(point.plan, out=folder, started=peak.started, progress=peak.progress)
    entries = finished.entries(0)
    emitted = sorted((e for e in entries if e.name == "emit"), key=lambda emit: emit.end_ns)[WARM_UP:]
    first_ns, last_ns, periods = emitted[0].end_ns, emitted[-1].end_ns, len(emitted) - 1
    spans = [e for e in entries if isinstance(e, Span) and first_ns <= e.start_ns and e.end_ns <= last_ns]
    others = sum(e.ms for e in spans if e.name in ("encode", "decode", "receive") and e.chunk_index >= 0)
    period_ms = (last_ns - first_ns) / 1e6 / periods
    return {"period_ms": period_ms, "rank0_ms": period_ms - others / periods, "peak_mb": peak.by_rank}


def measured(point: Point, folder: Path, attempt: int) -> dict[str, Any]:
    """Run a point, where memory is asked for beside one with small chunks."""
    figures = run(point, folder.with_name(f"{folder.name}-{attempt}"))
    if point.axis == LARGE:
        small = run(replace(point, payload=1), folder.with_name(f"{folder.name}-{attempt}-small"))["peak_mb"]
        peak = figures["peak_mb"]
        figures["memory_mb"] = {rank: peak[rank] - small[rank] for rank in sorted({*peak} & {*small})}
    return figures


def theory(points: list[Point], values: list[float]) -> list[float]:
    """Return what theory says of the points of one axis."""
    kind, at = points[0].theory, [float(point.at) for point in points]
    if kind == "flat":
        return [values[1]] * len(values)
    if kind == "law":
        stage = points[0].stage_ms
        return [max(stage, values[0] / point.depth) for point in points]
    slope = (values[-1] - values[0]) / (at[-1] - at[0])
    return [values[0] + slope * (where - at[0]) for where in at]


def main() -> None:
    """Measure, and write the tables and the figure."""
    parser = common.described(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="Axes whose name has this.")
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    os.chdir(Path(__file__).parent)  # where the stages are
    points = [point for point in POINTS if asked.only in point.axis]
    found: dict[Point, list[dict[str, Any]]] = {point: [] for point in points}
    shares = []
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        for number in range(asked.rounds):
            for place, point in enumerate(points):
                folder = Path(scratch, f"{number}-{place}")
                figures, share = common.measured_quietly(partial(measured, point, folder))
                found[point].append(figures)
                shares.append(share)
                sys.stderr.write(f"{point.axis} {point.at}: {figures['period_ms']:.3f} ms\n")
    rows = [row for axis in dict.fromkeys(p.axis for p in points) for row in _rows(axis, found)]
    columns = ["what grows", "how much", "figure", "measured", "least", "most", "theory", "off"]
    texts = [[*row[:-1], common.percent(row[-1])] for row in rows]
    parts = [
        f"{asked.rounds} rounds, medians; the others took at most {max(shares):.0%} of the machine.",
        common.table(columns, texts),
        "![one panel for each axis](growth.png)",
    ]
    text = common.report("growth", "How cost grows", parts, {"rows": rows, "others": shares}, asked.results)
    _draw(rows, asked.results / "growth.png")
    sys.stdout.write(text)


def _rows(axis: str, found: dict[Point, list[dict[str, Any]]]) -> list[list[Any]]:
    points = [point for point in found if point.axis == axis]
    series: dict[str, list[list[float]]] = {}
    if axis.startswith("memory"):
        for rank in sorted(found[points[0]][0]["memory_mb"]):
            series[f"memory of rank {rank}, MB"] = [
                [one["memory_mb"][rank] for one in found[p]] for p in points
            ]
    else:
        series["period, ms"] = [[one["period_ms"] for one in found[p]] for p in points]
    rows = []
    for name, values in series.items():
        middles = [statistics.median(each) for each in values]
        for point, each, middle, said in zip(points, values, middles, theory(points, middles), strict=True):
            rows.append([axis, point.at, name, middle, min(each), max(each), said, middle / said - 1])
    if not axis.startswith("memory"):
        rank0 = [[one["rank0_ms"] for one in found[p]] for p in points]
        for point, each in zip(points, rank0, strict=True):
            rows.append(
                [axis, point.at, "rank 0, ms", statistics.median(each), min(each), max(each), None, None]
            )
    return rows


def _draw(rows: list[list[Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(row[0] for row in rows))
    across = min(3, len(axes_names))
    down = -(-len(axes_names) // across)
    paper = Figure(figsize=(4.2 * across, 3.3 * down), layout="constrained", facecolor="white")
    for number, name in enumerate(axes_names):
        axes = paper.add_subplot(down, across, number + 1)
        for style, series in zip("osD^", dict.fromkeys(r[2] for r in rows if r[0] == name), strict=False):
            own = [row for row in rows if row[0] == name and row[2] == series]
            at = [row[1] for row in own]
            axes.plot(at, [row[3] for row in own], marker=style, label=series)
            if own[0][6] is not None:
                axes.plot(at, [row[6] for row in own], color="black", linestyle=":", linewidth=1)
        axes.set_title(name, fontsize=11)
        if name == "chunks":
            axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9)
    paper.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
