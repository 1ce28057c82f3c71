"""Ranks that a test starts by itself, warm where the test is not marked cold."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from waiting import END_S

from ppwork.launcher.warm import NotWarm, Started, StartProcess, inherited, start_warm
from ppwork.process import WARM_VARIABLE

WARNINGS = {"PYTHONWARNINGS": "error::FutureWarning,error::DeprecationWarning"}
"""What a newer torch will take away must fail here first, in torchrun and the ranks as well."""


@dataclass
class Ranks:
    """Plain processes with torchrun's variables: the quick way to a world whose ranks differ."""

    processes: list[Started]

    def wait(self, deadline_s: float = END_S) -> list[int]:
        end = time.monotonic() + deadline_s
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]


def start_rank(command: list[str], environment: dict[str, str]) -> Started:
    """Start a process warm; cold in a cold test, or with a word where it asks for what a fork cannot have."""
    # Unbuffered, as our launcher's ranks are, and the warm launcher.
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    if os.environ[WARM_VARIABLE] != "0":
        try:
            return start_warm(StartProcess(command, environment, str(Path.cwd()), inherited()), (0, 1, 2))
        except NotWarm as reason:
            sys.stderr.write(f"started cold: {reason}\n")
    return subprocess.Popen(command, env=environment)
