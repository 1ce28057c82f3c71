"""``ppwork diagnose``: why a run failed, of ours or of any torchrun program."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ppwork.diagnosis import diagnose
from ppwork.logs_diagnosis import diagnose_job
from ppwork.plan import Plan
from ppwork.torchrun_logs import read_job

if TYPE_CHECKING:
    from ppwork.findings import Diagnosis


def explain(path: Path) -> Diagnosis:
    """Explain a run folder of ours, torchrun's ``--log-dir``, or the log of a console.

    Raises:
        PlanError: The path is none of these, or cannot be read.
    """
    return diagnose(path) if (path / Plan.FILE_NAME).exists() else diagnose_job(read_job(path))


def diagnose_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder, torchrun's --log-dir, or a console's log.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say which rank failed first and why, who waited for whom, and what to check first."""
    found = explain(run)
    text = (
        msgspec.json.format(msgspec.json.encode(found.to_dict()), indent=2).decode()
        if as_json
        else found.text
    )
    sys.stdout.write(text + "\n")
