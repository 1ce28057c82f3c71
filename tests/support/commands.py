"""The command line as a user meets it: a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from checkout import SUPPORT

if TYPE_CHECKING:
    from pathlib import Path


def ppwork(*arguments: object, cwd: Path = SUPPORT) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, by default where the toy stages are."""
    command = [sys.executable, "-m", "ppwork", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110, check=False)
