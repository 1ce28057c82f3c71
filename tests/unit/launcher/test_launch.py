"""The launcher around its ranks: bounds that are none, and a reference that is verified against."""

from __future__ import annotations

import math
import sys
import time

import pytest

import ppwork as pp
from ppwork.errors import PlanError
from ppwork.launcher import job, launch, torchrun_watch
from ppwork.launcher.registry import ENDED
from ppwork.launcher.view import NoView, StopAsked
from ppwork.process import STOPPED
from ppwork.records.run import VERIFY_FILE, LaunchEnd

PLAN = pp.synthetic(
    pp.Plan(mesh_size=2, chunks=2, backend="gloo", verify=True),
    encode_ms=1, decode_ms=1, stage1_ms=1, payload_mb=0.1,
)  # fmt: skip
EQUAL = (
    '{"first_different": null, "first_values": "", "most_different": null, "dtype": "float32", '
    '"max_abs_diff": 0.0, "returned_differs": ""}'
)


@pytest.fixture
def reference(monkeypatch):
    """Let the ranks be done at once, and the reference be these statements, in its run's folder."""

    def set_to(source):
        def ended(plan, run_dir, *_):
            (run_dir / "summary.json").write_text("{}")
            for kept in ("outputs", "returned"):
                (run_dir / f"{kept}.safetensors").touch()
            return 0

        real = launch.running

        def made(command, *arguments, **options):
            source_there = f"import os; os.chdir({command[-1]!r})\n{source}"
            return real([sys.executable, "-c", source_there], *arguments, **{**options, "warm": False})

        monkeypatch.setattr(launch, "_run_ranks", ended)
        monkeypatch.setattr(launch, "mesh_figures", lambda _: {})
        monkeypatch.setattr(launch, "running", made)

    return set_to


@pytest.mark.parametrize("limit_s", [math.inf, math.nan, 0.0, -1.0])
def test_a_limit_that_is_none_is_refused_before_anything_is_there(limit_s, tmp_path, monkeypatch):
    """JSON has no word for the first two: a host and a job would not read what they were told."""
    monkeypatch.setattr(job, "ask", lambda *_, **__: pytest.fail("it was handed in"))
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.touch()
    for starts in ("ppwork.launcher.launch.run_folder", "ppwork.launcher.script.run_folder"):
        monkeypatch.setattr(starts, lambda *_: pytest.fail("it was begun"))
    for begin in (
        lambda: launch.launch(PLAN, out, limit_s=limit_s),
        lambda: pp.submit(PLAN, on=pp.Slurm(2), out=out, limit_s=limit_s),
        lambda: pp.launch_script(program, nproc=2, out=out, limit_s=limit_s),
    ):
        with pytest.raises(PlanError, match=rf"limit was {limit_s:g} s"):
            begin()
    assert not out.exists()


@pytest.mark.processes
def test_a_reference_whose_stages_start_a_program_may_compute_on_after_it(reference, tmp_path, monkeypatch):
    """It was taken for a torchrun that does not leave after its ranks."""
    monkeypatch.setattr(torchrun_watch, "RANKS_S", 0.05)
    monkeypatch.setattr(launch.followed, "__defaults__", (None, None, 0.3))
    compute = "import subprocess, time; subprocess.run(['sleep', '0.3']); time.sleep(1.5)"
    reference(f"{compute}; open({VERIFY_FILE!r}, 'w').write({EQUAL!r})")
    finished = launch.launch(PLAN, tmp_path / "run", check=False)
    assert finished.failure is None, finished.failure


@pytest.mark.processes
@pytest.mark.parametrize("left", ['{"first_diff', "[]", None], ids=["cut", "another", "none"])
def test_figures_of_a_reference_that_do_not_read_are_said_to_be(reference, tmp_path, left):
    """A disk that filled up: it ended in a DecodeError of msgspec's."""
    reference("pass" if left is None else f"open({VERIFY_FILE!r}, 'w').write({left!r})")
    failure = launch.launch(PLAN, tmp_path / "run", check=False).failure
    assert failure.what == (
        f"The single-process reference ended, and its figures, {tmp_path / 'run' / VERIFY_FILE}, do not read."
    )
    assert "df -h" in failure.check_first


def test_what_was_half_written_goes_also_if_the_launcher_is_interrupted(tmp_path, monkeypatch):
    """A hidden part of a video stayed in the folder of a run that Ctrl-C had ended."""

    def interrupted(plan, run_dir, *_):
        (run_dir / ".denoised.mp4.4711").touch()
        (run_dir / "of-a-stage").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_run_ranks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch.launch(PLAN.replace(verify=False), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"of-a-stage", "plan.json", "launch.json"}


def test_a_folder_that_is_taken_is_refused_before_the_stages_are_imported(tmp_path, monkeypatch):
    (tmp_path / "of a run before").touch()
    monkeypatch.setattr(launch, "resolve", lambda *_, **__: pytest.fail("it looked at the plan first"))
    with pytest.raises(PlanError, match="exists and is not empty"):
        launch.launch(PLAN, tmp_path)


class _Stops(NoView):
    """Its button is pressed once the reference has begun."""

    def __init__(self, plan, run_dir):
        self._run_dir = run_dir

    def look(self):
        if (self._run_dir / "begun").exists():
            raise StopAsked


@pytest.mark.processes
def test_the_stop_button_ends_a_run_that_is_being_verified(reference, tmp_path):
    reference("import time; open('begun', 'w').close(); time.sleep(40)")
    began_s = time.monotonic()
    finished = launch.launch(PLAN, tmp_path / "run", check=False, view=_Stops)
    assert time.monotonic() - began_s < 30.0
    assert finished.failure.what.startswith("The run was stopped by its Stop button.")
    assert LaunchEnd.load(tmp_path / "run").exit_code == STOPPED


@pytest.mark.processes
def test_a_run_that_ppwork_stop_ended_while_it_was_verified_says_so(reference, tmp_path):
    reference(
        "import os, signal\nfrom pathlib import Path\nfrom ppwork.records.run import LaunchEnd\n"
        f"LaunchEnd(exit_code={STOPPED}, what={ENDED!r}).save(Path.cwd())\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    finished = launch.launch(PLAN, tmp_path / "run", check=False)
    assert finished.failure.what.startswith(ENDED)
    end = LaunchEnd.load(tmp_path / "run")
    assert (end.exit_code, end.what.startswith(ENDED)) == (STOPPED, True)
