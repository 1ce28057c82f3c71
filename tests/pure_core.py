"""Print the files of the pure core, as import-linter's contract names them, for the coverage gate."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTEBOOK_SIDE = {
    "agent_watch",
    "checks",
    "claims.pool",
    "claims.runs",
    "claims_cli",
    "cli",
    "doctor_cli",
    "fault_cli",
    "fault_hosts",
    "fault_outside",
    "fault_runs",
    "fault_watch",
    "launch",
    "live",
    "load",
    "notebooks",
    "processes",
    "runs_cli",
    "screen",
    "script",
    "script_rank",
    "show",
    "survey",
    "sweep",
    "sweep_cli",
    "torchrun",
}
"""Torch-free as well, but they start processes: covered by the runs, not counted as core."""


def pure_core_files() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    modules = next(c["source_modules"] for c in contracts if c["name"].startswith("pure core"))
    names = [m.removeprefix("ppwork.") for m in modules]
    return [f"ppwork/{name.replace('.', '/')}.py" for name in names if name not in NOTEBOOK_SIDE]


if __name__ == "__main__":
    sys.stdout.write(",".join(pure_core_files()))
