"""The list of our own runs: private, whole, and true although pids are used again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest
from typer.testing import CliRunner
from waiting import wait_for

from ppwork.cli.main import app
from ppwork.cli.runs import stop_runs
from ppwork.errors import PlanError, UnavailableError
from ppwork.launcher import registry
from ppwork.launcher.registry import OWNER, SCRATCH, own_runs, registered, scratch_folder, stop
from ppwork.plan import Plan
from ppwork.records import identity
from ppwork.records.identity import Identity

pytestmark = pytest.mark.processes

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def own_list(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "ppwork"


@pytest.fixture
def agent():
    """Stands for torchrun."""
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


def test_a_run_is_listed_while_it_goes_and_not_after(own_list, agent, tmp_path):
    with registered(tmp_path / "run", agent.pid):
        (run,) = own_runs()
        assert run.run_dir == str(tmp_path / "run")
        assert (run.launcher.pid, run.agent.pid) == (os.getpid(), agent.pid)
        assert run.agent.process() == psutil.Process(agent.pid)
        assert [path.stat().st_mode & 0o777 for path in [own_list]] == [0o700]
    assert own_runs() == []
    assert list(own_list.iterdir()) == []


def test_a_run_whose_torchrun_is_gone_is_dropped_from_the_list(own_list, agent, tmp_path):
    with registered(tmp_path, agent.pid):
        agent.kill()
        psutil.wait_procs([psutil.Process(agent.pid)], timeout=5)
        assert own_runs() == []
        assert list(own_list.iterdir()) == []


def test_a_run_whose_agent_was_gone_before_it_is_listed_goes_to_its_own_end(own_list, agent, tmp_path):
    """As a node that is killed at once: the run says so, and no traceback of ours."""
    agent.kill()
    agent.wait()
    ended = []
    with registered(tmp_path, agent.pid):
        assert own_runs() == []
        ended.append("as it ended")
    assert ended


def test_a_pid_that_was_used_again_is_another_process(agent):
    now = Identity.of(agent.pid)
    assert now.process() is not None
    assert Identity(agent.pid, now.started - 1, now.space).process() is None


def test_a_clock_that_is_set_makes_no_process_another(own_list, agent, tmp_path, monkeypatch):
    """psutil adds the boot's time of day, which moves with the clock; `ps` once forgot every run then."""
    with registered(tmp_path, agent.pid):
        real = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: real(process) + 1.0)
        assert [run.agent.pid for run in own_runs()] == [agent.pid]
        assert len(list(own_list.iterdir())) == 1


LISTED = "from ppwork.launcher.registry import own_runs; print([run.agent.pid for run in own_runs()])"
LATER = "sed 's/^btime .*/btime 1/' /proc/stat > {0} && mount --bind {0} /proc/stat && exec "


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["another clock", "another pid namespace"])
def test_the_list_outlives_a_look_from_outside(own_list, agent, tmp_path, elsewhere):
    """The same two, for real: a boot time that moved, and the `ps` of a container."""
    apart = [
        "unshare",
        "--map-root-user",
        "--fork",
        *(["--pid", "--mount-proc"] if elsewhere else ["--mount"]),
    ]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces")
    words = [sys.executable, "-c", LISTED]
    if not elsewhere:
        words = ["sh", "-c", f"{LATER.format(tmp_path / 'stat')} {shlex.join(words)}"]
    with registered(tmp_path / "run", agent.pid):
        told = subprocess.run([*apart, *words], capture_output=True, text=True, check=False)
        assert (told.stdout.strip(), told.stderr) == (f"{[] if elsewhere else [agent.pid]}", "")
        assert [run.agent.pid for run in own_runs()] == [agent.pid]


def test_a_run_of_another_container_is_not_listed_and_stays(own_list, agent, tmp_path, monkeypatch):
    with registered(tmp_path, agent.pid):
        with monkeypatch.context() as there:
            there.setattr(identity, "pid_space", lambda: "another")
            assert own_runs() == []
        assert len(own_runs()) == 1


def test_two_containers_with_the_same_pids_keep_an_entry_each(own_list, agent, tmp_path, monkeypatch):
    """Pids of containers are small and repeat."""
    with registered(tmp_path / "ours", agent.pid):
        with monkeypatch.context() as there:
            there.setattr(identity, "pid_space", lambda: "another")
            with registered(tmp_path / "theirs", agent.pid):
                assert len(list(own_list.glob("*.json"))) == 2
        assert [run.run_dir for run in own_runs()] == [str(tmp_path / "ours")]


def test_a_scratch_folder_that_gets_no_owner_is_gone(own_list, monkeypatch):
    """Nobody would know whose it is, and nobody remove it."""

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry, "write_whole", full)
    with pytest.raises(UnavailableError, match="No space left"), scratch_folder():
        pass
    assert not list(own_list.glob(f"{SCRATCH}*"))


def test_an_entry_that_is_not_whole_is_dropped(own_list, agent, tmp_path):
    with registered(tmp_path, agent.pid):
        (path,) = own_list.iterdir()
        (own_list / "torn.json").write_bytes(path.read_bytes()[:-5])
        assert len(own_runs()) == 1
    assert list(own_list.iterdir()) == []


def test_stop_ends_torchrun_and_its_children_and_nobody_else(own_list, agent, tmp_path):
    bystander = subprocess.Popen(SLEEPER)
    try:
        with registered(tmp_path, agent.pid):
            (run,) = own_runs()
            assert stop(run) is False
            assert agent.poll() == -15, "the exit code is left to whoever launched"
            assert stop(run) is False, "a second time finds nobody"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_run_over_several_nodes_of_this_machine_is_listed_and_stopped_once(own_list, agent, tmp_path):
    """Each node lists its torchrun; whoever launched them is the first, and ends them all."""
    node = subprocess.Popen(SLEEPER)
    try:
        with registered(tmp_path, agent.pid), registered(tmp_path, node.pid):
            listed = CliRunner().invoke(app, ["ps", "--json"])
            here = [run for run in json.loads(listed.output) if run["run_dir"] == str(tmp_path)]
            assert [run["torchrun"] for run in here] == [agent.pid]
            stop_runs(tmp_path)
            assert (agent.poll(), node.poll()) == (-15, None)
    finally:
        node.kill()
        node.wait()


def test_a_run_of_ones_own_torchrun_is_listed_by_the_pulse_that_its_ranks_keep_and_is_not_stopped(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / Plan.FILE_NAME).write_bytes(Plan(mesh_size=1).to_json())
    beats = "import sys, time; from ppwork.records.pulse import *; p = Pulse(sys.argv[1], 1); "
    beats += "p.beat(PulseState.BUSY, 'generate', {}, 0); print('beats', flush=True); time.sleep(60)"
    rank = subprocess.Popen(
        [sys.executable, "-c", beats, folder], env={**os.environ, "RANK": "1"}, stdout=subprocess.PIPE
    )
    try:
        assert rank.stdout.readline() == b"beats\n"
        found = json.loads(CliRunner().invoke(app, ["ps", "--json"]).output)
        (run,) = [run for run in found if run["run_dir"] == str(folder)]
        assert (run["launcher"], run["torchrun"]) == (None, os.getpid())
        assert [(each["rank"], each["state"]) for each in run["ranks"]] == [(0, "starting"), (1, "busy")]
        lines = CliRunner().invoke(app, ["ps"], env={"COLUMNS": "40"}).output.splitlines()
        assert lines[lines.index(str(folder)) + 1].endswith(f" s, your own, torchrun {os.getpid()}")
        with pytest.raises(PlanError, match="is of your own torchrun") as refused:
            stop_runs(folder)
        assert refused.value.check_first == f"end its torchrun, process {os.getpid()}"
        assert rank.poll() is None
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        lets_go_on = f"1:stopped (pid {rank.pid}; `kill -CONT {rank.pid}` lets it go on)"
        assert lets_go_on in " ".join(CliRunner().invoke(app, ["ps"], env={"COLUMNS": "400"}).output.split())
        with registered(tmp_path, os.getpid()):  # a run over hosts has their folders in its own
            assert str(folder) not in CliRunner().invoke(app, ["ps", "--json"]).output
    finally:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("spelled", ["../there/run", "../link"])
def test_a_run_is_stopped_by_any_name_of_its_folder(own_list, agent, tmp_path, monkeypatch, spelled):
    for folder in ("here", "there/run"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("there/run")
    monkeypatch.chdir(tmp_path / "here")
    with registered(tmp_path / "there" / "run", agent.pid):
        stop_runs(Path(spelled))
        assert agent.poll() == -15
    other = subprocess.Popen(SLEEPER)
    try:
        with registered(tmp_path / "link", other.pid):
            stop_runs(tmp_path / "there" / "run")
            assert other.poll() == -15
    finally:
        other.kill()
        other.wait()


def test_stop_kills_what_does_not_follow(agent, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "STOP_POLITE_S", 0.2)
    with registered(tmp_path, agent.pid):
        torchrun = psutil.Process(agent.pid)
        torchrun.suspend()
        wait_for(lambda: torchrun.status() == psutil.STATUS_STOPPED)
        (run,) = own_runs()
        assert stop(run) is True
        assert run.agent.process() is None


def test_without_a_runtime_folder_the_list_is_under_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert registry.registry() == tmp_path / f"ppwork-runs-{os.getuid()}"


def test_a_machine_without_a_temporary_folder_is_said(tmp_path, monkeypatch):
    """As Python says it where every disk is full."""

    def none():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(UnavailableError, match="cannot be kept: No usable temporary") as refused:
        registry.registry()
    assert "TMPDIR" in refused.value.check_first


@pytest.mark.parametrize("made", ["open to others", "a link", "a file"])
def test_a_list_that_somebody_else_could_write_is_refused(own_list, tmp_path, made):
    if made == "open to others":
        own_list.mkdir()
        own_list.chmod(0o777)
    elif made == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        own_list.symlink_to(tmp_path / "elsewhere")
    else:
        own_list.write_bytes(b"")
    with pytest.raises(UnavailableError) as refused:
        registry.registry()
    assert str(own_list) in refused.value.what
    assert refused.value.check_first


def test_a_list_that_cannot_be_written_is_said(agent, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry, "write_whole", full)
    with pytest.raises(UnavailableError, match="No space left"), registered(tmp_path, agent.pid):
        pass


@pytest.mark.parametrize(("run_dir", "every"), [(None, False), ("here", True), ("here", False)])
def test_stop_needs_one_run_of_ours_or_all(tmp_path, run_dir, every):
    with pytest.raises(PlanError, match="ppwork ps"):
        stop_runs(None if run_dir is None else tmp_path / run_dir, every)


def test_an_entry_is_plain_json_with_known_fields(own_list, agent, tmp_path):
    with registered(tmp_path, agent.pid):
        (path,) = own_list.glob("*.json")
        assert set(msgspec.json.decode(path.read_bytes())) == {"run_dir", "launcher", "agent", "at", "waits"}


def test_scratch_of_a_launcher_that_was_killed_is_removed_by_the_next(own_list, agent):
    """And no other: that of one that lives, or of another container, is in use."""
    living = Identity.of(agent.pid)
    owners = {
        "killed": msgspec.structs.replace(living, started=living.started - 1),
        "living": living,
        "elsewhere": msgspec.structs.replace(living, space="another boot", started=1),
    }
    own_list.mkdir(mode=0o700)
    for name, owner in owners.items():
        (own_list / f"{SCRATCH}{name}").mkdir()
        (own_list / f"{SCRATCH}{name}" / OWNER).write_bytes(msgspec.json.encode(owner))
    with scratch_folder() as ours:
        left = {path.name.removeprefix(SCRATCH) for path in own_list.glob(f"{SCRATCH}*")}
        assert left == {"living", "elsewhere", ours.name.removeprefix(SCRATCH)}
    assert not ours.exists()
