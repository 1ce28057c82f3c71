"""Warm and cold look the same from outside and inside, and nothing that was forked outlives its owner."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
from checkout import SUPPORT
from launched_jobs import all_gone
from started_ranks import WARNINGS
from toy_runs import toy
from waiting import END_S, wait_for

import ppwork as pp
from ppwork.launcher import warm
from ppwork.launcher.torchrun import child_environment
from ppwork.launcher.warm import NotWarm, StartProcess, WarmLauncher, inherited
from ppwork.process import SAFE_PATH_VARIABLE, WARM_VARIABLE, is_torchrun
from ppwork.protocol.plan import STORE_VARIABLE
from ppwork.records.failure import read_records
from ppwork.records.run import TORCHRUN_LOG

pytestmark = [
    pytest.mark.multiproc,
    pytest.mark.timeout(240),
]  # some import torch four times

SEEN = SUPPORT / "seen_from_a_rank.py"
ENDS = {"well": 2, "raise": 2, "exit 3": 1, "killed": 1, "stopped": 2}
"""Of the last rank, and how many ranks there are."""
OF_ONE_RUN = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", STORE_VARIABLE, WARM_VARIABLE}
LONG = """
import sys, ppwork as pp
plan = pp.Plan(mesh_size=2, chunks=2000, backend="gloo", stage0="toy_stages:Counter",
               stage1="toy_stages:Slow", options={"step_s": 0.05})
pp.launch(plan, out=sys.argv[1], check=False)
"""
TWO_RUNS = """
import signal, sys, psutil, ppwork as pp
def server():
    return next(c for c in psutil.Process().children() if "ppwork.worker.warm_server" in c.cmdline())
for number in range(2):
    folder = f"{sys.argv[3]}-{number}"
    print(pp.launch_script(sys.argv[1], nproc=1, arguments=("well", sys.argv[2]), out=folder).exit_code)
    print((killed := server()).pid)
    killed.kill()
    killed.wait()
"""


def names_of(run_dir: Path) -> set[str]:
    """The files of a run; torchrun puts a number of its own into the names of its folders."""
    return {
        re.sub(r"^[0-9a-f]{32}_\w+", "ID", str(path.relative_to(run_dir)))
        for path in run_dir.rglob("*")
        if path.is_file()
    }


def comparable(text: str, run_dir: Path) -> str:
    """A text without what differs from run to run: folders, processes, moments, what a rank printed last."""
    text = text.replace(str(run_dir), "RUN")
    text = re.sub(r"(last lines of rank \d+:)(\n    .*)+", r"\1", text)
    return re.sub(r"[0-9a-f]{32}\w*|\bpid:? \d+|\d+\.\d+ ?s|attempt_\d+|\d{4}-\d\d-\d\d_[\d:]+", "_", text)


def both(monkeypatch, tmp_path, launch):
    """Launch warm, as this file is, and then cold."""
    warm = launch(tmp_path / "warm")
    assert "started cold" not in (tmp_path / "warm" / TORCHRUN_LOG).read_text()
    monkeypatch.setenv(WARM_VARIABLE, "0")
    return warm, launch(tmp_path / "cold")


@pytest.mark.parametrize("end", ENDS)
def test_a_program_sees_is_seen_and_ends_the_same(monkeypatch, tmp_path, end):
    warm, cold = both(
        monkeypatch,
        tmp_path,
        lambda out: pp.launch_script(
            SEEN, nproc=ENDS[end], arguments=(end, str(tmp_path)), out=out, check=False
        ),
    )
    assert warm.exit_code == cold.exit_code == (0 if end == "well" else 1)
    assert names_of(warm.run_dir) == names_of(cold.run_dir)
    texts = [comparable(run.failure.what if run.failure else "well", run.run_dir) for run in (warm, cold)]
    assert texts[0] == texts[1]
    for rank in range(ENDS[end]):
        sights = [json.loads(run.printed(rank).replace(str(run.run_dir), "RUN")) for run in (warm, cold)]
        for sight in sights:
            assert sight["shown as"] == sight["started as"]
            assert sight["shown variables"].pop(SAFE_PATH_VARIABLE) == "1", (
                "for this process, not its children"
            )
            assert sight["shown variables"] == sight["variables"]
            for name in OF_ONE_RUN:
                sight["variables"].pop(name, None)
                sight["shown variables"].pop(name, None)
        assert sights[0] == sights[1]


@pytest.mark.parametrize("fault", ["", "raises"])
def test_a_plan_gives_the_same_outputs_records_and_files(monkeypatch, tmp_path, fault):
    stages = {"stage1": "toy_stages:RaisesOn", "options": {"group_rank": 1}} if fault else {}
    warm, cold = both(
        monkeypatch,
        tmp_path,
        lambda out: pp.launch(toy(**stages), out=out, check=False),
    )
    assert warm.exit_code == cold.exit_code == (1 if fault else 0)
    assert warm.summary.get("figures") == cold.summary.get("figures")
    assert names_of(warm.run_dir) == names_of(cold.run_dir)
    records = [
        [
            # Which of its peers' ends a rank hears of first is chance.
            (r.rank, r.symptom)
            if r.symptom
            else (r.rank, r.error_type, comparable(r.what, run.run_dir), r.source)
            for r in read_records(run.run_dir, 3)
        ]
        for run in (warm, cold)
    ]
    assert records[0] == records[1]
    assert len(records[0]) == (3 if fault else 0)


SPAWNING = """
import multiprocessing
import weakref

def answer(given):
    return 2 * given

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(answer, [21]))
    weakref.finalize(multiprocessing, print, "put away")
"""


def test_a_program_whose_path_is_relative_spawns_processes(monkeypatch, tmp_path):
    """They read the program anew; the warm launcher began in another folder than the program runs in.

    And what a program wants to be done at its end is done, though torch's own is not.
    """
    (tmp_path / "my_spawning.py").write_text(SPAWNING)
    pp.launch_script(SEEN, nproc=1, arguments=("well", str(tmp_path)), out=tmp_path / "first")  # it is warm
    monkeypatch.chdir(tmp_path)
    run = pp.launch_script("my_spawning.py", nproc=1, out=tmp_path / "run", limit_s=60)
    assert "started cold" not in (tmp_path / "run" / TORCHRUN_LOG).read_text()
    assert run.printed(0) == "[42]\nput away\n"


def owner(tmp_path, *command: str) -> subprocess.Popen[str]:
    """A process with a warm launcher of its own."""
    environment = {**os.environ, WARM_VARIABLE: "1", "XDG_RUNTIME_DIR": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-c", *command], env=environment, stdout=subprocess.PIPE, text=True
    )


def family_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The warm launcher, torchrun and its three ranks, once all are there."""
    family = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(psutil.Error):  # one has just ended
        agent = torchrun_in(family)
        ranks = [member for member in family if agent is not None and member.ppid() == agent.pid]
        if len(ranks) == 3 and all(rank.cmdline()[-2:-1] == ["worker"] for rank in ranks):
            return family
    return []


def torchrun_in(family: list[psutil.Process]) -> psutil.Process | None:
    return next((member for member in family if is_torchrun(member.cmdline())), None)


@pytest.mark.parametrize("stopped", [False, True])
def test_an_owner_that_is_killed_takes_everything_with_it_also_a_torchrun_that_stands_still(
    tmp_path, stopped
):
    with owner(tmp_path, LONG, str(tmp_path / "run")) as process:
        try:
            family = wait_for(lambda: family_of(process), 2 * END_S)
            if stopped:
                torchrun_in(family).suspend()
        finally:
            process.kill()
    assert all_gone(family, 3.0) == []


def test_ctrl_c_ends_the_run_and_leaves_nothing_but_an_owner_that_says_so(tmp_path):
    with owner(tmp_path, LONG, str(tmp_path / "run")) as process:
        try:
            family = wait_for(lambda: family_of(process), 2 * END_S)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == -signal.SIGINT
        finally:
            process.kill()
    assert all_gone(family, 0.0) == []


def test_a_warm_launcher_that_was_killed_is_replaced(tmp_path):
    with owner(tmp_path, TWO_RUNS, str(SEEN), str(tmp_path), str(tmp_path / "run")) as process:
        codes_and_servers = process.communicate(timeout=4 * END_S)[0].split()
    assert codes_and_servers[::2] == ["0", "0"]
    assert codes_and_servers[1] != codes_and_servers[3]


def test_what_a_fork_cannot_have_is_started_cold_and_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONWARNINGS", WARNINGS["PYTHONWARNINGS"] + ",ignore::ResourceWarning")
    run = pp.launch_script(SEEN, nproc=1, arguments=("well", str(tmp_path)), out=tmp_path / "run")
    assert run.exit_code == 0
    log = (tmp_path / "run" / TORCHRUN_LOG).read_text()
    assert "ppwork: started cold: not as in the warm launcher: PYTHONWARNINGS" in log


@pytest.fixture
def waited_for(warm_launcher):
    """A forked process, and a thread that waits for its end; gone at the end of the test."""
    command, codes = [sys.executable, "-c", "import time; time.sleep(60)"], []
    start = StartProcess(command, child_environment(1), str(Path.cwd()), inherited())
    with Path(os.devnull).open("r+b") as null:
        process = warm_launcher.start(start, (null.fileno(),) * 3)
    thread = threading.Thread(target=lambda: codes.append(process.wait()), daemon=True)
    thread.start()
    wait_for(process._waiting.locked)
    yield process, thread, codes
    psutil.Process(process.pid).kill() if not codes else None


def test_what_another_thread_waits_for_can_be_asked_and_ended(waited_for):
    """As a ``Popen``: ``kill`` waited for the end that it was to bring about."""
    process, thread, codes = waited_for
    done = []

    def ask_and_kill():
        done.append(process.poll())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        done.append(process.wait(END_S))

    threading.Thread(target=ask_and_kill, daemon=True).start()
    wait_for(lambda: len(done) == 2)
    thread.join(END_S)
    assert (done, codes) == ([None, -signal.SIGKILL], [-signal.SIGKILL])


def test_a_warm_launcher_that_cannot_be_started_is_not_warm_and_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(NotWarm, match="did not start: No such file"):
        WarmLauncher(os.environ)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_warm_launcher_starts_leaves_neither_process_nor_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(warm.select, "select", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        WarmLauncher(os.environ)
    assert list(tmp_path.iterdir()) == []
