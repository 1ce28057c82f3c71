"""One caller of the transport for each rank (F22): the second is refused and nothing has changed."""

import threading
from types import SimpleNamespace

import pytest

from ppwork.envelope import PPAction
from ppwork.errors import LocalProtocolError
from ppwork.plan import Plan
from ppwork.plane import Plane
from ppwork.stage0_end import Stage0End
from ppwork.states import State
from ppwork.timeline import Recorder
from ppwork.topology import Role, Topology


@pytest.fixture
def plane(monkeypatch):
    """Rank 0's end with no lane behind it."""
    import torch

    plan = Plan(mesh_size=1)
    topology = SimpleNamespace(links=lambda rank: ())
    groups = SimpleNamespace(
        rank=0, role=Role.STAGE0, topology=topology, device=torch.device("cpu"), timeout_s=1
    )
    monkeypatch.setattr("ppwork.stage0_end.Sender", lambda *args: None)
    monkeypatch.setattr("ppwork.stage0_end.Receiver", lambda *args: None)
    assert Topology(1).role(0) is groups.role
    return Stage0End(plan, groups, Recorder(None))


def in_another_thread(call):
    caught = []

    def run():
        try:
            call()
        except LocalProtocolError as error:
            caught.append(error)

    thread = threading.Thread(target=run, name="second")
    thread.start()
    thread.join()
    return caught


def test_another_thread_is_refused_with_both_names_and_the_first_goes_on(plane):
    plane._only("send", Role.STAGE0)
    before = (plane.session.state, plane.session.last_ids)
    (error,) = in_another_thread(lambda: plane.send({}))
    assert "send was called by thread 'second'" in error.what
    assert f"thread '{threading.current_thread().name}' made the first call" in error.what
    assert error.where == {"rank": 0, "role": "stage0"}
    assert (plane.session.state, plane.session.last_ids) == before
    plane._only("send", Role.STAGE0)


@pytest.mark.parametrize(
    "name", ["heartbeat", "receive_result", "await_result", "release_result", "shutdown"]
)
def test_every_call_of_rank_zero_is_guarded(plane, name):
    plane._only("send", Role.STAGE0)
    assert len(in_another_thread(getattr(plane, name))) == 1
    assert plane.session.next_ids(PPAction.NOOP).call_id == 0


def test_failing_is_open_to_every_thread(plane):
    """Whoever finds the fault may say so: a watchdog, or the end of a ``with`` block elsewhere."""
    plane._only("send", Role.STAGE0)
    plane._told = True  # no lane here that could carry the notice
    assert in_another_thread(lambda: plane.fail(ValueError("x"))) == []
    assert plane.session.state is State.ERROR


def test_whoever_comes_first_is_the_caller(plane):
    assert in_another_thread(lambda: plane._only("send", Role.STAGE0)) == []
    with pytest.raises(LocalProtocolError, match="thread 'second' made the first call"):
        plane._only("send", Role.STAGE0)


def test_a_wrong_role_is_still_refused(plane):
    with pytest.raises(LocalProtocolError, match="only leader and follower may"):
        Plane._only(plane, "receive", Role.LEADER, Role.FOLLOWER)
