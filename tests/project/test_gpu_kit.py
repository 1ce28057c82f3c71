"""The kit for a GPU machine: readers on made output, the loop on made steps, the whole without a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile

import msgspec
import psutil
import pytest
from checkout import ROOT, SCRIPTS, SUPPORT
from claim_reports import report as claim_report
from made_calls import MadeCalls
from made_runs import made
from waiting import wait_for

from ppwork.claims.claim import Verdict
from ppwork.cli.claims import _tell as tell_claim
from ppwork.faults.report import FaultReport, LeftoverProcess
from ppwork.launcher.processes import is_alive
from ppwork.plan import Plan
from ppwork.records.files import write_whole
from ppwork.records.run import SUMMARY_FILE
from ppwork.records.spans import Recorder, Span, span_file

GPU = SCRIPTS / "gpu"
NAMES = ("findings", "kit", "run", "stages")


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and is_alive(psutil.Process(pid))


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """The scripts by name, importable as they import each other."""
    monkeypatch.syspath_prepend(GPU)
    yield {name: __import__(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def read(modules):
    return modules["findings"]


def as_json(folder, data):
    (folder / "out.txt").write_bytes(msgspec.json.encode(data))
    return folder


def with_run(folder, entries, **summary):
    """A step's folder with a run of these entries by rank."""
    run_dir = folder / "run"
    run_dir.mkdir()
    write_whole(run_dir / Plan.FILE_NAME, Plan(mesh_size=len(entries) - 1).to_json())
    write_whole(run_dir / SUMMARY_FILE, msgspec.json.encode(summary))
    for rank, of_rank in entries.items():
        with Recorder(span_file(run_dir, rank)) as recorder:
            for entry in of_rank:
                recorder.write(entry)
    return folder


def on_device(entries, *, late_mesh_ms=0):
    """The same run on a card: what the leader generates and receives stands in lanes of the device."""
    lanes = {"generate": "cuda:compute", "receive": "cuda:down_pg", "broadcast": "cuda:mesh_pg"}
    for entry in list(entries[1]):
        if isinstance(entry, Span) and entry.name in lanes:
            late_ns = late_mesh_ms * 1_000_000 if entry.name == "broadcast" else 0
            moved = {"start_ns": entry.start_ns + late_ns, "end_ns": entry.end_ns + late_ns}
            entries[1].append(msgspec.structs.replace(entry, lane=lanes[entry.name], **moved))
    return entries


class TestReaders:
    def test_machine_with_a_card_and_with_something_missing(self, read, tmp_path):
        card = {"name": "NVIDIA H200", "gib": 139.8, "capability": "9.0"}
        probed = {"torch": "2.11.0+cu130", "cuda_built": "13.0", "nccl": "2.28.9", "gpus": [card]}
        rows = [{"what": "torch", "verdict": "fine"}, {"what": "video", "verdict": "missing"}]
        report = {"machine": {"driver": "580.159.04", "probed": probed}, "here": rows}
        text, figures = read.machine(as_json(tmp_path, report))
        card_text = "NVIDIA H200 (139.8 GiB), torch 2.11.0+cu130, CUDA 13.0, NCCL 2.28.9, driver 580.159.04"
        assert text == f"{card_text}, missing: video"
        assert figures["cards"] == [card]

    def test_run_that_was_compared(self, read, tmp_path):
        figures = {"device": "cuda", "backend": "nccl", "chunks": 4, "max_abs_diff": 3e-07}
        psnr = {"psnr_noisy_db": 20.0, "psnr_denoised_db": 26.5}
        found = read.verified(with_run(tmp_path, made(), **figures, figures=psnr, period_ms=1.0))
        assert found.text == "cuda over nccl, 4 chunks: max_abs_diff 3e-07 to one process, PSNR +6.50 dB"
        assert found.figures == figures | psnr  # and no time: ranks share a card

    def test_tests_of_the_streams(self, read, tmp_path):
        cases = '<testcase name="a"/><testcase name="b[TAKE]"><failure message="assert not True"/></testcase>'
        cases += '<testcase name="c"><skipped/></testcase><testcase name="d"><error message="no"/></testcase>'
        (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        assert read.tests(tmp_path).text == "1 of 4 passed, failed: b[TAKE], d"

    def test_transfers_that_end_before_the_generator_does(self, read, tmp_path):
        """Made runs are sequential: chunk k+1 leaves after chunk k was generated."""
        found = read.overlapped(with_run(tmp_path, made(), device="cpu"))
        assert found.figures == {"pairs": 7, "down_pg": 0, "mesh_pg": 0}

    @pytest.mark.parametrize(("mesh_ms", "in_time"), [(-50, 7), (-30, 0)])
    def test_transfers_on_a_card_count_by_their_end_there(self, read, tmp_path, mesh_ms, in_time):
        """Chunk k+1 is broadcast until 115 ms after k began, and k is generated until 80."""
        entries = on_device(made(), late_mesh_ms=mesh_ms)
        found = read.overlapped(with_run(tmp_path, entries, device="cuda"))
        assert found.figures == {"pairs": 7, "down_pg": 0, "mesh_pg": in_time}
        assert found.text.endswith(f"before the generator's end: down_pg 0, mesh_pg {in_time}")

    def test_lanes_that_no_device_recorded_are_not_taken_for_zero(self, read, tmp_path):
        found = read.overlapped(with_run(tmp_path, made(), device="cuda"))
        assert found.text.endswith("down_pg not recorded, mesh_pg not recorded")

    def test_steady_run_with_what_the_host_spent(self, read, tmp_path):
        figures = {"period_ms": 40.0, "stage0_ms": 26.0, "stage1_ms": 40.0, "efficiency": 0.98}
        found = read.steady(with_run(tmp_path, made(mesh_size=1), device="cuda", **figures))
        # encode 10, preflight 1, decode 16, generate 65
        assert found.text == "cuda: period 40.0 ms, efficiency 0.98, host 92.0 ms a chunk"
        assert found.figures == {**figures, "device": "cuda", "host_ms": 92.0}

    def test_timeline_with_its_lanes_and_its_trace(self, read, tmp_path):
        with_run(tmp_path, on_device(made()))
        (tmp_path / "run" / "trace.json").write_text('{"traceEvents": [{}, {}]}')
        assert read.drawn(tmp_path).figures == {
            "lanes": ["cuda:compute", "cuda:down_pg", "cuda:mesh_pg"],
            "events": 2,
            "trace_bytes": 25,
        }

    def test_recorded_program_with_a_host_that_is_ahead_of_its_device(self, read, tmp_path):
        calls = MadeCalls(tmp_path / "run", 2, backend="nccl")
        for rank in range(2):
            number = calls.call(rank, "all_reduce", 0, 1)
            calls.on_device(rank, number, 5, 30)
            handle = calls.call(rank, "all_reduce", 2, 3, lent=True)
            calls.wait(rank, handle, 40, 41)
            calls.on_device(rank, handle, 31, 40, "stream 1")
            calls.left(rank, 50)
        text, figures = read.recorded(tmp_path)
        assert figures == {"calls": 6, "on_device": 4, "host_ahead": 2, "streams": ["cuda", "stream 1"]}
        assert text == "4 of 6 calls have times of cuda, stream 1, in 2 the host was ahead"

    def test_claims_as_the_command_tells_them(self, read, tmp_path, capsys):
        for claim in (claim_report("C01"), claim_report("C02"), claim_report("C04", Verdict.ERROR)):
            tell_claim(claim)
        (tmp_path / "log.txt").write_text(capsys.readouterr().err)
        found = read.claimed(tmp_path)
        assert found.text == f"3 claims: 2 {Verdict.HOLDS}, 1 {Verdict.ERROR}"
        assert found.figures["C04"] == Verdict.ERROR

    def test_fault_that_was_caught_and_one_that_was_not(self, read, tmp_path):
        named = {"named": 2, "error_type": "RankDied", "gone_s": 0.5}
        one = FaultReport(fault="F13", case="idle", injected="killed", verdict="caught", **named)
        text = "caught: named rank 2 (RankDied), ranks gone after 0.50 s, 0 left"
        assert read.caught(as_json(tmp_path, [one])).text == text
        left = (LeftoverProcess(pid=7, started=0.0, command="rank"),)
        other = FaultReport(fault="F14", case="loop", injected="loops", verdict="not caught", left=left)
        other = msgspec.structs.replace(other, reasons=("nobody was named",))
        text = "not caught: named nobody, 1 left; nobody was named"
        assert read.caught(as_json(tmp_path, [other])).text == text

    def test_run_that_was_refused(self, read, tmp_path):
        (tmp_path / "log.txt").write_text("bad input: CUDA_LAUNCH_BLOCKING is 1\n  check first: unset it\n")
        assert read.refused(tmp_path).text == "bad input: CUDA_LAUNCH_BLOCKING is 1"

    def test_notebook_that_stopped(self, read, tmp_path):
        def code(count, *outputs):
            return {"cell_type": "code", "source": ["1"], "execution_count": count, "outputs": outputs}

        error = {"output_type": "error", "ename": "RunFailed"}
        cells = [code(1), {"cell_type": "markdown", "source": ["x"]}, code(2, error), code(None)]
        (tmp_path / "executed.ipynb").write_text(json.dumps({"cells": cells}))
        assert read.executed(tmp_path).text == "2 of 3 cells, stopped by RunFailed"

    @pytest.mark.parametrize(
        ("said", "number"),
        [
            ("========= ERROR SUMMARY: 0 errors", 0),
            ("========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)", 3),
        ],
    )
    def test_sanitizer(self, read, tmp_path, said, number):
        (tmp_path / "out.txt").write_text(f"========= COMPUTE-SANITIZER\n1 passed\n{said}\n")
        assert read.sanitized(tmp_path).figures == {"found": number}


class TestTable:
    def test_stages_are_those_of_the_page_in_their_order(self, modules):
        rows = (ROOT / "docs" / "gpu.md").read_text().splitlines()
        named = [line.split("|")[1].strip() for line in rows if line.startswith("|") and " s |" in line]
        assert named == list(modules["stages"].stages("gloo", 0))

    def test_without_a_card_its_steps_are_not_run_and_nothing_else_is_left_out(self, modules):
        table = modules["stages"].stages("gloo", 0)
        lacks = {(name, step.name): step.lacks for name, stage in table.items() for step in stage.steps}
        only = {key for key, reason in lacks.items() if reason == "only a GPU can show it"}
        on_a_card = {("faults", name) for name in modules["stages"].ON_A_CARD}
        faults = {*on_a_card, ("faults", "CUDA_LAUNCH_BLOCKING=1, depth 3")}
        tools = {("sanitizer", "memcheck"), ("sanitizer", "racecheck")}
        tests = {
            (name, step.name) for name in table for step in table[name].steps if step.name[:5] == "tests"
        }
        assert {name for name, _ in tests} == {"streams", "overlap"}
        assert only == {*tests, *faults, *tools, ("programs", "own streams")}
        assert all(
            name == "one-process" for (name, _), reason in lacks.items() if reason and (name, _) not in only
        )

    def test_on_nccl_all_ranks_share_the_card_and_its_order_of_launches_is_tried_both_ways(self, modules):
        table = modules["stages"].stages("nccl", 1)
        for step in table["first-light"].steps:
            assert {"nccl", "--share-gpu"} <= set(step.commands[0])
        orders = [step.variables["NCCL_LAUNCH_ORDER_IMPLICIT"] for step in table["overlap"].steps[:-1]]
        assert orders == ["1", "0"] * 4
        assert {step.lacks for step in table["streams"].steps} == {""}

    def test_nccl_without_a_card_runs_nothing_but_the_doctor(self, modules):
        table = modules["stages"].stages("nccl", 0)
        assert [name for name, stage in table.items() if any(not step.lacks for step in stage.steps)] == [
            "doctor"
        ]

    def test_lesson_without_the_parameter_is_not_run_in_its_default(self, modules, monkeypatch):
        monkeypatch.setattr(modules["stages"], "parameters_of", lambda path: {"backend": None})
        assert modules["stages"].lesson("05", nccl=True).lacks == "the lesson has no parameter share_gpu"
        assert modules["stages"].lesson("05", nccl=False).lacks == ""


def made_command(tmp_path, *options):
    program = [sys.executable, str(SUPPORT / "made_gpu_stages.py"), "--backend", "gloo"]
    return [*program, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), *options]


def run_made(tmp_path, *options):
    command = made_command(tmp_path, *options)
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_a_step_that_fails_or_hangs_stops_no_other_and_nothing_of_it_is_left(tmp_path):
    ended = run_made(tmp_path, "--stages", "first,second,third")
    assert ended.returncode == 1, ended.stderr
    whole = json.loads((tmp_path / "out" / "gpu.json").read_bytes())
    first, second, third = whole["stages"].values()
    assert [(result["step"], result["outcome"], result["text"]) for result in first[:6]] == [
        ("ends well", "ok", "one\ngloo"),
        ("lacks", "not run", "no such thing here"),
        ("fails", "failed", "exit code 3: first"),
        ("raises", "failed", "exit code 1: ValueError: broken here"),
        ("may fail", "ok", ""),
        ("does not read", "failed", "its result does not read: ZeroDivisionError: division by zero"),
    ]
    # Written before the next began.
    assert [result["step"] for result in json.loads(first[6]["text"])] == [r["step"] for r in first[:6]]
    assert first[7]["text"] == "so"
    behind, hung, after = second
    assert (behind["outcome"], len(behind["left"])) == ("ok", 1)
    assert (hung["outcome"], hung["left"], hung["text"]) == ("past its limit", [], "begun")
    assert (after["outcome"], after["text"]) == ("ok", "three")
    assert third[0]["text"] == "the stage's limit had passed"
    hidden = [int(path.read_text()) for path in (tmp_path / "work" / "second").glob("*/hidden.pid")]
    assert [lives(pid) for pid in hidden] == [False, False]
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "| first | fails | failed | " in page
    assert "left behind: " in page
    assert whole["about"]["backend"] == "gloo"
    assert {result["commit"] for result in first} == {whole["about"]["commit"]}
    with tarfile.open(tmp_path / "out" / "gpu.tar.gz") as archive:
        assert {"gpu.json", "gpu.md", "first/ends-well/out.txt", "second/results.json"} <= set(
            archive.getnames()
        )


def test_a_step_dies_with_the_runner(tmp_path):
    runner = subprocess.Popen(made_command(tmp_path, "--stages", "waits"), stdout=subprocess.DEVNULL)
    told = tmp_path / "work" / "waits" / "waits" / "out.txt"
    try:
        pid = int(wait_for(lambda: told.exists() and told.read_text().strip()))
    finally:
        runner.kill()
        runner.wait()
    wait_for(lambda: not lives(pid))


def test_stages_can_be_chosen_and_what_another_call_showed_stays(tmp_path):
    assert run_made(tmp_path, "--stages", "third").returncode == 0
    assert run_made(tmp_path, "--stages", "first").returncode == 1
    assert list(json.loads((tmp_path / "out" / "gpu.json").read_bytes())["stages"]) == ["first", "third"]
    unknown = run_made(tmp_path, "--stages", "first,streans")
    assert unknown.returncode == 2
    assert "there is no stage 'streans'; check first: first, second, waits, third" in unknown.stderr


def test_an_archive_takes_the_small_files_first_and_names_what_does_not_fit(modules, tmp_path):
    files = {name: tmp_path / name for name in ("large", "small", "middle")}
    for name, size in {"large": 9000, "small": 100, "middle": 3000}.items():
        files[name].write_bytes(os.urandom(size))
    chosen, left_out = modules["run"].fitting(list(files.values()), 5000)
    assert (chosen, left_out) == ([files["small"], files["middle"]], [files["large"]])


class TestKit:
    def test_pins_are_those_of_the_tests(self):
        def pins(path):
            lines = (line.strip() for line in path.read_text().splitlines())
            named = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
            return {name.lower().replace("_", "-"): version for name, version in named}

        ours, constraints = pins(GPU / "wheels.txt"), pins(ROOT / "constraints.txt")
        assert {"msgspec", "av", "papermill", "ipykernel"} <= set(ours)
        assert {name: constraints.get(name) for name in ours} == ours

    def test_more_than_may_be_brought_along_is_refused(self, modules, tmp_path):
        subprocess.run(["git", "init", "--quiet", str(tmp_path / "tree")], check=True)
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        for path, size in ((tmp_path / "tree" / "code", 30 << 20), (wheels / "one.whl", 33 << 20)):
            with path.open("wb") as file:
                file.truncate(size)
        weight = modules["kit"].weight
        text = "1 wheels of 33.0 MiB and the working tree of 30.0 are 63.0 MiB"
        assert weight(wheels, tmp_path / "tree") == text
        with (tmp_path / "tree" / "forgotten").open("wb") as file:
            file.truncate(2 << 20)
        with pytest.raises(SystemExit, match=r"are 65.0 MiB; no more than 64 may be brought along"):
            weight(wheels, tmp_path / "tree")

    @pytest.mark.timeout(300)
    def test_without_an_index_and_without_a_card_the_kit_is_installed_and_its_stages_run(self, tmp_path):
        """As ``make gpu BACKEND=gloo STAGES=doctor,streams,sanitizer``, all of it in a folder of its own."""
        venv, out = tmp_path / "venv", tmp_path / "out"
        subprocess.run([sys.executable, str(GPU / "kit.py"), "install", str(venv)], check=True, timeout=140)
        stages = ["--backend", "gloo", "--stages", "doctor,streams,sanitizer"]
        where = ["--out", str(out), "--work", str(tmp_path / "work")]
        command = [str(venv / "bin" / "python"), str(GPU / "run.py"), *where, *stages]
        subprocess.run(command, check=True, timeout=140)
        found = json.loads((out / "gpu.json").read_bytes())["stages"]
        outcomes = {name: {result["outcome"] for result in results} for name, results in found.items()}
        assert outcomes == {"doctor": {"ok"}, "streams": {"not run"}, "sanitizer": {"not run"}}
        assert "torch" in found["doctor"][0]["text"]
