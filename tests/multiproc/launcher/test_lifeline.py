"""The two lines that tie a rank to whoever started it, each without the other: no torch here, so no wait."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from launched_jobs import GONE_S, all_gone
from waiting import wait_for

from ppwork.process import ORPHANED

pytestmark = [pytest.mark.multiproc, pytest.mark.cold]

RANK = "import time; from ppwork import process; process.hold(); print('held', flush=True); time.sleep(60)"
IMPORTS_FOR_A_MINUTE = """
import os, time
from pathlib import Path
Path("pid").write_text(str(os.getpid()))
time.sleep(60)
"""
CHECKS = """
import ppwork as pp
from ppwork.launcher.checks import check_stages
check_stages(pp.Plan(stage0="mine:Source", stage1="mine:Mesh", mesh_size=1, chunks=1))
"""
PARENT = f"""
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", {RANK!r}], stdout=subprocess.PIPE)
print(rank.pid, rank.stdout.readline().decode().strip(), flush=True)
time.sleep(60)
"""


def test_the_end_of_the_launchers_pipe_ends_a_rank_whose_parent_lives():
    """F18: the launcher is gone, torchrun is not."""
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with rank:
        assert rank.stdout.readline() == b"held\n"
        rank.stdin.close()
        try:
            assert rank.wait(10) == ORPHANED
        finally:
            rank.kill()


CONTINUED = f"""
import os, signal, subprocess, sys, time
from ppwork.process import TORCHRUN_VARIABLE
told = lambda *_: (print("continued", flush=True), os._exit(0))
signal.signal(signal.SIGCONT, told)
environment = {{**os.environ, TORCHRUN_VARIABLE: "1"}}
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
rank = subprocess.Popen([sys.executable, "-c", {RANK!r}], env=environment, **pipes)
rank.stdout.readline()
rank.stdin.close()
time.sleep(60)
"""


def test_a_torchrun_that_is_not_stopped_yet_when_its_launcher_is_gone_is_told_to_continue():
    """A stop that came in the same moment left it standing for good: no rank saw it as stopped."""
    command = [sys.executable, "-c", CONTINUED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "continued\n"


OTHER_USER = 65534
HAS_A_CHILD_OF_ANOTHER_USER = """
import os, subprocess, sys, time
from ppwork import process
def start():
    return subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, start_new_session=True)
children = [start()]
os.setuid({user})
children += [start(), start()]
process.{hold}()
print(*(child.pid for child in children), flush=True)
{then}
"""
only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")


@only_root
@pytest.mark.parametrize(("hold", "then"), [("hold", "time.sleep(60)"), ("hold_agent", "sys.exit(71)")])
def test_a_child_that_may_not_be_ended_saves_neither_its_rank_nor_the_other_children(hold, then):
    """As one that `sudo` has started: PermissionError ended the thread that was to end the rank."""
    code = HAS_A_CHILD_OF_ANOTHER_USER.format(user=OTHER_USER, hold=hold, then=then)
    rank = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    children = []
    with rank:
        try:
            for pid in rank.stdout.readline().split():
                with suppress(
                    psutil.NoSuchProcess
                ):  # ended already, as it should be: the rank leaves at once
                    children.append(psutil.Process(int(pid)))
            if hold == "hold":
                rank.stdin.close()
            assert rank.wait(10) == ORPHANED
            assert all_gone(children[1:], GONE_S) == []
        finally:
            rank.kill()
            for child in children:
                if child.is_running():
                    child.kill()


THREADS_THAT_COME_AND_GO = """
import sys, threading, time
from ppwork import process
sys.setswitchinterval(1e-5)
done = threading.Event()
def come_and_go():
    while not done.is_set():
        threads = [threading.Thread(target=int) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
keepers = [threading.Thread(target=come_and_go) for _ in range(2)]
for keeper in keepers:
    keeper.start()
try:
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        assert process._children() == []
finally:
    done.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of children")
def test_children_are_found_while_threads_come_and_go():
    """One that ended between the look at the folder and the look at its file ended the lifeline, too."""
    command = [sys.executable, "-c", THREADS_THAT_COME_AND_GO]
    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_death_of_its_parent_ends_a_rank_whose_pipe_is_still_open():
    """F18: torchrun is gone, the launcher is not."""
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=reading, stdout=subprocess.PIPE
        ) as parent:
            pid, said = parent.stdout.readline().split()
            assert said == b"held"
            rank = psutil.Process(int(pid))
            parent.kill()
        try:
            assert all_gone([rank], 10.0) == []
        finally:
            if rank.is_running():
                rank.kill()
    finally:
        os.close(reading)
        os.close(writing)


UNDER_TORCHRUN = """
import time
from ppwork import process
process.{hold}()
print("held", flush=True)
time.sleep(60)
"""
AGENT = """
import os, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                        start_new_session=True)  # as torchrun does
print(rank.pid, rank.stdout.readline().decode().strip(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("agent", "hold", "dies"),
    [
        ("torchrun", "hold_if_asked", True),
        ("torchrun", "hold_torchrun", True),
        ("shell", "hold_torchrun", False),
    ],
)
def test_a_rank_of_any_torchrun_dies_with_it_and_a_child_of_a_rank_is_left_alone(tmp_path, agent, hold, dies):
    """N16: a torchrun that is killed cannot end its ranks, and they ran on."""
    (tmp_path / agent).write_text(AGENT)
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "1"}
    command = [sys.executable, str(tmp_path / agent), UNDER_TORCHRUN.format(hold=hold)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        pid, said = parent.stdout.readline().split()
        rank = psutil.Process(int(pid))
        parent.kill()
    try:
        assert said == b"held"
        gone = all_gone([rank], GONE_S if dies else 0.5) == []
        assert gone is dies
    finally:
        if rank.is_running():
            rank.kill()


LATE = """
import os, time
from pathlib import Path
parent = os.getppid()
print("importing torch", flush=True)
while os.getppid() == parent:
    time.sleep(0.01)  # the interval of asking
import ppwork.ranks
Path("lives").touch()
time.sleep(60)
"""


def test_a_rank_leaves_where_its_torchrun_was_killed_before_it_could_tie_itself(tmp_path):
    """It waited for the others of its job for 39 s, which had no torchrun either."""
    (tmp_path / "torchrun").write_text(AGENT)
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "1"}
    command = [sys.executable, "torchrun", LATE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path) as parent:
        pid = parent.stdout.readline().split()[0]
        rank = psutil.Process(int(pid))
        parent.kill()
    try:
        assert all_gone([rank], 10.0) == []
        assert not (tmp_path / "lives").exists()
    finally:
        if rank.is_running():
            rank.kill()


def test_an_input_that_is_at_its_end_from_the_start_is_no_lifeline():
    """A batch system gives /dev/null: with ``PPWORK_LIFELINE=1`` set by hand every rank left at once."""
    environment = {**os.environ, "PPWORK_LIFELINE": "1"}
    code = "import time; from ppwork import process; process.hold_if_asked(); time.sleep(0.5)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, timeout=30, check=False)
    assert done.returncode == 0


def test_the_death_of_a_launcher_ends_the_process_that_imports_stages_for_it(tmp_path):
    """F18, before there is a rank: a module may take long to import."""
    (tmp_path / "mine.py").write_text(IMPORTS_FOR_A_MINUTE)
    pid = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", CHECKS], cwd=tmp_path) as launcher:
        try:
            number = wait_for(lambda: pid.exists() and pid.read_text())
        finally:
            launcher.kill()
    assert all_gone([psutil.Process(int(number))], GONE_S) == []
