"""The library taken into somebody's own prototype, under plain torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from checkout import EXAMPLES

pytestmark = pytest.mark.multiproc


def test_the_example_prototype_runs_under_plain_torchrun():
    script = EXAMPLES / "own_loop.py"
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
        "Ids(call_id=0, chunk_index=0, cache_epoch=0) [0.0, 0.0, 0.0] chunk 0, doubled, good",
        "Ids(call_id=1, chunk_index=1, cache_epoch=0) [2.0, 2.0, 2.0] chunk 1, doubled, good",
        "Ids(call_id=2, chunk_index=2, cache_epoch=1) [4.0, 4.0, 4.0] chunk 2, doubled, good",
        "Ids(call_id=4, chunk_index=3, cache_epoch=1) [6.0, 6.0, 6.0] chunk 3, doubled, good",
    ]
