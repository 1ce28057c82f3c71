"""The entry of a rank: what happens before torch is there."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.processes
def test_a_rank_is_on_its_lifeline_and_watched_before_torch_is_imported():
    """F14, F18: importing torch takes seconds, in which a rank can hang or lose its launcher."""
    code = "import sys, ppwork.worker.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
