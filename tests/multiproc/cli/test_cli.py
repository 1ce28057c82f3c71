"""The command line as a user meets it: exit codes, messages, and nothing overwritten."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from checkout import EXAMPLES, SUPPORT
from commands import ppwork

from ppwork.diagnosis.run_ends import UNCHECKED
from ppwork.diagnosis.runs import diagnose
from ppwork.records.run import FAILED_AT_END, log_file

TOY = [
    "--stage0",
    "toy_stages:Counter",
    "--stage1",
    "toy_stages:Scaler",
    "--chunks",
    "3",
    "--backend",
    "gloo",
]


@pytest.fixture
def files(tmp_path):
    """Files that are no clips, by name."""
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("not a video\n" * 100)
    from ppwork.workloads.spec import default_clip

    whole = default_clip().read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    (tmp_path / "file").write_text("in the way")
    return tmp_path


BAD = {
    "missing clip": (["--input", "{}/nowhere.mp4"], "nowhere.mp4"),
    "empty clip": (["--input", "{}/empty.mp4"], "empty"),
    "no video": (["--input", "{}/text.mp4"], "text.mp4"),
    "truncated clip": (["--input", "{}/cut.mp4"], "cut.mp4"),
    "zero chunks": (["--chunks", "0"], "chunks"),
    "negative frames": (["--frames-per-chunk", "-1"], "frames_per_chunk"),
    "zero mesh": (["--mesh-size", "0"], "mesh_size"),
    "size not for the codec": (["--size", "161x96"], "161x96"),
    "size not a size": (["--size", "big"], "WxH"),
    "negative size": (["--size", "-160x96"], "WxH"),
    "heads not divisible": (["--mesh-size", "5"], "heads"),
    "not a number": (["--noise", "nan"], "noise"),
    "unknown backend": (["--backend", "mpi"], "backend"),
    "more NCCL ranks than GPUs": (["--backend", "nccl", "--mesh-size", "6"], "one GPU per rank"),
    "depth beyond bounds": (["--depth", "65"], "in_flight_depth"),
    "cut beyond the end": (["--chunks", "3", "--hard-cut-at", "3"], "hard_cuts"),
    "occupied folder": (["--chunks", "1", "--out", "{}/full"], "not empty"),
    "file as folder": (["--chunks", "1", "--out", "{}/file"], "cannot be used"),
    "folder below a file": (["--chunks", "1", "--out", "{}/file/run"], "cannot be used"),
    "one stage of two": (["--stage0", "toy_stages:Counter"], "give both, --stage0 and --stage1"),
    "stage path without class": ([*TOY, "--stage1", "toy_stages"], "module:Class"),
    "stage that does not import": ([*TOY, "--stage1", "nowhere:Stage"], "does not import"),
    "class that is not there": ([*TOY, "--stage1", "toy_stages:Nothing"], "no class"),
    "stage without the contract": ([*TOY, "--stage0", "toy_stages:NotAStage"], "decode"),
    "unknown workload": (["--workload", "audio"], "workload"),
    "synthetic times that are none": (["--workload", "synthetic", "--stage0-ms", "a,b"], "times in ms"),
    "synthetic times below zero": (["--workload", "synthetic", "--stage1-ms", "-1"], "negative"),
    "size beyond a message": (["--size", "16000x16000"], "MiB of latents"),
    "size beyond any memory": (["--size", "1000000000x1000000000"], "MiB of latents"),
    "size beyond the encoder": (["--size", "99999968x16"], "a side is at most 16384"),
    "too many steps": (["--steps", "10001"], "at most 10000"),
    "too much noise": (["--noise", "1e308"], "noise"),
    "bound beyond a day": (["--timeout-s", "1e18"], "timeout_s"),
    "payload beyond a message": (["--workload", "synthetic", "--payload-mb", "2000"], "payload_mb"),
    "time beyond a day": (["--workload", "synthetic", "--stage1-ms", "1e300"], "stage1_ms"),
    "half beyond a day": (["--workload", "synthetic", "--stage0-ms", "1e300"], "encode_ms"),
    "jitter beyond the time": (["--workload", "synthetic", "--jitter", "1e9"], "jitter"),
    "clip with a name that is no text": (["--input", "bad\udcff.mp4"], "UTF-8"),
    "folder with a name that is no text": (["--chunks", "1", "--out", "bad\udcff"], "UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_exits_2_with_one_message_before_any_rank_starts(files, command, case):
    arguments, text = BAD[case]
    before = sorted(files.rglob("*"))
    code, message = command("run", *(argument.format(files) for argument in arguments))
    assert code == 2, message
    assert message.startswith("bad input: ")
    assert text in message
    assert "check first: " in message
    assert "Traceback" not in message
    assert sorted(files.rglob("*")) == before
    assert (files / "full" / "mine.txt").read_text() == "keep me"


CUT = (
    f"{FAILED_AT_END}.\nAt the cut of chunk 1 nothing was reset: the generator has no `reset_cache`\n"
    "No rank failed: the run"
)
STRICT = "as its plan is strict.\nNothing failed: the run emitted 3 chunks"
WROTE = f"{STRICT}{UNCHECKED}.\nMesh ranks wrote into different"
MISSPELT = "o stage asked for 'offse'; did you mean 'offset'?"
UNASKED = f"{STRICT}.\nN{MISSPELT}"


@pytest.mark.parametrize(
    ("stage1", "more", "code", "asked"),
    [
        ("Doubled", ["--hard-cut-at", "1", "--mesh-size", "1"], 1, CUT),
        ("Normalises", [], 0, WROTE),
        ("Normalises", ["--strict"], 1, WROTE),
        ("Doubled", ["--strict", "-o", "offse=2", "--mesh-size", "1"], 1, UNASKED),
    ],
)
def test_a_run_that_ended_well_and_was_odd_fails_always_or_where_one_asks(
    command, tmp_path, monkeypatch, stage1, more, code, asked
):
    """A job in CI passed, whatever stood in the table."""
    monkeypatch.chdir(SUPPORT)
    stages = ["--stage0", "daily_stages:Words", "--stage1", f"daily_stages:{stage1}"]
    options = ["-o", 'source={"ends": 3}', "-o", "scales=[1.0, 2.0]"]
    options += ["--backend", "gloo", "--out", str(tmp_path / "run"), *more]
    given, console = None, ""
    with contextlib.suppress(SystemExit):  # of a run that was told as done
        given, console = command("run", *stages, *options)
    assert given == (code or None)
    assert (f"before the first chunk: n{MISSPELT}" in console) == (asked == UNASKED)
    said = diagnose(tmp_path / "run")
    assert (said.cause is not None, asked in said.text) == (bool(code), bool(code))
    assert not (tmp_path / "run" / "failure-rank0.json").exists()


def test_bad_input_of_a_process_is_its_message_and_nothing_else(tmp_path):
    done = ppwork("run", "--input", str(tmp_path / "nowhere.mp4"))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("bad input: ")
    assert "nowhere.mp4" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_json_prints_the_summary_alone(tmp_path):
    done = ppwork("run", *TOY, "--json", "--verify", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["max_abs_diff"] == 0.0
    assert summary["chunks"] == 3


def test_a_run_ends_with_a_table_and_code_0(tmp_path):
    done = ppwork("run", *TOY, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    for word in ("ranks", "chunks", "period", "versions", "folder"):
        assert word in done.stdout


def test_synthetic_stages_take_the_times_that_were_asked_for(tmp_path):
    times = ["--stage0-ms", "12,8", "--stage1-ms", "30", "--payload-mb", "0.5", "--chunks", "8"]
    done = ppwork(
        "run", "--workload", "synthetic", *times, "--depth", "2", "--json", "--out", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["chunks"] == 8
    assert summary["stage0_ms"] >= 20.0
    assert summary["stage1_ms"] >= 30.0


def test_a_source_whose_thread_dies_is_told_while_the_run_goes_on_and_at_its_end(tmp_path):
    """Nothing raises: the run sent heartbeats for ever, and the traceback was in a log of a rank."""
    stages = ["--stage0", "silent_stages:Sensor", "--stage1", "silent_stages:Same", "-o", "patience_s=3"]
    bounds = ["--timeout-s", "4", "--stall-s", "1", "--backend", "gloo", "--mesh-size", "1"]
    done = ppwork("run", *stages, *bounds, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    source = SUPPORT / "silent_stages.py"
    line = 1 + source.read_text()[: source.read_text().index("  # DIES")].count("\n")
    died = f"thread 'reader' died at {source}:{line} of OSError: the sensor is gone"
    said = done.stdout + done.stderr
    assert said.count(f"rank 0: {died}; the run goes on without it\n") == 1
    assert len(re.findall(r"^rank 0: nothing to encode for [12] s", said, re.MULTILINE)) == 1
    assert "lost" in done.stdout
    assert f"On rank 0 {died}, and the rank went on without it" in diagnose(tmp_path / "run").text
    log = log_file(tmp_path / "run", 0).read_text()
    assert log.count("Traceback (most recent call last)") == 1
    assert "OSError: the sensor is gone" in log
    assert len(re.findall(r"WARNING .* rank 0: nothing to encode for", log)) == 1


def test_with_json_a_run_still_draws_its_start_and_says_what_it_goes_on_with(tmp_path):
    """Both were ignored in silence; standard output stays JSON alone."""
    stages = ["--stage0", "silent_stages:Sensor", "--stage1", "silent_stages:Same", "-o", "patience_s=3"]
    bounds = ["--timeout-s", "4", "--stall-s", "1", "--backend", "gloo", "--mesh-size", "1"]
    done = ppwork("run", *stages, *bounds, "--json", "--profile-start", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    picture = tmp_path / "run" / "startup.png"
    assert json.loads(done.stdout)["startup"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert done.stderr.count("OSError: the sensor is gone; the run goes on without it\n") == 1
    assert "starting ranks" not in done.stderr


def test_a_failed_run_exits_1_with_the_first_rank_its_error_and_its_log(tmp_path):
    out = tmp_path / "run"
    done = ppwork("run", *TOY, "--stage0", "toy_stages:DecodeRaises", "--out", str(out))
    assert done.returncode == 1
    assert "Rank 0 (stage0) failed first: StageError" in done.stderr
    assert str(out / "rank0.log") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("stage", "how"),
    [
        ("DependsOnRank", "by 1.0, first in chunk 0 (4 of 7 values)"),
        (
            "NaNsInAMesh",
            "by NaN or infinities, first in chunk 0 (4 of 7 values; NaN: 4 in the run, 0 in one process)",
        ),
        ("DriftsInAMesh", "first in chunk 0 (4 of 7 values) and most in chunk 2"),
        ("KeepsAtACut", "; chunk 1 came with a cut, and those before it agree"),
    ],
)
def test_a_result_that_differs_from_one_process_fails_verification(tmp_path, stage, how):
    """A check that cannot fail is a defect: a stage that depends on its process is caught."""
    stages = ["--stage1", f"toy_stages:{stage}", "--hard-cut-at", "1"]
    done = ppwork("run", *TOY, *stages, "--verify", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    told = " ".join(done.stderr.split())
    check = (
        "does `reset_cache` reset all of the cache" if stage == "KeepsAtACut" else "own share of the weights?"
    )
    assert check in told
    assert "differed from the single-process reference " in told
    assert f"{how}; 0.0001 is allowed" in told
    assert (tmp_path / "run" / "outputs.safetensors").exists()


def test_a_tensor_that_stage_0_keeps_to_itself_is_compared_with_one_process(tmp_path):
    """It emits another one: `--verify` was green, and a report made of this one wrong."""
    out = tmp_path / "run"
    done = ppwork("run", *TOY, "--stage1", "toy_stages:OddBeside", "--verify", "--out", str(out))
    told = " ".join(done.stderr.split())
    how = "what the mesh returned is not: `beside` (float32) differed by 6.90039 of at most 10007"
    assert (done.returncode, how in told) == (1, True), told
    assert json.loads((out / "summary.json").read_text())["max_abs_diff"] == 0.0
    assert "`beside` (float32) differed" in ppwork("diagnose", str(out)).stdout
    assert (out / "returned.safetensors").exists()


def test_the_example_of_the_docs_runs(tmp_path):
    """docs/stages.md shows this file and this command."""
    stages = ["--stage0", "my_stages:Counter", "--stage1", "my_stages:Scaler"]
    size = ["--chunks", "6", "--mesh-size", "2", "--backend", "gloo"]
    done = ppwork("run", *stages, *size, "--json", "--out", tmp_path / "run", cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    # chunk k: 4 elements of 10 k plus the k + 1 chunks seen
    assert json.loads(done.stdout)["figures"]["total"] == sum(4 * (10 * k + k + 1) for k in range(6))
