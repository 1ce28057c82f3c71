"""What the launcher does in torchrun's place, with small programs that know nothing of ppwork."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from waiting import END_S, wait_for

from ppwork.diagnosis.report import killed_by_us
from ppwork.launcher.processes import is_alive
from ppwork.launcher.torchrun import running, torchrun
from ppwork.launcher.torchrun_watch import GRACE_S, ask_for_stacks
from ppwork.process import PAST_LIMIT, TORCHRUN_HUNG

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc

STUBBORN = """
import os, signal, sys, time
from pathlib import Path
ready = Path(sys.argv[1])
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.touch()
    time.sleep(60)
while not ready.exists():
    time.sleep(0.01)
sys.exit(7)
"""
LEAVES_EARLY = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(float(sys.argv[1]))
"""
STANDS_STILL = """
import os, signal, sys
from pathlib import Path
if os.environ["RANK"] == "1":
    Path(sys.argv[1]).touch()
    os.kill(os.getpid(), signal.SIGSTOP)
"""
HANGS = """
import faulthandler, os, signal, sys, time
from pathlib import Path
if os.environ["RANK"] == "1":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
def waits_for_nobody():
    Path(sys.argv[1]).touch()
    time.sleep(60)
waits_for_nobody()
"""


def run(tmp_path, source, *arguments, **options):
    program, log = tmp_path / "program.py", tmp_path / "torchrun.log"
    program.write_text(source)
    bounds = {"limit_s": END_S, "freeze_s": 5.0, **options}
    code = torchrun([str(program), *arguments], ranks=2, log=log, **bounds)
    return code, log.read_text()


def since(made: Path) -> float:
    """Seconds since a rank made a file: how long it took to start is not part of them."""
    return time.time() - made.stat().st_mtime


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    code, log = run(tmp_path, STUBBORN, str(tmp_path / "ready"))
    assert since(tmp_path / "ready") < 15.0, "torchrun alone waits 30 s"
    assert code == 1
    assert killed_by_us(log) == {1}


def test_a_rank_that_leaves_well_before_the_others_is_no_death(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code, log = run(tmp_path, LEAVES_EARLY, str(2.0 * GRACE_S))
    assert (code, killed_by_us(log)) == (0, set())
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("ppwork-runs-")]
    assert left == [], "torchrun leaves a folder behind in each run"


def test_a_rank_that_is_stopped_when_no_peer_is_left_to_tell_is_killed(tmp_path):
    """F14; torchrun alone waits for ever. Found by ``benchmarks/random_kills.py``."""
    code, log = run(tmp_path, STANDS_STILL, str(tmp_path / "stopped"), freeze_s=0.5)
    assert since(tmp_path / "stopped") < 15.0
    assert (code, killed_by_us(log)) == (1, {1})
    assert "stopped) did not go on for" in log


def test_only_ranks_that_handle_it_are_asked_for_their_stacks(tmp_path):
    """This process stands for torchrun; SIGUSR1 would end the rank that does not handle it."""
    ready, ranks = [tmp_path / f"ready{rank}" for rank in range(2)], []
    log = tmp_path / "log"
    try:
        for rank in range(2):
            with log.open("ab") as file:
                command = [sys.executable, "-c", HANGS, str(ready[rank])]
                ranks.append(subprocess.Popen(command, stderr=file, env={**os.environ, "RANK": str(rank)}))
        wait_for(lambda: all(file.exists() for file in ready))
        ask_for_stacks(psutil.Process())
        assert log.read_text().count("in waits_for_nobody") == 1
        assert [rank.poll() for rank in ranks] == [None, None]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


MEETS_AT_THE_PORT = """
import errno, os, socket
import torch.distributed as dist
if os.environ["RANK"] == "0":
    with socket.socket() as other:
        try:
            other.bind(("", int(os.environ["MASTER_PORT"])))
        except OSError as error:
            print("another process gets", errno.errorcode[error.errno], flush=True)
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def test_no_other_process_gets_the_port_that_rank_0_will_listen_on(tmp_path):
    """torchrun alone closes it again: a cell of a lesson met "address already in use"."""
    code, log = run(tmp_path, MEETS_AT_THE_PORT)
    assert (code, sorted(log.splitlines())) == (
        0,
        ["another process gets EADDRINUSE", "rank 0 of 2", "rank 1 of 2"],
    )


ENDS_CHILDREN = """
import os, subprocess, sys, psutil
from pathlib import Path
from ppwork.launcher.processes import end, family_of
from ppwork.launcher.torchrun_watch import TorchrunWatch
def start():
    command = ["sleep", "60"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "RANK": "1"})
children = [start()]
os.setuid(65534)
children += [start()]
print(*(child.pid for child in children), flush=True)
if sys.argv[1] == "end":
    end([psutil.Process(child.pid) for child in children], 0.0)
else:
    watch = TorchrunWatch(psutil.Process(), Path("/dev/null"), 5.0, lambda line: print(line, flush=True))
    for child in children:
        watch._kill({psutil.Process(child.pid): "was late"})
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
@pytest.mark.parametrize("way", ["end", "watch"])
def test_what_another_user_runs_saves_none_of_the_others(way):
    """As a child that `sudo` has started: AccessDenied ended the clean-up before it came to the others."""
    command = [sys.executable, "-c", ENDS_CHILDREN, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        try:
            lines = process.communicate(timeout=END_S)[0].splitlines()
            assert process.returncode == 0
            assert [is_alive(child) for child in children] == [True, False]
        finally:
            process.kill()
            for child in children:
                if child.is_running():
                    child.kill()
    if way == "watch":
        assert re.match(r"ppwork: rank \? \(pid \d+, \w+\) was late and could not be killed$", lines[0])
        assert killed_by_us("\n".join(lines)) == {1}


IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def test_ctrl_c_while_the_end_begins_leaves_no_process(tmp_path, monkeypatch):
    """It came while the family was looked up, and nobody was ended."""
    monkeypatch.setattr("ppwork.launcher.torchrun.family_of", lambda _: signal.raise_signal(signal.SIGINT))
    log = tmp_path / "log"
    command = [sys.executable, "-c", IGNORES_SIGTERM]
    with (
        pytest.raises(KeyboardInterrupt),
        log.open("wb") as file,
        running(command, dict(os.environ), file) as process,
    ):
        wait_for(log.read_text)
    assert process.returncode == -signal.SIGKILL


def test_a_program_past_its_limit_is_stopped(tmp_path):
    code, log = run(tmp_path, HANGS, str(tmp_path / "ready"), limit_s=1.0)
    assert code == PAST_LIMIT
    assert "passed its limit" in log


REMOVES_THE_STORE = """
import os, shutil, sys, time
from pathlib import Path
began, seen = map(Path, sys.argv[1:])
if os.environ["RANK"] == "1":
    began.touch()
else:
    end = time.monotonic() + 60
    while not seen.exists() and time.monotonic() < end:
        time.sleep(0.01)
    shutil.rmtree(Path(os.environ["PPWORK_STORE"]).parent)
"""
LEAVES_A_CHILD = """
import os, subprocess, sys
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(Path(sys.argv[1]) / os.environ["RANK"]).write_text(str(child.pid))
sys.exit(3)
"""


def test_torchrun_that_does_not_leave_after_its_ranks_is_ended(tmp_path, monkeypatch):
    """It waits for ever for a store that somebody removed, as one cleans /tmp."""
    monkeypatch.setattr("ppwork.launcher.torchrun.LEAVE_S", 1.0)
    began, seen = tmp_path / "began", tmp_path / "seen"
    looks = itertools.count()

    def watch() -> None:
        # torchrun has started both ranks, whose logs are in that folder, too; and the launcher, which looks
        # each time after this, has seen that there are ranks.
        if began.exists() and next(looks):
            seen.touch()

    code, log = run(tmp_path, REMOVES_THE_STORE, str(began), str(seen), watch=watch)
    assert code == TORCHRUN_HUNG
    assert "torchrun did not leave after its ranks" in log


def test_children_of_a_program_do_not_outlive_its_failure(tmp_path):
    code, _ = run(tmp_path, LEAVES_A_CHILD, str(tmp_path))
    assert code == 1
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2) if (tmp_path / str(rank)).exists()]
    assert pids
    assert [pid for pid in pids if psutil.pid_exists(pid) and is_alive(psutil.Process(pid))] == []
