"""What is refused before any rank starts: by the machine, the clip, the stages."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppwork.errors import PlanError, UnavailableError
from ppwork.launcher import checks
from ppwork.launcher.checks import check_stages, choose_backend, count_gpus, resolve
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, Plan
from ppwork.workloads.spec import default_clip
from ppwork.workloads.times import synthetic

OWN = Plan(stage0="my_stages:Source", stage1="my_stages:Denoiser", chunks=4, mesh_size=2)


@pytest.fixture
def gpus(monkeypatch):
    """Set the number of GPUs of this machine."""

    def set_to(count):
        monkeypatch.setattr(checks, "count_gpus", lambda: count)

    set_to(0)
    return set_to


@pytest.fixture
def clip(monkeypatch):
    """Stand in for the decoder; returns the list of what was probed."""
    probed = []

    def set_to(frames):
        def probe(path):
            probed.append(path)
            return SimpleNamespace(frames=frames)

        monkeypatch.setitem(sys.modules, "ppwork.workloads.clip", SimpleNamespace(probe=probe))
        return probed

    return set_to


@pytest.fixture
def answer(monkeypatch):
    """Stand in for the short subprocess; returns the list of the commands it was given."""
    commands = []

    def set_to(returncode=0, stdout=b"", stderr=b"", error=None):
        def run(command, **options):
            assert options["timeout"] == checks.SUBPROCESS_LIMIT_S
            commands.append(command)
            if error is not None:
                raise error
            return subprocess.CompletedProcess(command, returncode, stdout, stderr)

        monkeypatch.setattr(checks.subprocess, "run", run)
        options = {"timeout": checks.SUBPROCESS_LIMIT_S, "check": False}
        monkeypatch.setattr(checks, "_answer_of", lambda command: run(command, **options))
        return commands

    return set_to


# Backend


@pytest.mark.parametrize(
    ("backend", "share", "available", "chosen"),
    [
        ("gloo", False, 8, "gloo"),
        ("auto", False, 0, "gloo"),
        ("auto", False, 2, "gloo"),
        ("auto", False, 3, "nccl"),
        ("auto", True, 1, "nccl"),
        ("auto", True, 0, "gloo"),
        ("nccl", False, 3, "nccl"),
        ("nccl", True, 1, "nccl"),
    ],
)
def test_backend_is_nccl_only_if_every_rank_gets_a_gpu(gpus, backend, share, available, chosen):
    gpus(available)
    assert choose_backend(OWN.replace(backend=backend, share_gpu=share)) == chosen


@pytest.mark.parametrize(("share", "available", "need"), [(False, 2, 3), (False, 0, 3), (True, 0, 1)])
def test_more_nccl_ranks_than_gpus_are_refused(gpus, share, available, need):
    """F21."""
    gpus(available)
    with pytest.raises(PlanError, match=f"{need} for this mesh, and this machine has {available}") as caught:
        choose_backend(OWN.replace(backend="nccl", share_gpu=share))
    assert "(--backend) gloo" in caught.value.check_first


@pytest.mark.parametrize(
    ("backend", "available", "chosen"),
    [("gloo", 1, "gloo"), ("auto", 0, "gloo"), ("auto", 1, "nccl"), ("nccl", 1, "nccl")],
)
def test_one_process_needs_one_gpu_and_takes_the_cpu_without(gpus, backend, available, chosen):
    gpus(available)
    plan = resolve(synthetic_of_one(backend))
    assert plan.backend == chosen


def test_one_process_on_a_gpu_that_is_not_there_is_refused(gpus):
    gpus(0)
    with pytest.raises(PlanError, match="this machine has none"):
        resolve(synthetic_of_one("nccl"))


def synthetic_of_one(backend: str) -> Plan:
    stages = {"encode_ms": 1.0, "decode_ms": 1.0, "stage1_ms": 1.0, "payload_mb": 0.0}
    return synthetic(Plan(mesh_size=1, one_process=True, backend=backend), **stages)


class Machine(type(Path())):
    """A machine with a driver: every path is there."""

    def exists(self):
        return True


class Bare(type(Path())):
    """A machine without one."""

    def exists(self):
        return False


def test_machine_without_a_driver_has_no_gpu_and_starts_no_process(monkeypatch, answer):
    commands = answer(stdout=b"8\n")
    monkeypatch.setattr(checks, "Path", Bare)
    assert count_gpus() == 0
    assert commands == []


def test_gpus_are_counted_by_a_subprocess(monkeypatch, answer):
    commands = answer(stdout=b"8\n")
    monkeypatch.setattr(checks, "Path", Machine)
    assert count_gpus() == 8
    assert commands[0][0] == sys.executable


@pytest.mark.processes
@pytest.mark.parametrize(
    ("torch", "why"),
    [
        ("raise ImportError('libcudart.so.12: cannot open')", "libcudart.so.12: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "exit -11"),
        ("import time; time.sleep(60)", "timed out after 2"),
        ("print('hello')\nclass cuda:\n    device_count = int", "hello"),
    ],
    ids=["import", "killed", "hangs", "noise"],
)
def test_a_torch_that_does_not_say_is_not_a_machine_without_gpus(monkeypatch, tmp_path, torch, why):
    """A GPU machine would compute on its CPU without a word, or be told that it has 0 GPUs."""
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(checks, "SUBPROCESS_LIMIT_S", 2.0)
    monkeypatch.setattr(checks, "Path", Machine)
    with pytest.raises(UnavailableError, match=re.escape(why)) as caught:
        choose_backend(OWN)
    assert "torch.cuda.device_count()" in caught.value.check_first
    assert choose_backend(OWN.replace(backend="gloo")) == "gloo"


@pytest.mark.processes
def test_a_python_that_does_not_start_is_not_a_machine_without_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    monkeypatch.setattr(checks, "Path", Machine)
    with pytest.raises(UnavailableError, match="No such file"):
        count_gpus()


# Resolving


def test_own_stages_without_chunks_stay_without_a_number(gpus, answer):
    answer(stdout=b"[]\n")
    assert resolve(OWN.replace(chunks=None)).chunks is None


def test_own_stages_are_checked_and_the_backend_is_decided(gpus, answer):
    commands = answer(stdout=b"[]\n")
    assert resolve(OWN) == OWN.replace(backend="gloo")
    assert commands == [[sys.executable, "-P", "-m", "ppwork", "check-stages", OWN.stage0, OWN.stage1]]


def test_shipped_stages_that_only_take_time_start_no_subprocess(gpus, answer):
    commands = answer(returncode=1)
    plan = OWN.replace(stage0=SYNTHETIC_STAGE0, stage1=SYNTHETIC_STAGE1)
    assert resolve(plan) == plan.replace(backend="gloo")
    assert commands == []
    with pytest.raises(PlanError, match="could not be imported"):
        resolve(plan.replace(stage1=OWN.stage1))


def test_video_takes_the_shipped_clip_and_all_its_chunks(gpus, clip):
    probed = clip(frames=19)
    plan = resolve(Plan(mesh_size=2, options={"frames_per_chunk": 4}))
    assert (plan.chunks, plan.options, plan.backend) == (4, {"frames_per_chunk": 4}, "gloo")
    assert plan.is_video
    assert probed == [default_clip()]


def test_video_keeps_the_chunks_and_makes_the_path_absolute(gpus, clip, tmp_path, monkeypatch):
    clip(frames=19)
    monkeypatch.chdir(tmp_path)
    plan = resolve(Plan(mesh_size=2, chunks=2, options={"input": "clip.mp4"}))
    assert (plan.chunks, plan.options) == (2, {"input": str(tmp_path / "clip.mp4")})


def test_an_option_that_the_video_does_not_know_is_refused(gpus, clip):
    clip(frames=19)
    with pytest.raises(PlanError, match="no option 'nois'") as caught:
        resolve(Plan(mesh_size=2, options={"nois": 10}))
    assert caught.value.check_first == "did you mean 'noise'?"


def test_clip_shorter_than_a_chunk_is_refused(gpus, clip):
    clip(frames=3)
    with pytest.raises(PlanError, match="fewer frames than one chunk of 4"):
        resolve(Plan(mesh_size=2))


def test_mesh_that_the_denoiser_cannot_split_is_refused(gpus, clip):
    clip(frames=19)
    with pytest.raises(PlanError, match="mesh of 5"):
        resolve(Plan(mesh_size=5, chunks=2))


# Stages, in a subprocess


def test_what_the_subprocess_found_is_the_error(answer):
    answer(returncode=2, stdout=b'["It has no step.","add step"]\n')
    with pytest.raises(PlanError) as caught:
        check_stages(OWN)
    assert (caught.value.what, caught.value.check_first) == ("It has no step.", "add step")


@pytest.mark.parametrize("stdout", [b"", b"noise\n", b'["one"]\n'], ids=repr)
def test_subprocess_that_died_is_told_by_its_code_and_last_line(answer, stdout):
    answer(returncode=-11, stdout=stdout, stderr=b"first\nSegmentation \xff fault\n")
    with pytest.raises(PlanError, match=r"could not be imported \(exit -11\): Segmentation") as caught:
        check_stages(OWN)
    assert f"-m ppwork check-stages {OWN.stage0} {OWN.stage1}" in caught.value.check_first


def test_import_that_takes_too_long_is_refused(answer):
    answer(error=subprocess.TimeoutExpired("python", 120))
    with pytest.raises(PlanError, match="took over 120 s") as caught:
        check_stages(OWN)
    assert "import time" in caught.value.check_first


@pytest.mark.processes
def test_stage_module_that_does_not_exist_is_refused_by_a_real_subprocess(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match="no_such_stages"):
        check_stages(OWN.replace(stage0="no_such_stages:A", stage1="no_such_stages:B"))


STAGES = """
class Source:
    def __init__(self, context): ...
    def encode(self, chunk_index): return {}
    def context_frames(self, chunk_index): ...
    def decode(self, chunk_index, tensors): ...
    def finish(self): ...

class Denoiser:
    def __init__(self, context): ...
    def reset_cache(self): ...
    def recompute(self, context_frames): ...
    def step(self, tensors, step_index, num_steps): return tensors
"""


@pytest.mark.processes
def test_a_module_that_does_not_import_is_named_with_its_own_line_and_none_of_a_library(
    tmp_path, monkeypatch
):
    """An environment may lie in the folder of the stages, and the library in that."""
    monkeypatch.chdir(tmp_path)
    installed = tmp_path / "venv/site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    (tmp_path / "my_stages.py").write_text(f"import helper\n{STAGES}")
    (installed / "helper.py").write_text("\nimport not_there\n")
    with pytest.raises(PlanError) as caught:
        check_stages(OWN)
    assert f"No module named 'not_there', at {tmp_path / 'my_stages.py'}:1" in caught.value.what
    (installed / "helper.py").rename(tmp_path / "helper.py")
    with pytest.raises(PlanError) as caught:
        check_stages(OWN)
    assert f"No module named 'not_there', at {tmp_path / 'helper.py'}:2" in caught.value.what


@pytest.mark.processes
def test_stages_that_passed_are_asked_again_only_when_their_file_has_changed(tmp_path, monkeypatch):
    """The import takes as long as torch's, and lessons launch the same stages many times."""
    monkeypatch.chdir(tmp_path)
    file, asked, ask = tmp_path / "my_stages.py", [], checks._answer_of
    monkeypatch.setattr(checks, "_answer_of", lambda command: asked.append(1) or ask(command))
    file.write_text(STAGES)
    check_stages(OWN)
    check_stages(OWN)
    assert len(asked) == 1
    file.write_text(STAGES.replace("def step", "def other"))
    os.utime(file, ns=(1, 1))
    with pytest.raises(PlanError, match="lacks the contract's methods step"):
        check_stages(OWN)


BEHAVES = {
    "prints at its exit": ("import atexit; atexit.register(print, 'bye')", ""),
    "prints like us": ('print(\'["a", "b"]\')', ""),
    "leaves": ("import sys; sys.exit(0)", "does not import: SystemExit: 0, at "),
    "leaves at once after words like ours": (
        "import os; print('[]', flush=True); os._exit(0)",
        "could not be imported (exit 0)",
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("behaviour", BEHAVES)
def test_what_a_module_prints_or_does_is_not_taken_for_an_answer(tmp_path, monkeypatch, behaviour):
    code, said = BEHAVES[behaviour]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_stages.py").write_text(f"{code}\n{STAGES}")
    if not said:
        check_stages(OWN)
        return
    with pytest.raises(PlanError, match=re.escape(said)):
        check_stages(OWN)


# Variables that every rank reads


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCOPE_DIST_TIMEOUT_S", "abc"),
        ("SCOPE_DIST_TIMEOUT_S", "nan"),
        ("SCOPE_DIST_TIMEOUT_S", "1e9"),
        ("PPWORK_LOG_LEVEL", "foo"),
        ("GLOO_SOCKET_IFNAME", "nope"),
        ("GLOO_SOCKET_IFNAME", "lo,nope"),
    ],
)
def test_a_variable_that_every_rank_would_fail_on_is_refused_before_they_start(
    gpus, answer, monkeypatch, name, value
):
    answer(stdout=b"[]")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("PPWORK_LOG_LEVEL", "DEBUG")
    resolve(OWN)
    monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match=name):
        resolve(OWN)
