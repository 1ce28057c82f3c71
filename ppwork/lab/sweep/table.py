"""A sweep's folder as one table: a row for each run of each point, read back from its files.

**Which runs are compared.** Runs are numbered in order. A parameter may decide how often a notebook launches;
then the third run of one point is not the third of another. So a point that launched less often than another
takes its numbers from the first of those with most: of equal plans the n-th has the number of the n-th there,
and two plans are equal if they differ in nothing but swept parameters. A run without an equal there gets a
number of its own, behind the others.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from ppwork.errors import PlanError
from ppwork.lab.parameters import Value
from ppwork.lab.sweep.sweep import OK, Outcome, Point, outcome_of, read_grid
from ppwork.pictures.tables import Table
from ppwork.plan import VIDEO_STAGE1, Plan
from ppwork.records.run import Run

OF_TIME = ("period_ms", "stage0_ms", "stage1_ms", "overlap_score", "efficiency", "mesh_idle_ms")
MEASURES = (*OF_TIME, "psnr_denoised_db", "max_abs_diff")
"""Numbers of a summary that a table has, in this order."""


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one point."""

    run: int
    """The same number is the same step of the notebook, from 1."""
    run_dir: str
    """Below the sweep's folder."""
    facts: list[str]
    """Words of its plan: depth, mesh, workload and its options, resets and fault."""
    finished: bool
    """Whether it left a summary; one with a fault in it may not."""
    measures: dict[str, float | None]


class PointRow(Point, frozen=True, kw_only=True):
    """One point, how it ended, and its runs."""

    outcome: Outcome
    runs: list[SweepRow]

    @property
    def series(self) -> str:
        """The values of all axes but the first, in words."""
        return ", ".join(f"{name} {value}" for name, value in list(self.values.items())[1:])


class SweepTable(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as far as it has come."""

    notebook: str
    axes: dict[str, list[Value]]
    fixed: dict[str, Value]
    points: list[PointRow]

    @property
    def title(self) -> str:
        """Name of the notebook."""
        return self.notebook.removesuffix(".ipynb")

    @property
    def run_numbers(self) -> list[int]:
        """Numbers of the runs that at least one point has."""
        return sorted({row.run for point in self.points for row in point.runs})

    @property
    def legend(self) -> list[str]:
        """The meaning of each run, a line each."""
        return [f"run {number}: {self.label(number)}" for number in self.run_numbers]

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
        rows = ((point.number, row) for point in self.points for row in point.runs if row.run == run)
        values = {number: row.measures.get(measure) for number, row in rows}
        return {number: value for number, value in values.items() if value is not None}


def collect(folder: Path) -> SweepTable:
    """Read a sweep's folder, at any time.

    Raises:
        PlanError: It is of no sweep.
    """
    grid = read_grid(folder)
    runs_by_point = [_runs(folder / point.folder) for point in grid.points]
    points = [
        PointRow(
            number=point.number,
            values=point.values,
            outcome=outcome_of(folder, point),
            runs=[_row(run, number, folder) for run, number in zip(runs, numbers, strict=True)],
        )
        for point, runs, numbers in zip(
            grid.points, runs_by_point, _numbers(runs_by_point, grid.axes), strict=True
        )
    ]
    return SweepTable(notebook=grid.notebook, axes=grid.axes, fixed=grid.fixed, points=points)


def _runs(folder: Path) -> list[Run]:
    plans = sorted(folder.rglob(Plan.FILE_NAME), key=lambda path: (path.stat().st_mtime_ns, str(path)))
    runs = [Run(path.parent, 0) for path in plans]
    return [run for run in runs if _reads(run)]


def _reads(run: Run) -> bool:
    """Say whether a folder's plan is one: a notebook may leave others, of another version or of no run."""
    try:
        return bool(run.plan)
    except PlanError:
        return False


def _numbers(runs_by_point: Sequence[Sequence[Run]], swept: Collection[str]) -> list[list[int]]:
    """Return the numbers of the runs of each point, as the head of this file says."""
    steps_by_point = [_steps(runs, swept) for runs in runs_by_point]
    longest = max(steps_by_point, key=len, default=[])
    numbers = {step: number for number, step in enumerate(longest, start=1)}
    return [
        list(range(1, len(steps) + 1))
        if len(steps) == len(longest)
        else [numbers.setdefault(step, len(numbers) + 1) for step in steps]
        for steps in steps_by_point
    ]


def _steps(runs: Sequence[Run], swept: Collection[str]) -> list[tuple[str, int]]:
    """Return what each plan says but for swept parameters, and how many before it say the same."""
    texts: list[str] = []
    for run in runs:
        fields = (*run.plan.to_dict().items(), *run.plan.options.items())
        texts.append(str([field for field in fields if field[0] not in {*swept, "options"}]))
    return [(text, texts[:number].count(text)) for number, text in enumerate(texts)]


def _row(run: Run, number: int, folder: Path) -> SweepRow:
    summary = run.summary
    known = {**summary.get("figures", {}), **summary}
    measures = {name: known[name] for name in MEASURES if name in known}
    return SweepRow(
        run=number,
        run_dir=str(run.run_dir.relative_to(folder)),
        facts=facts_of(run.plan),
        finished=bool(summary),
        measures={name: float(n) if isinstance(n, int | float) else None for name, n in measures.items()},
    )


def facts_of(plan: Plan) -> list[str]:
    """Return what tells one plan of a notebook from another, each fact in words.

    >>> facts_of(Plan(in_flight_depth=2, fault="F07"))
    ['depth 2', 'mesh of 2', 'video', 'fault F07']
    """
    stage = "video" if plan.stage1 in ("", VIDEO_STAGE1) else plan.stage1.rpartition(":")[2]
    facts = [f"depth {plan.in_flight_depth}", f"mesh of {plan.mesh_size}", stage]
    facts += [plan.schedule] if plan.schedule != "overlap" else []
    facts += [f"cut at {', '.join(map(str, plan.hard_cuts))}"] if plan.hard_cuts else []
    facts += [f"flush at {', '.join(map(str, plan.flushes))}"] if plan.flushes else []
    facts += [f"fault {plan.fault}"] if plan.fault else []
    # Last, since there are many: a panel's title has room for three lines.
    return facts + [f"{name} {value}" for name, value in sorted(plan.options.items())]


def as_csv(table: SweepTable) -> str:
    """Return the table for a spreadsheet: parameters are ``param.NAME``; a point without runs has one row."""
    parameters = [f"param.{name}" for name in (*table.axes, *table.fixed)]
    of_run = ["run", "run_is", "finished", *MEASURES, "run_dir"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["point", *parameters, "point_state", *of_run])
    for point in table.points:
        start = [point.number, *point.values.values(), *table.fixed.values(), point.outcome.state]
        for row in point.runs:
            measured = [row.measures.get(name) for name in MEASURES]  # None is written as an empty cell
            writer.writerow([*start, row.run, ", ".join(row.facts), row.finished, *measured, row.run_dir])
        if not point.runs:
            writer.writerow([*start, *[""] * len(of_run)])
    return text.getvalue()


def as_table(table: SweepTable, measure: str) -> Table:
    """Return a measure for a screen: a row for each point, a column for each run.

    The state of a point says how often it launched where another one did so more often.
    """
    columns = {f"run {run}": table.values_of(run, measure) for run in table.run_numbers}
    most = max(len(point.runs) for point in table.points)
    rows = []
    for point in table.points:
        few = f", {len(point.runs)} of {most} runs" if len(point.runs) < most else ""
        cells = [
            f"{values[point.number]:.4g}" if point.number in values else "" for values in columns.values()
        ]
        rows.append([*map(str, point.values.values()), point.outcome.state + few, *cells])
    return Table([*table.axes, "state", *columns], rows, above=measure)
