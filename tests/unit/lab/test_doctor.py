"""What the doctor makes of findings: each thing that can be wrong has its row, its verdict and its advice."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError

import msgspec
import pytest
import torch
from made_machines import H200, LAB, LAPTOP, TORCH, WANTS
from rich.console import Console

from ppwork.cli.doctor import report_table
from ppwork.lab.doctor import machine, probe
from ppwork.lab.doctor.doctor import FINE, LIMITED, MISSING, NEEDED, DoctorReport, machine_rows, will_run
from ppwork.lab.doctor.machine import Probed
from ppwork.version import WHEEL


def test_the_command_shows_both_parts_in_one_table():
    report = DoctorReport(here=machine_rows(LAPTOP), runs=will_run(LAPTOP, WANTS), machine=LAPTOP)
    console = Console(width=300)
    with console.capture() as captured:
        console.print(report_table(report))
    assert re.search(r"what will run here *\n", captured.get())
    assert "packages" in captured.get()


def gpus(number: int) -> dict:
    on_them = {"torch": "2.13.0", "cuda_built": "13.0", "nccl_built": True, "nccl": "2.29.3"}
    probed = msgspec.structs.replace(LAPTOP.probed, gpus=[H200] * number, **on_them)
    return {"driver": "580.95.05", "shm_free_mb": 60_000.0, "probed": probed}


def probed(**changes) -> dict:
    return {"probed": msgspec.structs.replace(LAPTOP.probed, **changes)}


def rows(**changes) -> dict:
    machine = msgspec.structs.replace(LAPTOP, **changes)
    return {"here": {row.what: row for row in machine_rows(machine)}, **runs(machine)}


def runs(machine) -> dict:
    return {"runs": {row.what: row for row in will_run(machine, WANTS)}}


def report(**changes) -> DoctorReport:
    machine = msgspec.structs.replace(LAPTOP, **changes)
    return DoctorReport(here=machine_rows(machine), runs=will_run(machine, WANTS), machine=machine)


def test_a_laptop_without_gpu_runs_the_main_job_and_says_what_it_cannot():
    found = rows()
    limited = {name for part in found.values() for name, row in part.items() if row.verdict is not FINE}
    assert limited == {"GPUs", "NCCL", "browser", "claims", "fault catalogue", "browser tests"}
    assert report().ready
    assert found["runs"]["main job on gloo"].found == "3 ranks: `ppwork run --verify`"
    assert found["runs"]["more ranks on gloo"].found.startswith("32 fit")
    assert found["runs"]["claims"].found == "2 of 3 claims"
    assert found["runs"]["fault catalogue"].found == "5 of 8 cases"
    assert found["runs"]["fault catalogue"].todo.startswith("the rest: 1 for a GPU, 2 for two hosts")
    assert found["runs"]["lessons"].found.startswith("00, 04")


def test_gpus_decide_on_nccl():
    one, three = rows(**gpus(1)), rows(**gpus(3), two_hosts=True)
    assert "NVIDIA H200 (139.8 GiB, 9.0); driver 580.95.05" in one["here"]["GPUs"].found
    assert one["here"]["NCCL"].found == "2.29.3"
    assert one["runs"]["NCCL"].verdict is LIMITED
    assert "--share-gpu" in one["runs"]["NCCL"].todo
    assert three["runs"]["NCCL"].verdict is FINE
    assert three["runs"]["NCCL"].found == "up to 3 ranks: rank 0 and a mesh of 2"
    assert three["runs"]["fault catalogue"].verdict is three["runs"]["claims"].verdict is FINE
    assert rows(**gpus(2))["runs"]["NCCL"].verdict is LIMITED  # the main job wants three
    assert rows(**{**gpus(2), "shm_free_mb": 64.0})["here"]["/dev/shm"].verdict is LIMITED
    assert rows(shm_free_mb=None)["here"]["/dev/shm"].verdict is FINE


def test_what_keeps_chunks_from_overlapping_on_nccl_is_said_before_a_run_is_refused():
    machine = gpus(3)
    machine["probed"] = msgspec.structs.replace(machine["probed"], sequential="this driver is for CUDA 12.2")
    row = rows(**machine)["here"]["NCCL"]
    assert (row.found, row.verdict) == ("2.29.3; this driver is for CUDA 12.2", LIMITED)
    assert "--depth 1" in row.todo


def test_the_probe_asks_the_environment_and_the_driver_about_nccl(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    facts = probe._gpus()
    assert facts["nccl"] == "2.29.7"
    assert facts["sequential"].startswith("CUDA_LAUNCH_BLOCKING=1")


@pytest.mark.parametrize(
    ("changes", "what", "verdict", "said"),
    [
        ({"system": "Darwin 24 arm64"}, "system", LIMITED, "Linux only"),
        ({"packages": []}, "packages", MISSING, "pip install"),
        (
            {"packages": [msgspec.structs.replace(TORCH, found="2.9.1"), *LAB]},
            "packages",
            MISSING,
            "torch 2.9.1, 2.11 is needed",
        ),
        (
            {"packages": [TORCH, msgspec.structs.replace(LAB[0], found="")]},
            "packages",
            LIMITED,
            "no jupyterlab",
        ),
        (
            {"packages": [msgspec.structs.replace(TORCH, found="2.14.0"), *LAB]},
            "packages",
            FINE,
            "CI has 2.13.0",
        ),
        ({"probed": Probed(errors={"torch": "no answer within 30 s"})}, "torch", MISSING, "no answer within"),
        (
            probed(gloo_ms=None, errors={"gloo": "RuntimeError: no lo"}),
            "gloo",
            MISSING,
            "RuntimeError: no lo",
        ),
        (probed(gloo_ms=None, gloo_built=False), "gloo", MISSING, "built without it"),
        ({"driver": "580.1"}, "GPUs", LIMITED, "torch is built for CPUs"),
        ({"driver": "580.1", **probed(cuda_built="13.0")}, "GPUs", LIMITED, "CUDA_VISIBLE_DEVICES"),
        (probed(cuda_built="13.0", errors={"gpu": "RuntimeError: too old"}), "GPUs", LIMITED, "too old"),
        (probed(cuda_built="13.0", nccl_built=True), "NCCL", LIMITED, "no GPU to use it on"),
        ({"cores": 1}, "cores", LIMITED, "cannot be timed"),
        ({"memory_free_mb": 600.0}, "memory", MISSING, "3 ranks of 250 MB"),
        ({"disk_free_mb": 3.0}, "disk", MISSING, "a run needs 64 MB"),
        ({"scratch_error": "Permission denied"}, "temporary files", MISSING, "TMPDIR"),
        ({"files_soft": 256}, "open files", LIMITED, "ulimit -n 1024"),
        ({"files_soft": 20}, "open files", MISSING, "ulimit -n 1024"),
        ({"loopback": 0, "loopback_error": "Operation not permitted"}, "loopback", MISSING, "not permitted"),
        (probed(x264=False), "video", MISSING, "without libx264"),
        ({"packages": [TORCH]}, "JupyterLab", LIMITED, 'pip install -c constraints.txt -e ".[lab]"'),
        # From a wheel there is neither that file nor a checkout.
        ({"packages": [TORCH], "in_checkout": False}, "JupyterLab", LIMITED, f'; pip install "{WHEEL}[lab]"'),
        ({"browser": "/usr/bin/chromium"}, "browser", LIMITED, ".[dev]"),
        ({"browser": "/usr/bin/chromium", "playwright": True}, "browser", FINE, "chromium"),
    ],
)
def test_each_thing_that_is_wrong_is_said_with_what_to_do(changes, what, verdict, said):
    row = rows(**changes)["here"][what]
    assert row.verdict is verdict
    assert said in f"{row.found}; {row.todo}"
    found = report(**changes)
    assert found.ready == (not (verdict is MISSING and what in NEEDED))
    if not found.ready:
        assert what in found.runs[0].found
        assert {row.verdict for row in found.runs[1:2] + found.runs[3:6]} == {MISSING}


def test_a_ppwork_that_nobody_installed_is_said_in_its_row(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "requires", requires)
    row = rows(packages=machine.packages())["here"]["packages"]
    assert (row.verdict, row.found) == (MISSING, "ppwork is not installed")


def test_a_machine_that_cannot_run_notebooks_still_runs_the_main_job():
    found = report(packages=[TORCH])
    assert found.ready
    assert {row.what: row.verdict for row in found.runs}["lessons"] is LIMITED
    assert {row.what: row.found for row in report(lessons=[]).runs}["lessons"].startswith("none beside")


def test_a_report_shows_every_row_as_text_and_as_a_table():
    found = report(probed=Probed(errors={"torch": "ImportError: <undefined symbol>"}))
    text, page = repr(found), found._repr_html_()
    for row in [*found.here, *found.runs]:
        assert re.search(rf"^{re.escape(row.what)} +.*{row.verdict.value}", text, re.MULTILINE)
    assert "ImportError: &lt;undefined symbol&gt;" in page
    assert page.count("<tr>") == len(found.here) + len(found.runs) + 2
    assert msgspec.convert(msgspec.to_builtins(found), DoctorReport) == found
