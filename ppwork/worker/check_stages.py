"""Imports two stages as the ranks will, before there are any; a process that ``launcher.checks`` starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ppwork.errors import PlanError
from ppwork.stage import StageKind, load_stage

REFUSED = 2
"""Exit code where the stages are not what they should be; standard output says why."""


def main(stage0: str, stage1: str) -> int:
    """Print what is wrong with two stages, or the names of their files, as JSON; return the exit code."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what the modules themselves print is no answer
    contracts = ((stage0, StageKind.STAGE0), (stage1, StageKind.GENERATOR))
    try:
        stages = [load_stage(path, kind, search=Path.cwd()) for path, kind in contracts]
    except PlanError as error:
        os.write(answer, msgspec.json.encode((error.what, error.check_first)))
        return REFUSED
    files = [getattr(sys.modules[stage.__module__], "__file__", None) for stage in stages]
    os.write(answer, msgspec.json.encode([file for file in files if file]))
    return 0
