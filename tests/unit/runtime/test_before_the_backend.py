"""Guards that stand before a backend is called, without one: group, preflight, bound of a lane, notices."""

import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ppwork.errors import (
    LocalProtocolError,
    PeerLostError,
    PeerTimeoutError,
    PlanError,
    PPWorkError,
    StageError,
    TerminalNotice,
)
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.notices import notice_of, notices
from ppwork.protocol.topology import Role, Topology
from ppwork.records.failure import source_of
from ppwork.records.spans import Recorder
from ppwork.runtime import PPControlPlane
from ppwork.runtime.groups import Groups
from ppwork.runtime.lanes import Lane, result_of
from ppwork.runtime.messages import Preflight, limits_of
from ppwork.runtime.stage0 import Stage0Plane
from ppwork.worker.backend_wait import tell_of_handles
from ppwork.worker.collectives import OnlyGroup, counting, keep
from ppwork.worker.stage_code import StageCode
from ppwork.worker.tally import Tally


@pytest.fixture
def groups():
    tp, mesh = object(), object()
    handles = {"tp_pg": tp, "mesh_pg": mesh}

    class Fake(SimpleNamespace):
        def __getitem__(self, name):
            return handles[name]

    return Fake(
        rank=1,
        role=Role.LEADER,
        handles=lambda: handles,
        device=torch.device("cpu"),
        topology=SimpleNamespace(links=lambda rank: ("down_pg", "up_pg")),
        timeout_s=1.0,
    )


CALLS = {
    "all_reduce": lambda group: dist.all_reduce(torch.ones(1), group=group),
    "broadcast": lambda group: dist.broadcast(torch.ones(1), group=group, group_src=0),
    "all_gather": lambda group: dist.all_gather([torch.ones(1)], torch.ones(1), group=group),
    "barrier": lambda group: dist.barrier(group=group),
}


# With no group given, some calls look the default one up first: in a run they then meet the guard with it.
@pytest.mark.parametrize(
    ("call", "group"), [("all_reduce", None), ("all_gather", None), *((call, "mesh_pg") for call in CALLS)]
)
def test_stage_code_on_another_group_is_refused_whatever_it_calls(groups, call, group):
    """F08 and R6: there is no process group in this process at all, so nothing was asked of a backend."""
    said = group or "the default group (world_pg)"
    with OnlyGroup(groups, "tp_pg"), pytest.raises(LocalProtocolError) as caught:
        CALLS[call](group and groups[group])
    assert f"Stage code called {call} on {said}; inside stage 1 only tp_pg may be used" in caught.value.what
    assert caught.value.where == {"rank": 1, "role": "leader", "group": "tp_pg"}


def test_an_error_names_the_method_that_raised_and_not_the_step_that_it_was_part_of(groups):
    def generate():
        with StageCode("generate", None, groups, {"chunk_index": 3}) as code:
            code.entering("reset_cache")
            error = ValueError("no cache")
            error.add_note("It was never made")
            raise error

    with pytest.raises(StageError, match="The stage's reset_cache raised ValueError: no cache") as caught:
        generate()
    assert caught.value.where == {"chunk_index": 3}
    assert caught.value.check_first.startswith("It was never made; its traceback")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("[/w/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:403", PeerLostError),
        ("[/w/gloo/buffer.cc:81] Timed out waiting 3000ms for recv operation to complete", PeerTimeoutError),
        ("[/w/gloo/pair.cc:446] op.preamble.length <= op.nbytes. 512 vs 256", StageError),
        ("the camera timed out", StageError),  # no backend said that
    ],
)
def test_a_peer_that_a_stages_own_call_lost_is_told_as_that_and_with_its_line(groups, said, kind):
    """A lost peer read "the stage's step raised RuntimeError", as if the stage were to blame."""

    def step():
        with StageCode("step", None, groups, {"chunk_index": 3}):
            raise RuntimeError(said)

    with pytest.raises(PPWorkError) as caught:
        step()
    line = f"{__file__}:{step.__code__.co_firstlineno + 2}"
    assert type(caught.value) is kind
    assert (f"the stage's step at {line}: " in caught.value.what) == (kind is not StageError)
    assert source_of(caught.value) == line
    assert caught.value.where["chunk_index"] == 3
    assert (caught.value.where.get("rank") == 1) == (kind is not StageError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_what_code_of_a_stage_raises_is_its_error_whatever_its_kind(groups, kind):
    """It was told as a Ctrl-C, or without step and chunk."""

    def encode():
        with StageCode("encode", None, groups, {"chunk_index": 4}):
            raise kind

    with pytest.raises(BaseException, match="raised") as caught:  # else it would end the tests, too
        encode()
    assert type(caught.value) is StageError
    assert caught.value.what == f"The stage's encode raised {kind.__name__}"
    assert caught.value.where == {"chunk_index": 4}
    assert source_of(caught.value) == f"{__file__}:{encode.__code__.co_firstlineno + 2}"


def test_a_ctrl_c_in_the_midst_of_a_stage_is_no_error_of_the_stage(groups):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), StageCode("encode", None, groups, {"chunk_index": 4}):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_group_that_a_pipeline_has_not_got_is_refused_with_those_that_it_has():
    groups = Groups(Topology(2), 1, torch.device("cpu"), 1.0, None, {"mesh_pg": object(), "tp_pg": object()})
    with pytest.raises(
        LocalProtocolError, match="the group 'tp'; a pipeline has mesh_pg and tp_pg"
    ) as caught:
        groups["tp"]
    assert caught.value.where == {"rank": 1, "role": "leader"}
    assert "is tp_pg" in caught.value.check_first


def test_nobody_makes_a_group_in_stage_code_and_stage_0_uses_none(groups):
    """The others do something else now, so it would end at the time-out, and rank 0 be blamed."""
    with (
        OnlyGroup(groups, "tp_pg"),
        pytest.raises(LocalProtocolError, match="make a process group") as caught,
    ):
        dist.distributed_c10d._process_group_name([1, 2], use_hashed_name=False)
    assert "context.tp.device_mesh" in caught.value.check_first
    with OnlyGroup(groups, None), pytest.raises(LocalProtocolError, match="inside stage 0 none may be used"):
        dist.all_reduce(torch.ones(1), group=groups["tp_pg"])


@pytest.fixture
def jobs_group():
    """A default group of this one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    keep(None)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_nobody_destroys_the_groups_of_a_pipeline_that_it_is_in(jobs_group):
    """It went on, and nothing was said: as long as the links were up already."""
    groups = Groups(
        Topology(1), 1, torch.device("cpu"), 1.0, None, {"world_pg": jobs_group, "tp_pg": jobs_group}
    )
    own = dist.new_group([0])
    with (
        OnlyGroup(groups, "tp_pg"),
        pytest.raises(LocalProtocolError, match="Stage code was about to destroy"),
    ):
        dist.destroy_process_group(own)
    keep(groups)
    with pytest.raises(LocalProtocolError, match="The loop was about to destroy process groups") as caught:
        dist.destroy_process_group()
    assert caught.value.where == {"rank": 1, "role": "leader"}
    assert dist.is_initialized()
    dist.destroy_process_group(own)  # the job's
    with suppress(ValueError), ExitStack() as on_the_way_out:
        on_the_way_out.callback(dist.destroy_process_group)
        int("no number")
    assert not dist.is_initialized()


@pytest.fixture
def chunk(jobs_group, caplog):
    """Let stage code run as a chunk of this one process, and return what the log says of it."""
    groups = Groups(
        Topology(1), 1, torch.device("cpu"), 1.0, None, {"world_pg": jobs_group, "tp_pg": jobs_group}
    )
    tally, infer = Tally(1, "leader", 0), PPEnvelope(PPAction.INFER, Ids(4, 3, 0), ChunkPlan.of(1))

    def run(step):
        caplog.clear()
        with OnlyGroup(groups, "tp_pg"), counting(groups, tally, infer):
            step(jobs_group)
        tell_of_handles(infer.ids, Recorder(None))
        return [record.getMessage() for record in caplog.records]

    return run


def test_a_handle_that_is_let_go_before_anybody_waited_for_it_is_told_of_once(chunk):
    """The run ended well, and its sums were used before they were there."""

    def step(group):
        dist.all_reduce(torch.ones(4), group=group, async_op=True)

    (warning,) = chunk(step)
    line = step.__code__.co_firstlineno + 1
    assert warning.startswith("by chunk 3 this rank let go of a handle that nobody had waited for")
    assert f"test_before_the_backend.py:{line}: dist.all_reduce(" in warning
    assert not chunk(step), "of one line it is said once"


def test_a_handle_that_is_kept_may_be_waited_for_in_a_later_chunk(chunk):
    works = []
    assert not chunk(lambda group: works.append(dist.all_reduce(torch.ones(4), group=group, async_op=True)))
    assert not chunk(lambda _: works[0].wait())
    works.clear()
    assert not chunk(lambda group: works.append(dist.broadcast(torch.ones(4), 0, group, async_op=True)))
    assert len(chunk(lambda _: works.clear())) == 1


@pytest.mark.parametrize("asked", ["wait", "get_future", "synchronize", "is_completed"])
def test_a_handle_that_was_asked_and_a_call_without_one_are_not_told_of(chunk, asked):
    def step(group):
        dist.all_reduce(torch.ones(4), group=group)
        work = dist.broadcast(torch.ones(4), 0, group=group, async_op=True)
        while getattr(work, asked)() is False:
            pass

    assert not chunk(step)


def test_a_handle_of_the_jobs_own_group_is_its_own_business(chunk, jobs_group):
    own = dist.new_group([0])
    with suppress(LocalProtocolError):
        chunk(lambda _: dist.all_reduce(torch.ones(4), group=own, async_op=True))
    dist.all_reduce(torch.ones(4), async_op=True)
    assert not chunk(lambda _: None)


def test_another_thread_and_a_rank_that_has_left_may_destroy_them(jobs_group):
    """The plane itself does, on a thread of its own."""
    keep(Groups(Topology(1), 1, torch.device("cpu"), 1.0, None, {"world_pg": jobs_group}))
    thread = threading.Thread(target=dist.destroy_process_group)
    thread.start()
    thread.join()
    assert not dist.is_initialized()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    keep(None)
    dist.destroy_process_group()


def test_a_tensor_whose_class_does_not_travel_is_told_of_once(caplog):
    class Frame(torch.Tensor):
        """Knows more than its numbers."""

    preflight = Preflight(limits_of(Plan(mesh_size=1)), torch.device("cpu"))
    x = torch.ones(2)
    for k in range(3):
        tensors = {"x": x.as_subclass(Frame), "w": torch.nn.Parameter(x), "g": x.clone().requires_grad_()}
        preflight(PPResult(PPAction.INFER, Ids(k, k, 0), 1, tensors=tensors if k else {"x": x}))
    (record,) = caplog.records
    said = "the tensor 'x' of chunk 1 is a Frame, and arrives as a plain tensor (said once for each Frame)"
    assert record.getMessage() == said


def test_other_threads_and_what_comes_after_the_stage_are_left_alone(groups):
    """The lanes use the other groups at the same time."""
    others = []

    def lane():
        try:
            dist.all_reduce(torch.ones(1))
        except Exception as error:  # noqa: BLE001  whatever torch says without a group
            others.append(error)

    with OnlyGroup(groups, "tp_pg"):
        thread = threading.Thread(target=lane)
        thread.start()
        thread.join()
    lane()
    assert len(others) == 2
    assert not any(isinstance(error, LocalProtocolError) for error in others)


def test_what_cannot_travel_is_refused_before_the_commitment_point(groups, monkeypatch):
    """F02 and R1: no send was recorded, none is on a lane, and the ids are still to be used."""
    monkeypatch.setattr("ppwork.runtime.stage0.P2PSender", lambda *args: None)
    monkeypatch.setattr("ppwork.runtime.stage0.P2PReceiver", lambda *args: None)
    passed = []
    groups.rank, groups.role = 0, Role.STAGE0
    plane = Stage0Plane(
        Plan(mesh_size=1), groups, Recorder(None), hook=lambda point, ids: passed.append(point)
    )
    with pytest.raises(LocalProtocolError, match="'x' had layout") as caught:
        plane.send({"x": torch.eye(3).to_sparse()})
    assert caught.value.where == {
        "rank": 0,
        "role": "stage0",
        "call_id": 0,
        "chunk_index": 0,
        "cache_epoch": 0,
    }
    assert passed == []
    assert plane.recorder.last_instants() == {}
    assert plane.session.next_ids(PPAction.INFER) == Ids(0, 0, 0)
    assert not plane.sending


def test_a_job_that_does_not_end_is_given_up_at_its_bound():
    """R12."""
    lane, free = Lane("down_pg", torch.device("cpu")), threading.Event()
    try:
        job = lane.submit(free.wait)
        with pytest.raises(PeerTimeoutError, match=r"The send did not end within 0\.05 s") as caught:
            result_of(job, 0.05, what="send", group="down_pg", peer=1)
        assert caught.value.where == {"group": "down_pg", "peer": 1}
    finally:
        free.set()
        assert lane.close(5.0)


@pytest.mark.parametrize(
    ("role", "groups_told"),
    [(Role.STAGE0, ["down_pg"]), (Role.LEADER, ["up_pg", "mesh_pg"]), (Role.FOLLOWER, [])],
)
def test_whoever_fails_tells_all_that_listen_to_it(role, groups_told):
    """F07: down to the mesh, up to rank 0; a follower has nobody, and a notice is not answered."""
    where = {"rank": 1, "role": "leader", "chunk_index": 2}
    told = notices(role, Ids(3, 2, 0), ValueError("why"), where)
    assert [name for name, _ in told] == groups_told
    for _, message in told:
        assert message.action is PPAction.ERROR
        assert message.reason is not None
        assert "why" in message.reason.what
        heard = notice_of(message.reason, 0, Role.STAGE0)
        assert "by a peer (rank=1 role=leader chunk_index=2): ValueError: why" in heard.what
        assert heard.where == {"rank": 0, "role": "stage0", "peer": 1}
    assert notices(role, Ids(3, 2, 0), TerminalNotice("heard"), where) == []


def test_a_process_that_was_started_by_hand_is_told_which_variable_it_has_not_got(monkeypatch):
    """It was a ValueError of torch's."""
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_PORT", "PPWORK_STORE", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PlanError, match=r"say where rank 0 listens: KeyError.'MASTER_PORT'"):
        PPControlPlane.join(Plan(mesh_size=1, backend="gloo"))


def test_a_process_that_torchrun_has_not_started_says_so(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(PlanError, match="no RANK: torchrun has not started") as caught:
        PPControlPlane.join(Plan(mesh_size=2))
    assert "torchrun --standalone" in caught.value.check_first


@pytest.mark.processes
def test_to_see_collectives_does_not_import_the_compiler():
    """It is 800 modules, in the first chunk: a rank with a short ``stall_s`` was ended for it."""
    program = (
        "import sys, torch\n"
        "from ppwork.worker.collectives import seeing\n"
        "with seeing(None, None): torch.ones(3) + 1\n"
        "sys.exit('torch._dynamo.convert_frame' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=100).returncode == 0
