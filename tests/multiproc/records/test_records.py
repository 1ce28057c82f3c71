"""F20: the disk of the run folder fills up while a run is going."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from waiting import END_S

pytestmark = [pytest.mark.multiproc, pytest.mark.cold]

SCRIPT = """
import json, subprocess, sys, time
from pathlib import Path
import ppwork as pp

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=72m", "tmpfs", str(folder)], check=True)
filled = []

def fill(entry):
    if entry.name == "emit" and not filled:
        with (folder / "filler").open("wb", buffering=0) as filler:
            block = bytes(1 << 20)
            try:
                while filler.write(block) == len(block):
                    pass
                while filler.write(b"0"):
                    pass
            except OSError:
                filled.append(time.monotonic())

plan = pp.Plan(mesh_size=2, chunks=2000, backend="gloo", stage0="toy_stages:Counter",
               stage1="toy_stages:Slow", options={"step_s": 0.02})
run = pp.launch(plan, out=folder / "run", check=False, progress=fill)
print(json.dumps({
    "failure": str(run.failure),
    "ended_s": time.monotonic() - filled[0],
    "emitted": len([entry for entry in run.entries(0) if entry.name == "emit"]),
    "read": [len(found) for found in pp.Run.load(run.run_dir).entries_by_rank.values()],
    "summary": run.summary,
    "logs": {path.name: path.read_text()[-1500:] for path in run.run_dir.glob("*.log")},
    "hidden": [path.name for path in run.run_dir.glob(".*")],
}))
"""
ALONE = ["unshare", "--map-root-user", "--mount"]
"""A mount of its own, seen by nobody else and gone with its last process."""


def may_mount() -> bool:
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not may_mount(), reason="mount namespaces are not permitted here")
def test_a_disk_that_fills_up_ends_the_run_with_one_clear_error_and_nothing_half_taken_for_whole(tmp_path):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "disk").mkdir()
    command = [*ALONE, sys.executable, "-c", SCRIPT, str(tmp_path / "disk")]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3 * END_S, check=False
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["failure"].startswith(f"The disk of {tmp_path / 'disk' / 'run'} is full")
    assert "df -h" in found["failure"]
    assert found["ended_s"] < 15.0  # a wait for a peer takes 60 s
    assert found["emitted"] >= 1
    assert all(found["read"])
    assert found["summary"] == {}
    assert found["hidden"] == []
