"""A step of the GPU run as it will be started there, on gloo: two sums a chunk, and what they hide."""

from __future__ import annotations

import subprocess
import sys

import pytest
from checkout import ROOT, SCRIPTS

pytestmark = pytest.mark.multiproc


def test_transfers_of_the_next_chunk_end_before_the_generator_at_depth_3(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPTS / "gpu")
    try:
        from stages import RUN, stages

        step = stages("gloo", 0)["overlap"].steps[0]
        (command,) = step.commands
        words = [word.replace(RUN, str(tmp_path / "run")) for word in command]
        subprocess.run(words, cwd=ROOT, env=step.environment, check=True, timeout=100)
        found = step.read(tmp_path)
    finally:
        for name in ("stages", "findings"):
            sys.modules.pop(name, None)
    assert step.name == "depth 3"
    assert found.figures["pairs"] == 15
    assert found.figures["down_pg"] > 0
    assert found.figures["mesh_pg"] > 0
