"""One caller of the transport for each rank (F22): the second is refused and nothing has changed."""

import threading
from types import SimpleNamespace

import pytest
import torch

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import PPAction
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.states import State
from ppwork.protocol.topology import Role, Topology
from ppwork.runtime import PPControlPlane, Stage0Plane


@pytest.fixture
def plane(monkeypatch):
    """Rank 0's end with no link behind its lanes."""
    plan = PipelinePlan(mesh_size=1)
    topology = SimpleNamespace(links=lambda rank: ("down_pg", "up_pg"))
    groups = SimpleNamespace(
        rank=0, role=Role.STAGE0, topology=topology, device=torch.device("cpu"), timeout_s=1
    )
    monkeypatch.setattr("ppwork.runtime.stage0.P2PSender", lambda *args: None)
    monkeypatch.setattr("ppwork.runtime.stage0.P2PReceiver", lambda *args: None)
    assert Topology(1).role(0) is groups.role
    made = PPControlPlane.join(plan, groups=groups)
    assert type(made) is Stage0Plane
    return made


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
    plane._one_caller("send")
    before = (plane.session.state, plane.session.last_ids)
    (error,) = in_another_thread(lambda: plane.send({}))
    assert "send was called by thread 'second'" in error.what
    assert f"thread '{threading.current_thread().name}' made the first call" in error.what
    assert error.where == {"rank": 0, "role": "stage0"}
    assert (plane.session.state, plane.session.last_ids) == before
    plane._one_caller("send")


@pytest.mark.parametrize(
    "name", ["heartbeat", "receive_result", "await_result", "release_result", "shutdown"]
)
def test_every_call_of_rank_zero_is_guarded(plane, name):
    plane._one_caller("send")
    assert len(in_another_thread(getattr(plane, name))) == 1
    assert plane.session.next_ids(PPAction.NOOP).call_id == 0


def test_failing_is_open_to_every_thread(plane):
    """Whoever finds the fault may say so: a watchdog, or the end of a ``with`` block elsewhere."""
    plane._one_caller("send")
    assert in_another_thread(lambda: plane.fail(ValueError("x"))) == []
    assert plane.session.state is State.ERROR


def test_whoever_comes_first_is_the_caller(plane):
    assert in_another_thread(lambda: plane._one_caller("send")) == []
    with pytest.raises(LocalProtocolError, match="thread 'second' made the first call"):
        plane._one_caller("send")


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("receive", "leader and follower"),
        ("computed", "leader and follower"),
        ("acknowledge", "leader and follower"),
        ("send_result", "leader"),
    ],
)
def test_a_call_of_another_role_is_missing_and_says_whose_it_is(plane, name, roles):
    with pytest.raises(
        LocalProtocolError, match=f"{name} was called on the stage0; only {roles} may"
    ) as caught:
        getattr(plane, name)
    assert "Stage0Plane or a MeshPlane" in caught.value.check_first


def left_after(plane, drive):
    """The error of a block that ends behind a function of the loop, and the only line of that function."""
    plane.session.state = State.READY
    drive()
    with pytest.raises(LocalProtocolError, match="The block was left without") as left:
        plane.__exit__(None, None, None)
    return left.value, drive.__code__.co_firstlineno + 1


def test_a_block_that_is_left_early_names_the_last_call_and_the_function_that_went_on(plane):
    """Its line was that of the `with`, which says nothing of where `drive` returned."""

    def drive():
        plane.release_result()

    left, line = left_after(plane, drive)
    assert left.source == f"{__file__}:{line}"
    assert left.check_first == (
        f"is `shutdown()` missing? or what leaves `drive` after its `release_result` in line {line} and "
        "before it: a `return`, a `break`?"
    )


def test_a_function_that_ends_early_is_named_and_not_its_helper_that_made_the_last_call(plane):
    """Its helper had ended well, and was told to look for a `return`."""

    def encode():
        plane.release_result()

    def drive():
        encode()

    left, line = left_after(plane, drive)
    assert left.source == f"{__file__}:{line}"
    asked = f"is `shutdown()` missing? or what leaves `drive` after its `encode` in line {line} and before it"
    assert left.check_first.startswith(asked)


def test_who_asks_whether_there_is_a_call_of_another_role_is_told_that_there_is_none(plane):
    """Mocks, completion and loops that look first ask by ``hasattr`` and by ``getattr`` with a default."""
    assert not hasattr(plane, "reply")
    assert getattr(plane, "send_result", None) is None
    assert plane.session.state is State.READY


@pytest.mark.parametrize("steps", [0, -1])
def test_a_number_of_steps_that_is_none_is_refused_and_not_taken_for_the_plans(plane, steps):
    with pytest.raises(LocalProtocolError, match=f"had {steps} denoise steps; 1..") as caught:
        plane.send({"x": torch.ones(1)}, steps=steps)
    assert caught.value.where["rank"] == 0
    assert not plane.session.in_flight


def test_a_call_that_nobody_has_is_an_ordinary_missing_attribute(plane):
    assert not hasattr(plane, "reveice")


def test_a_rank_that_fails_leaves_its_record_before_the_peers_hear_of_it(plane, monkeypatch):
    """The first peer to leave makes torchrun end this rank, too: afterwards would be too late."""
    order = []
    plane._on_failure = lambda error: order.append(("record", str(error), plane.session.state))
    plane._stop_ahead = lambda: order.append("peers")
    plane.fail(ValueError("first"))
    plane.fail(ValueError("second"))
    assert order == [("record", "first", State.ERROR), "peers"]


def test_the_peers_are_told_even_if_the_record_cannot_be_made(plane):
    def broken(error):
        raise OSError("no disk")

    told = []
    plane._on_failure, plane._stop_ahead = broken, lambda: told.append("peers")
    plane.fail(ValueError("the cause"))
    assert told == ["peers"]
