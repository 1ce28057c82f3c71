"""Run folders that ranks are started in one by one, without a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path


def folder(path: Path, plan: Plan) -> Path:
    """Make a run folder with its plan in it."""
    path.mkdir()
    (path / Plan.FILE_NAME).write_bytes(plan.to_json())
    return path


def worker(run_dir: Path) -> list[str]:
    """Arguments of Python that make a process a rank of this run."""
    return ["-m", "ppwork", "worker", str(run_dir)]
