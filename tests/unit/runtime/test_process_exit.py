"""The way out of a plane: bounded where torch's own steps are not, and hard where a destructor could wait."""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from ppwork.errors import LocalProtocolError, PeerTimeoutError
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.session import State
from ppwork.protocol.topology import Role, Topology
from ppwork.runtime import PPControlPlane, plane, process_exit


class Groups(SimpleNamespace):
    """A rank's groups that need no peer; ``close`` waits until it is let go."""

    rank, role, topology, timeout_s = 0, Role.STAGE0, Topology(1), 10.0

    def __init__(self, device="cpu"):
        super().__init__(device=torch.device(device), may_close=threading.Event(), closed=threading.Event())

    def close(self):
        assert self.may_close.wait(30.0)
        self.closed.set()


@pytest.fixture
def registered(monkeypatch):
    """What was registered to run at the end of the process."""
    found = []
    monkeypatch.setattr(atexit, "register", found.append)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    for end in ("P2PSender", "P2PReceiver"):
        link = SimpleNamespace(close=lambda: None)
        monkeypatch.setattr(f"ppwork.runtime.stage0.{end}", lambda *args, link=link: link)
    return found


@pytest.fixture
def no_patience(monkeypatch):
    """Shorten the bound of the way out."""
    monkeypatch.setattr(PPControlPlane, "_patience_s", 0.3)


def made(groups, monkeypatch):
    monkeypatch.setattr(plane, "CudaLinks", lambda *args: None)
    # Lanes without a device of their own: CUDA's would be set on their threads.
    lane = plane.Lane
    monkeypatch.setattr(plane, "Lane", lambda name, device, **more: lane(name, torch.device("cpu"), **more))
    rank0 = PPControlPlane.join(PipelinePlan(mesh_size=1), groups=groups)
    rank0.session.state = State.CLOSED  # as after SHUTDOWN: there is no peer to say it to
    return rank0


def test_a_hard_exit_loses_nothing_that_was_written_to_a_file(tmp_path, monkeypatch):
    """A loop's report was empty after a forgotten `shutdown()`, though all results had come back."""
    codes = []
    monkeypatch.setattr("os._exit", codes.append)
    paths = [tmp_path / name for name in ("report", "data", "closed")]
    paths[2].touch()
    with paths[2].open() as closed:
        pass
    assert closed.closed
    reader, writer = os.pipe()
    with paths[0].open("w") as report, paths[1].open("wb") as data, os.fdopen(writer, "w") as pipe:
        report.write("forty results")
        data.write(b"all of it")
        pipe.write("held")
        process_exit.leave_hard()
        assert [path.read_bytes() for path in paths[:2]] == [b"forty results", b"all of it"]
        assert select.select([reader], [], [], 0)[0] == []  # a pipe that nobody reads could hold it up
    os.close(reader)
    assert codes == [1]


def test_groups_that_do_not_end_are_left_behind_with_an_error(registered, no_patience, monkeypatch):
    groups = Groups()
    with pytest.raises(PeerTimeoutError, match="destruction of the groups did not end") as late:  # noqa: SIM117
        with made(groups, monkeypatch):
            pass
    assert late.value.where == {"rank": 0, "role": "stage0", "group": "world_pg"}
    assert registered == [process_exit.leave_hard]
    assert sys.excepthook._ppwork
    groups.may_close.set()


def test_sys_exit_before_the_end_is_no_good_end_and_one_with_a_code_stays_as_it_is(registered, monkeypatch):
    """Else this rank would leave with code 0, and its peers be the ones that failed."""
    said = r"The block was left by sys.exit without `shutdown\(\)`, before any chunk\."
    for code, kind in ((0, LocalProtocolError), (3, SystemExit)):
        rank0 = made(Groups(), monkeypatch)
        rank0.session.state = State.READY
        with pytest.raises(kind, match=said if code == 0 else "3") as left, rank0:
            raise SystemExit(code)
        assert code or isinstance(left.value.__cause__, SystemExit)


def test_a_device_that_never_ends_its_work_is_left_behind_with_an_error(registered, no_patience, monkeypatch):
    """A peer may be gone by then, and CUDA waits for its part for ever."""
    groups, let_go = Groups(), threading.Event()
    groups.may_close.set()
    with pytest.raises(PeerTimeoutError, match="work on the device did not end"):  # noqa: SIM117
        with made(groups, monkeypatch) as rank0:
            rank0.device = SimpleNamespace(spans=SimpleNamespace(flush=lambda: let_go.wait(5.0)))
    assert not groups.closed.is_set()
    assert registered == [process_exit.leave_hard]
    let_go.set()


def test_a_lane_that_is_late_on_a_busy_machine_spoils_no_good_end(registered, monkeypatch):
    """It had as long as a notice has, 1 s, though a slow disk alone may take that for its spans."""
    monkeypatch.setattr(plane, "NOTICE_TIMEOUT_S", 0.1)
    groups, let_go = Groups(), threading.Event()
    groups.may_close.set()
    threading.Timer(0.5, let_go.set).start()
    with made(groups, monkeypatch) as rank0:
        rank0._lanes["down_pg"].submit(lambda: let_go.wait(30.0))
    assert groups.closed.is_set()
    assert registered == []


def test_groups_are_not_destroyed_under_a_lane_that_still_works(registered, no_patience, monkeypatch):
    groups, let_go = Groups(), threading.Event()
    groups.may_close.set()
    with pytest.raises(PeerTimeoutError, match="lane of up_pg did not stop") as late:  # noqa: SIM117
        with made(groups, monkeypatch) as rank0:
            rank0._lanes["up_pg"].submit(lambda: let_go.wait(30.0))
    assert late.value.where == {"rank": 0, "role": "stage0", "group": "up_pg"}
    assert not groups.closed.is_set()
    assert registered == [process_exit.leave_hard]
    let_go.set()


def test_a_good_end_destroys_the_groups_and_ends_as_python_does(registered, monkeypatch):
    groups = Groups()
    groups.may_close.set()
    with made(groups, monkeypatch):
        pass
    assert groups.closed.is_set()
    assert registered == []


@pytest.mark.parametrize(("device", "hard"), [("cuda", [process_exit.leave_hard]), ("cpu", [])])
def test_after_an_error_that_is_caught_only_cuda_leaves_hard(registered, monkeypatch, device, hard):
    rank0 = made(Groups(device), monkeypatch)
    monkeypatch.setattr(rank0, "fail", lambda error: None)
    with pytest.raises(ValueError, match="mine") as mine, rank0:
        raise ValueError("mine")
    assert registered == hard
    sys.excepthook(mine.type, mine.value, None)  # as where nobody catches it
    assert registered == [*hard, process_exit.leave_hard_last]


PROGRAM = """
import atexit, logging.handlers
atexit.register(print, "registered before")
from ppwork.runtime.process_exit import leave_hard_if_uncaught

class Group:
    def __del__(self):
        print("destroyed")

kept = Group()
logging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=logging.StreamHandler()))
logging.getLogger().warning("logged")
leave_hard_if_uncaught()
atexit.register(print, "registered after")
try:
    raise ValueError("mine")
finally:
    print("finally")
"""


@pytest.mark.processes
def test_what_nobody_caught_ends_hard_behind_all_that_was_to_be_done_and_runs_no_destructor():
    """A lane that gloo wakes while Python takes its modules apart aborts the process; torchrun blames it."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert done.stderr.strip().endswith("logged")
    assert done.stdout == "finally\nregistered after\nregistered before\n"
