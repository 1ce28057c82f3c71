"""Consoles of real torchrun jobs (``--redirects 3 --tee 3``), as they were; only paths were shortened."""

from __future__ import annotations

import re
from pathlib import Path

from checkout import SUPPORT

CAPTURED = SUPPORT / "captured"
TEED = re.compile(r"^\[default(\d+)\]:(.*)$", re.MULTILINE)


def console(name: str) -> Path:
    """The log of a job's console."""
    return CAPTURED / f"{name}.txt"


def log_dir(name: str | Path, folder: Path, *, ranks: int = 3, report: bool = True) -> Path:
    """The same job's ``--log-dir``: torchrun writes there what it shows with the prefix ``[default0]:``."""
    text = (name if isinstance(name, Path) else console(name)).read_text()
    for rank in range(ranks):
        of_rank = folder / "run_x1" / "attempt_0" / str(rank)
        of_rank.mkdir(parents=True)
        lines = [line for number, line in TEED.findall(text) if int(number) == rank]
        (of_rank / "stderr.log").write_text("".join(f"{line}\n" for line in lines))
        (of_rank / "stdout.log").touch()
    if report:
        (folder / "console.log").write_text(TEED.sub("", text))
    return folder
