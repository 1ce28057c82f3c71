"""The page on Slurm, executed on a Slurm of two nodes in miniature; `make slurm-page` writes it anew."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from checkout import ROOT
from slurm import slurm_of_two

if TYPE_CHECKING:
    from slurm import Slurm

PAGE = ROOT / "notebooks" / "appendix-a-run-on-slurm.ipynb"
LIMIT_S = 400.0


def executed(slurm: Slurm, folder: Path) -> Path:
    """Execute a copy of the page on the first host, as on a login node; return it, with its outputs.

    A run of the page pulls the second host's cable by a pipe that this process reads: a host cannot reach
    the switch.

    Args:
        slurm: The queue.
        folder: Gets the copy and its runs.
    """
    copy, cable = folder / PAGE.name, folder / "cable"
    shutil.copy(PAGE, copy)
    os.mkfifo(cable)
    pulls = os.open(cable, os.O_RDWR)
    command = slurm.command(sys.executable, "-m", "ppwork", "nb", "refresh", str(copy), folder=folder)
    environment = {**slurm.environment, "PPWORK_LAB_CABLE": str(cable)}
    refresh = subprocess.Popen(command, env=environment)
    until_s = time.monotonic() + LIMIT_S
    try:
        while refresh.poll() is None:
            if select.select([pulls], [], [], 0.05)[0]:
                os.read(pulls, 64)
                slurm.hosts[1].cut()
            assert time.monotonic() < until_s, f"the page was not through after {LIMIT_S:g} s"
    finally:
        refresh.kill()
        refresh.wait()
        slurm.hosts[1].mend()
        os.close(pulls)
    assert refresh.returncode == 0
    return copy


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, slurm_of_two(Path(made)) as queue:
        shutil.copy(executed(queue, Path(made)), PAGE)
