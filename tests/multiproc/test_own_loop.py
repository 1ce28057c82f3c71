"""The library taken into somebody's own prototype, under plain torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import HERE

pytestmark = pytest.mark.multiproc


def test_the_example_prototype_runs_under_plain_torchrun():
    script = HERE.parent.parent / "docs" / "examples" / "own_loop.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
        str(script),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        f"Ids(call_id={k}, chunk_index={k}, cache_epoch={int(k >= 2)}) {[2.0 * k] * 3} good" for k in range(4)
    ]
