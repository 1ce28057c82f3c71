"""A script under a torchrun of one's own, as its users start it; forked where the test is not marked cold."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from ppwork.launcher.torchrun import running

LIMIT_S = 110.0


class Ended(NamedTuple):
    """torchrun's exit code, and what it and the ranks printed."""

    code: int
    lines: list[str]
    errors: str


def torchrun(
    ranks: int, script: Path, *arguments: object, folder: Path | None = None, **more: str
) -> list[str]:
    """Run a script to its good end, in its own folder or another one; return the lines that it printed."""
    ended = torchrun_to_its_end(ranks, script, *arguments, folder=folder, **more)
    assert ended.code == 0, ended.errors[-3000:]
    return ended.lines


def torchrun_to_its_end(
    ranks: int,
    script: Path,
    *arguments: object,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
    **more: str,
) -> Ended:
    """Run a script in its own folder or another one, with more options of torchrun and variables."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    # What our launcher adds for programs of ours is not there, but what a warm launcher asks for is.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, chdir(folder or script.parent):
        started = running(
            [*command, *options, str(script), *map(str, arguments)],
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
        assert "started cold" not in said, said
        return Ended(code, out.read().decode().splitlines(), said)
