"""What a sweep's folder holds, as one table: a row for each run of each point, read back from its files."""

from __future__ import annotations

import csv
import io
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.parameters import Value
from ppwork.plan import VIDEO_STAGE1, Plan
from ppwork.run import Run
from ppwork.sweep import OK, Outcome, outcome_of, read_grid

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MEASURES = (
    "period_ms",
    "stage0_ms",
    "stage1_ms",
    "overlap_score",
    "efficiency",
    "mesh_idle_ms",
    "psnr_denoised_db",
    "max_abs_diff",
)
"""Numbers of a summary that a table has, in this order."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one point."""

    point: int
    run: int
    """The same number is the same step of the notebook: counted from 1, where it launched most often."""
    run_dir: str
    """Below the sweep's folder."""
    facts: list[str]
    """What the plan says of it, in words: depth, mesh, workload and its options, resets and fault."""
    finished: bool
    """Whether it left a summary; one with a fault in it may not."""
    measures: dict[str, float | None]


class PointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One point."""

    number: int
    values: dict[str, Value]
    outcome: Outcome
    runs: list[Row]


class SweepTable(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as far as it has come."""

    notebook: str
    axes: dict[str, list[Value]]
    fixed: dict[str, Value]
    points: list[PointRow]

    @property
    def run_numbers(self) -> list[int]:
        """Numbers of the runs that at least one point has."""
        return sorted({row.run for point in self.points for row in point.runs})

    @property
    def not_ok(self) -> list[PointRow]:
        """Points that did not end well, or not yet."""
        return [point for point in self.points if point.outcome.state != OK]

    def label(self, run: int) -> str:
        """Return what tells this run from the others, at every point; not what the grid changes."""
        rows = [row for point in self.points for row in point.runs]
        mine = [row.facts for row in rows if row.run == run]
        always = [fact for fact in mine[0] if all(fact in facts for facts in mine)]
        telling = [fact for fact in always if not all(fact in row.facts for row in rows)]
        return ", ".join(telling or always)

    def values_of(self, run: int, measure: str) -> dict[int, float]:
        """Return a measure of a run by point, where it is known."""
        return {
            row.point: value
            for point in self.points
            for row in point.runs
            if row.run == run and (value := row.measures.get(measure)) is not None
        }


def collect(folder: Path) -> SweepTable:
    """Read a sweep's folder, at any time.

    Raises:
        PlanError: It is of no sweep.
    """
    grid = read_grid(folder)
    points = [
        PointRow(
            number=point.number,
            values=dict(point.values),
            outcome=outcome_of(folder, point),
            runs=_rows(folder, folder / point.folder, point.number),
        )
        for point in grid.points
    ]
    longest = [row.facts for row in max((point.runs for point in points), key=len, default=[])]
    points = [msgspec.structs.replace(point, runs=_by_step(point.runs, longest)) for point in points]
    return SweepTable(notebook=grid.notebook, axes=grid.axes, fixed=grid.fixed, points=points)


def _by_step(rows: list[Row], longest: list[list[str]]) -> list[Row]:
    """Number runs by the step they are: in order, and as like as can be to those of the point with most.

    A parameter may decide how often a notebook launches; then the third run here is not the third there.
    """

    @cache
    def best(run: int, step: int) -> tuple[int, tuple[int, ...]]:
        if run == len(rows):
            return 0, ()
        alike, steps = best(run + 1, step + 1)
        here = alike + len(set(rows[run].facts) & set(longest[step])), (step, *steps)
        if len(rows) - run == len(longest) - step:
            return here
        return max(here, best(run, step + 1), key=lambda found: found[0])

    _, steps = best(0, 0)
    return [msgspec.structs.replace(row, run=step + 1) for row, step in zip(rows, steps, strict=True)]


def _rows(folder: Path, place: Path, point: int) -> list[Row]:
    plans = sorted(place.rglob(Plan.FILE_NAME), key=lambda path: (path.stat().st_mtime_ns, str(path)))
    rows = []
    for number, path in enumerate(plans, start=1):
        run = Run(path.parent, 0)
        summary = run.summary
        measures = {name: _number(summary[name]) for name in MEASURES if name in summary}
        rows.append(
            Row(
                point=point,
                run=number,
                run_dir=str(path.parent.relative_to(folder)),
                facts=facts_of(run.plan),
                finished=bool(summary),
                measures=measures,
            )
        )
    return rows


def _number(value: Any) -> float | None:  # noqa: ANN401  out of JSON
    return float(value) if isinstance(value, int | float) else None


def facts_of(plan: Plan) -> list[str]:
    """Return what tells one plan of a notebook from another, each fact in words.

    >>> facts_of(Plan(in_flight_depth=2, fault="F07"))
    ['depth 2', 'mesh of 2', 'video', 'fault F07']
    """
    stage = "video" if plan.stage1 == VIDEO_STAGE1 else plan.stage1.rpartition(":")[2]
    facts = [f"depth {plan.in_flight_depth}", f"mesh of {plan.mesh_size}", stage]
    facts += [plan.order] if plan.order != "overlap" else []
    facts += [f"cut at {', '.join(map(str, plan.hard_cuts))}"] if plan.hard_cuts else []
    facts += [f"flush at {', '.join(map(str, plan.flushes))}"] if plan.flushes else []
    facts += [f"fault {plan.fault}"] if plan.fault else []
    # Last, since there are many: a panel's title has room for three lines.
    return facts + [f"{name} {value}" for name, value in sorted(plan.options.items())]


def as_csv(table: SweepTable) -> str:
    """Return the table for a spreadsheet: parameters are ``param.NAME``; a point without runs has one row."""
    head = ["point", *(f"param.{name}" for name in (*table.axes, *table.fixed)), "point_state"]
    head += ["run", "run_is", "finished", *MEASURES, "run_dir"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for point in table.points:
        start = [point.number, *point.values.values(), *table.fixed.values(), point.outcome.state]
        if not point.runs:
            writer.writerow([*start, *[""] * (len(head) - len(start))])
        for row in point.runs:
            measured = ["" if (n := row.measures.get(name)) is None else n for name in MEASURES]
            said = [row.run, ", ".join(row.facts), row.finished]
            writer.writerow([*start, *said, *measured, row.run_dir])
    return text.getvalue()


def as_lines(table: SweepTable, measure: str) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of what a screen shows: one row for each point, one column for each run."""
    numbers = table.run_numbers
    head = [*table.axes, "state", *(f"run {number}" for number in numbers)]
    by_run = {number: table.values_of(number, measure) for number in numbers}
    rows = [
        [
            *map(str, point.values.values()),
            point.outcome.state,
            *(_short(by_run[number].get(point.number)) for number in numbers),
        ]
        for point in table.points
    ]
    return head, rows


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def legend(table: SweepTable, numbers: Iterable[int]) -> list[str]:
    """Return what each run is, a line each."""
    return [f"run {number}: {table.label(number)}" for number in numbers]
