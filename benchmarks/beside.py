"""This version beside another: ``transport`` and ``growth`` of both, in turns, on one machine in one hour.

``git worktree add ../before COMMIT``, then ``python benchmarks/beside.py ../before``. Each version runs its
own benchmarks with its own package, in this environment; a quiet machine is waited for as in any benchmark.
Of each figure stand the median over the turns, and in brackets the least and the most. Nothing is written but
a table, and each run's own results below ``--kept``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import common
import msgspec

SIZES = ("4 KB", "1 MB", "16 MB")
AXES = ("mesh size", "tensors", "metadata")


def measured(checkout: Path, script: str, *options: str, results: Path) -> dict[str, float]:
    """Run one benchmark of a checkout, and return its figures by what they are of.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    program = [str(checkout / "benchmarks" / f"{script}.py"), *options, "--results", str(results)]
    subprocess.run([sys.executable, *program], check=True, env=environment, stdout=subprocess.DEVNULL)
    rows = msgspec.json.decode((results / f"{script}.json").read_bytes())["rows"]
    if script == "growth":
        return {f"{axis} {at}: {what}": figure for axis, at, what, figure, *_ in rows}
    return {
        f"{row['case']}, {row['way']}, {size}: {what}": figure
        for row in rows
        if row["way"].startswith("ppwork")
        for what, figures in (("us", row["us"]), ("times raw", row["ratio"]))
        for size, figure in zip(SIZES, figures, strict=True)
    }


def main() -> None:
    """Measure in turns, and print the table."""
    parser = common.described(__doc__)
    parser.add_argument("other", type=Path, help="A checkout of another version.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="Of transport, in each turn.")
    parser.add_argument("--axes", nargs="*", default=AXES, help="Of growth; none: only transport.")
    parser.add_argument("--kept", type=common.results_folder, help="Default: nothing is kept.")
    asked = parser.parse_args()
    versions = {"other": asked.other.resolve(), "this": common.HERE.parent}
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in versions}
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        kept = (asked.kept or Path(scratch)).resolve()
        for turn in range(asked.turns):
            # Who is first has the cold caches: each is it in turn.
            for name in sorted(versions, reverse=bool(turn % 2)):
                results = kept / f"{name}-{turn}"
                runs = [("transport", "--rounds", str(asked.rounds))]
                runs += [("growth", "--only", axis, "--rounds", "1") for axis in asked.axes]
                for number, run in enumerate(runs):
                    for what, figure in measured(versions[name], *run, results=results / str(number)).items():
                        found[name][what].append(figure)
                sys.stderr.write(f"turn {turn + 1} of {asked.turns}: {name}\n")
    rows = [[what, *(_spread(found[name][what]) for name in versions)] for what in found["this"]]
    sys.stdout.write(common.table(["figure", *versions], rows) + "\n")


def _spread(figures: list[float]) -> str | None:
    if not figures:
        return None
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


if __name__ == "__main__":
    main()
