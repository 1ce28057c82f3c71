"""The fault catalogue on real ranks, in several rounds: every case caught, by whom, and how late at worst.

``python benchmarks/faults.py --rounds 3`` writes ``faults.md`` and exits with 1 if a case was not caught in
one of the rounds. ``--load 2`` keeps two cores busy meanwhile. One case alone: ``ppwork fault run F13``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import common
import msgspec

from ppwork.cli.faults import COLUMNS, line, row
from ppwork.faults.catalogue import small_plan
from ppwork.faults.report import CAUGHT, is_open
from ppwork.faults.runs import names_of, run_case

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ppwork.faults.report import FaultReport


def series(names: Iterable[str], rounds: int, mesh_size: int, keep: Path | None) -> list[FaultReport]:
    """Run the cases, one round after the other, and say of each how it went."""
    names, reports = list(names), []
    for number in range(1, rounds + 1):
        folder = keep / f"round-{number}" if keep is not None else None
        for name in names:
            report = run_case(name, mesh_size=mesh_size, keep=folder)
            sys.stderr.write(f"{line(report)}\n")
            reports.append(report)
    return reports


def rows_of(reports: Iterable[FaultReport]) -> Iterator[tuple[str, ...]]:
    """Yield one row for each case: its worst round, with the latest first notice of all of them."""
    by_case: dict[tuple[str, str], list[FaultReport]] = defaultdict(list)
    for report in reports:
        by_case[report.fault, report.case].append(report)
    for rounds in by_case.values():
        worst = max(rounds, key=lambda report: (is_open(report), report.gone_s or 0.0))
        latest = max(rounds, key=lambda report: report.noticed.after_s if report.noticed else -1.0)
        caught = sum(report.verdict == CAUGHT for report in rounds)
        cells = dict(zip(COLUMNS, row(worst), strict=True))
        cells["first notice"] = dict(zip(COLUMNS, row(latest), strict=True))["first notice"]
        cells["left"] = str(sum(len(report.left) for report in rounds))
        cells["verdict"] += f" {caught}/{len(rounds)}" if len(rounds) > 1 else ""
        yield tuple(cells.values())


def main() -> int:
    """Run the rounds asked for."""
    parser = common.described(__doc__)
    parser.add_argument("faults", nargs="*", help="ids such as F07; none: the whole catalogue")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=int, default=0, metavar="CORES")
    parser.add_argument("--mesh-size", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the run folders")
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    with common.busy(asked.load):
        reports = series(names_of(asked.faults), asked.rounds, asked.mesh_size, asked.keep)
    ran = [report for report in reports if report.verdict == CAUGHT or is_open(report)]
    caught, left = sum(r.verdict == CAUGHT for r in ran), sum(len(r.left) for r in ran)
    elsewhere = sorted({f"{r.fault}/{r.case} {r.verdict}" for r in reports if r not in ran})
    plan = small_plan(asked.mesh_size)
    parts = [
        f"{asked.rounds} rounds, {asked.load} cores kept busy: {caught} of {len(ran)} runs caught, {left} "
        f"processes left running; not run here: {', '.join(elsewhere) or 'none'}.",
        f"The plan's `freeze_s` is {plan.freeze_s:g}, `stall_s` {plan.stall_s:g}, `timeout_s` "
        f'{plan.timeout_s:g}. Of several rounds the latest times; "ranks gone" is from the injection on, '
        "and empty where the run goes on to its good end.",
        common.table(COLUMNS, rows_of(reports)),
    ]
    data = {"rounds": asked.rounds, "load": asked.load, "reports": msgspec.to_builtins(reports)}
    sys.stdout.write(common.report("faults", "Faults", parts, data, asked.results))
    return 1 if any(is_open(report) for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
