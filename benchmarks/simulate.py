"""Does the simulator say what was measured? For the runs of ``overlap``, from the run at depth 1 alone.

Of each point the costs are taken from its run at depth 1 (of the same round); from them the simulator
predicts the period at every depth and schedule, which is compared with the measured one.

``python benchmarks/simulate.py [FOLDER]`` takes the runs of an ``overlap`` benchmark; by default the newest.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec
from common import BUSY_SHARE, by, described, percent, report, table
from grid import RECORDS, Record, by_variant, median_of, place_of, read_records

from ppwork.cli.simulate import run_costs
from ppwork.plan import Plan
from ppwork.timeline.simulate import simulate

TITLE = "Simulator: predicted against measured period"
GOALS = (0.03, 0.05)
"""Median and worst of the errors' sizes."""
COLUMNS = ("balance", "longest stage", "MB", "depth", "schedule", "measured", "predicted", "error", "")


def predictions(records: list[Record], folder: Path) -> dict[Record, float]:
    """Return the predicted period of every record whose round has its point at depth 1."""
    sources = {(r.point, r.round): folder / r.run_dir for r in records if r.depth == 1}
    costs = {key: run_costs(run_dir)[1] for key, run_dir in sources.items()}
    found = {}
    for record in records:
        if (key := (record.point, record.round)) in costs:
            simulation = simulate(Plan.load(folder / record.run_dir), costs[key])
            found[record] = simulation.measures.period_ms or 0.0
    return found


def rows_of(predicted: dict[Record, float]) -> list[dict[str, Any]]:
    """Return one row per point, depth and schedule: medians over rounds and the error between them."""
    rows = []
    for (point, depth, schedule), same in by_variant(predicted).items():
        measured = median_of(same, "period_ms")
        guess = statistics.median(predicted[record] for record in same)
        row = {**msgspec.to_builtins(point), "depth": depth, "schedule": schedule, "period_ms": measured}
        row |= {"predicted_ms": round(guess, 3), "error": round(guess / measured - 1, 4)}
        rows.append(row | {"busy": any(record.others_share >= BUSY_SHARE for record in same)})
    return rows


def parts_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the report: median and worst error, in all and by what may explain it, then every run."""
    groups = {"all": rows}
    for name, what in {"payload": "MB", "depth": "depth", "schedule": "schedule"}.items():
        groups |= {f"{what} {value}": same for value, same in by(rows, name).items()}
    columns = ("runs", "number", "median error", "worst error")
    return [
        "Times in milliseconds. Predicted from the run at depth 1 of the same point.",
        table(columns, [(what, len(same), *map(percent, errors(same))) for what, same in groups.items()]),
        "## Every run",
        table(COLUMNS, [cells_of(row) for row in rows]),
    ]


def errors(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return median and worst size of the errors."""
    sizes = [abs(row["error"]) for row in rows]
    return statistics.median(sizes), max(sizes)


def cells_of(row: dict[str, Any]) -> tuple[object, ...]:
    """Return the cells of one row of the long table."""
    named = (row["balance"], f"{row['longest_ms']:g}", row["payload"], row["depth"], row["schedule"])
    found = (row["period_ms"], row["predicted_ms"], percent(row["error"]))
    return (*named, *found, "busy" if row["busy"] else "")


def newest(runs: Path = Path("runs")) -> Path:
    """Return the folder of the newest ``overlap`` benchmark."""
    found = sorted(path.parent for path in runs.glob(f"overlap-*/{RECORDS}"))
    if not found:
        raise SystemExit(f"no {runs}/overlap-*/{RECORDS}: run benchmarks/overlap.py first")
    return found[-1]


def main() -> None:
    """Predict and write the tables."""
    options = described(__doc__)
    options.add_argument("folder", nargs="?", type=Path)
    folder = options.parse_args().folder or newest()
    records = read_records(folder)
    rows = rows_of(predictions(records, folder))
    if not rows:
        raise SystemExit(f"{folder} has no point with its run at depth 1 to predict from")
    median, worst = errors(rows)
    data = {"runs": str(folder), "median_error": median, "worst_error": worst, "rows": rows}
    sys.stdout.write(report("simulate", TITLE, parts_of(rows), data, place_of(records, folder)))


if __name__ == "__main__":
    main()
