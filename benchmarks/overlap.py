"""Does the pipeline overlap as the law says? Real runs of sleeping stages over a grid, at depth 1 to 4.

Of each point (balance, longest stage, payload) there is one run at every depth, and at depth 2 and more one
of the classic mistake as well (envelope k+1 leaves after the decode of k). The law takes stages and transport
from the run at depth 1 of the same point: what its period has beyond both stages is what transport exposes.
Run folders stay, and every finished run is written down at once: ``--resume FOLDER`` goes on where a stopped
benchmark was.

``python benchmarks/overlap.py --quick`` takes two points; ``make bench`` takes all.
"""

from __future__ import annotations

import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from common import BUSY_SHARE, WAIT_S, by, described, measured_quietly, percent, report, table
from grid import (
    BALANCES,
    DEPTHS,
    LONGEST_MS,
    PAYLOADS,
    RECORDS,
    SCHEDULES,
    Point,
    Record,
    by_variant,
    line_of,
    median_of,
    place_of,
    plan_of,
    read_records,
    record_of,
    variants,
)

import ppwork as pp
from ppwork.records.files import write_whole
from ppwork.timeline.costs import law_period_ms

TITLE = "Overlap: period, law and measures over the grid"
NOTE = "Times in milliseconds, by ``timeline.measure``; medians over the chunks of a run, then over rounds."
FIGURES = ("period_ms", "stage0_ms", "stage1_ms", "efficiency", "overlap_score", "mesh_idle_ms")
COLUMNS = (
    "balance",
    "longest stage",
    "MB",
    "depth",
    "period",
    "law",
    "off the law",
    "efficiency",
    "overlap score",
    "mesh idle",
    "",
)


def run_once(plan: pp.Plan, folder: Path, attempt: int) -> pp.Run:
    """Run a plan in a folder of its own."""
    return pp.launch(plan, out=folder.with_name(f"{folder.name}-try{attempt}"), limit_s=300.0)


def measure(folder: Path, todo: list[tuple[int, Point, int, str]], wait_s: float) -> list[Record]:
    """Measure what is not there yet, each run written down as it ends.

    Rounds are interleaved: each goes once over everything.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = read_records(folder)
    write_whole(folder / RECORDS, b"".join(map(line_of, records)))  # without a line that a kill cut
    there = {(record.round, *record.variant) for record in records}
    with (folder / RECORDS).open("ab", buffering=0) as file:
        for place, (round_, point, depth, schedule) in enumerate(todo, start=1):
            if (round_, point, depth, schedule) in there:
                continue
            name = f"{point}-depth{depth}-{schedule}-round{round_}-{time.time_ns()}"
            job = partial(run_once, plan_of(point, depth, schedule), folder / name)
            run, share = measured_quietly(job, wait_s)
            record = record_of(point, round_, run, share, folder)
            file.write(line_of(record))
            records.append(record)
            period = f"{record.period_ms:.2f} ms, others {share:.0%}"
            sys.stderr.write(f"{place}/{len(todo)} {point} depth {depth} {schedule}: {period}\n")
    return records


def rows_of(records: list[Record]) -> list[dict[str, Any]]:
    """Return one row per point, depth and schedule: medians over rounds, and the law from depth 1."""
    found, rows = by_variant(records), []
    for (point, depth, schedule), same in found.items():
        row: dict[str, Any] = {**msgspec.to_builtins(point), "depth": depth, "schedule": schedule}
        row |= {name: median_of(same, name) for name in FIGURES}
        row["decode_ms"] = point.options["decode_ms"]
        row["busy"] = any(record.others_share >= BUSY_SHARE for record in same)
        if base := found.get((point, 1, "overlap")):
            stage0, stage1, period = (median_of(base, n) for n in ("stage0_ms", "stage1_ms", "period_ms"))
            row["transport_ms"] = round(period - stage0 - stage1, 3)
            row["law_ms"] = round(law_period_ms(stage0, stage1, row["transport_ms"], depth), 3)
            row["off_law"] = round(row["period_ms"] / row["law_ms"] - 1, 4)
        rows.append(row)
    return rows


def parts_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the report: the goals first, then every run."""
    good = [row for row in rows if row["schedule"] == "overlap"]
    bad = [row for row in rows if row["schedule"] != "overlap"]
    return [
        NOTE,
        f"{sum(row['busy'] for row in rows)} of {len(rows)} figures are marked busy: meanwhile others used "
        f"{BUSY_SHARE:.0%} of the machine or more.",
        "## By depth",
        table(
            ("depth", "points", "worst off the law", "lowest efficiency", "lowest overlap score"),
            [
                (
                    depth,
                    len(same),
                    percent(max((row["off_law"] for row in same if "off_law" in row), key=abs, default=None)),
                    min(row["efficiency"] for row in same),
                    min(row["overlap_score"] for row in same),
                )
                for depth, same in by(good, "depth").items()
            ],
        ),
        "## Overlap",
        table(COLUMNS, [cells_of(row) for row in good]),
        "## The classic mistake: the mesh is idle for the decode, and longer",
        table(("decode", *COLUMNS), [(row["decode_ms"], *cells_of(row)) for row in bad]),
    ]


def cells_of(row: dict[str, Any]) -> tuple[object, ...]:
    """Return the cells of one row of the long tables."""
    named = (row["balance"], f"{row['longest_ms']:g}", row["payload"], row["depth"])
    law = (row["period_ms"], row.get("law_ms"), percent(row.get("off_law")))
    rest = (row[name] for name in ("efficiency", "overlap_score", "mesh_idle_ms"))
    return (*named, *law, *rest, "busy" if row["busy"] else "")


def main() -> None:
    """Measure and write the tables."""
    options = described(__doc__)
    options.add_argument("--quick", action="store_true", help="balanced 20 ms, 0 and 16 MB, depth 1 to 3")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--balance", nargs="+", choices=BALANCES, default=list(BALANCES))
    options.add_argument("--ms", nargs="+", type=float, default=LONGEST_MS, help="longest stage")
    options.add_argument("--mb", nargs="+", choices=PAYLOADS, default=list(PAYLOADS), help="payload")
    options.add_argument("--depth", nargs="+", type=int, default=DEPTHS, help="depth 1 is always run")
    options.add_argument("--schedule", nargs="+", choices=SCHEDULES, default=SCHEDULES)
    options.add_argument("--resume", type=Path, metavar="FOLDER", help="of runs that an earlier call began")
    options.add_argument("--wait-s", type=float, default=WAIT_S, help="longest wait for a quiet machine")
    given = options.parse_args()
    if given.quick:
        given.balance, given.ms, given.mb, given.depth = ["balanced"], [20.0], ["0", "16"], [1, 2, 3]
        given.schedule = ["overlap"]
    points = [Point(*place) for place in itertools.product(given.balance, given.ms, given.mb)]
    todo = [
        (round_, *variant)
        for round_ in range(given.rounds)
        for variant in variants(points, given.depth, given.schedule)
    ]
    folder = given.resume or Path("runs") / time.strftime("overlap-%Y%m%d-%H%M%S")
    sys.stderr.write(f"runs and records: {folder}\n")
    try:
        measure(folder, todo, given.wait_s)
    finally:
        records = read_records(folder)
        rows, place = rows_of(records), place_of(records, folder)
        sys.stdout.write(report("overlap", TITLE, parts_of(rows), {"runs": str(folder), "rows": rows}, place))


if __name__ == "__main__":
    main()
