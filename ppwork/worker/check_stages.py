"""Imports two stages as the ranks will, before there are any; ``launcher.checks`` starts this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ppwork.errors import PlanError
from ppwork.stage import StageKind, load_stage

REFUSED = 2
"""Exit code if a stage breaks the contract; standard output says how."""


def main(stage0: str, stage1: str) -> int:
    """Print the problem with two stages, or else the names of their files, as JSON; return the exit code."""
    answer = os.dup(1)
    os.dup2(2, 1)  # output of the modules themselves is not part of the answer
    contracts = ((stage0, StageKind.STAGE0), (stage1, StageKind.GENERATOR))
    try:
        stages = [load_stage(path, kind, search=Path.cwd()) for path, kind in contracts]
    except PlanError as error:
        os.write(answer, msgspec.json.encode((error.what, error.check_first)))
        return REFUSED
    files = [getattr(sys.modules[stage.__module__], "__file__", None) for stage in stages]
    os.write(answer, msgspec.json.encode([file for file in files if file]))
    return 0
