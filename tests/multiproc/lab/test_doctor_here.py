"""The doctor on this machine: what it says was tried, and a probe that misbehaves is a finding."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ppwork.lab.doctor import machine
from ppwork.lab.doctor.classroom import class_line
from ppwork.lab.doctor.doctor import DoctorReport, doctor
from ppwork.launcher import share

pytestmark = pytest.mark.multiproc


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_this_machine_runs_the_main_job_and_the_doctor_has_seen_it():
    """The whole suite stands on it; the process that asks imports no torch, as no kernel does."""
    script = (
        "import sys; from ppwork.__main__ import main; sys.argv = ['ppwork', 'doctor', '--json']; "
        "code = main(); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    answer = subprocess.run(python(script), capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(answer.stdout)
    assert found.pop("ready")
    facts = found["machine"]
    assert found["runs"][0]["verdict"] == "fine"
    assert facts["probed"]["gloo_ms"] > 0
    assert facts["probed"]["x264"]
    assert facts["probed"]["errors"] == {}
    assert facts["loopback"] == machine.PORTS_TRIED
    assert {package["name"] for package in facts["packages"]} >= {"torch", "msgspec", "papermill"}
    assert not any(package["extra"] in ("dev", "train") for package in facts["packages"])
    line = msgspec.json.encode(class_line(msgspec.convert(found, DoctorReport))).decode()
    assert '"ready":true' in line
    assert not [
        name
        for name in (platform.node(), str(Path.cwd()), str(Path.home()))
        if len(name) > 3 and name in line
    ]


def test_the_exit_code_says_that_the_main_job_cannot_run(tmp_path):
    """Without PyAV there is no clip to denoise. That it is 0 where it can, the test above needs."""
    command = [sys.executable, "-m", "ppwork", "doctor", "--json"]
    broken = tmp_path / "sitecustomize.py"
    broken.write_text("import sys; sys.modules['av'] = None\n")
    poor = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={"PYTHONPATH": str(tmp_path)}
    )
    assert (poor.returncode, json.loads(poor.stdout)["ready"]) == (1, False)
    said = {row["what"]: row["found"] for row in json.loads(poor.stdout)["here"]}
    assert said["video"].startswith("ModuleNotFoundError")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
        ("import sys; sys.exit('out of luck')", "the probe ended with 1: out of luck"),
        ("print('no json')", "the probe ended with 0"),
        ("import os; os.kill(os.getpid(), 9)", "the probe ended with -9"),
    ],
)
def test_a_probe_that_does_not_answer_is_a_finding(script, said):
    assert said in machine.probe(0.5 if "sleep" in script else 20.0, python(script)).errors["torch"]


def test_a_report_at_the_limit_is_still_a_report():
    found = doctor(limit_s=0.01)
    assert not found.ready
    assert "no answer within 0.01 s" in repr(found)


def test_a_container_s_limits_count(tmp_path, monkeypatch):
    for name, text in {
        "cpu.max": "150000 100000",
        "memory.max": "1000000000",
        "memory.current": "4e8",
    }.items():
        (tmp_path / name).write_text(text.replace("4e8", "400000000") + "\n")
    monkeypatch.setattr(share, "CONTAINER", tmp_path)
    assert share.cores() == 1
    assert share.memory() == (1e9, pytest.approx(6e8))
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert share.memory()[0] > 1e9
