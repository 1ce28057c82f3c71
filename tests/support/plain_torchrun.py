"""A script under a torchrun of one's own, as its users start it; forked where the test is not marked cold."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from ppwork.launcher.torchrun import running

LIMIT_S = 110.0


def torchrun(
    ranks: int, script: Path, *arguments: object, folder: Path | None = None, **more: str
) -> list[str]:
    """Run a script to its good end, in its own folder or another one; return the lines that it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    # What our launcher adds for programs of ours is not there, but what a warm launcher asks for is.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, chdir(folder or script.parent):
        started = running(
            [*command, str(script), *map(str, arguments)],
            {**environment, **more},
            out,
            errors=errors,
            warm=True,
            seats=ranks,
        )
        with started as agent:
            code = agent.wait(LIMIT_S)
        out.seek(0)
        errors.seek(0)
        said = errors.read().decode()
        assert code == 0, said[-3000:]
        assert "started cold" not in said, said
        return out.read().decode().splitlines()
