"""F21: a store that cannot serve this job is refused at start-up, with the remedy."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ppwork.errors import ParityError, PeerTimeoutError, PlanError, RemoteProtocolError
from ppwork.protocol.plan import SECRET_VARIABLE, STORE_VARIABLE, PipelinePlan
from ppwork.runtime import groups, membership
from ppwork.runtime.groups import join
from ppwork.runtime.membership import Membership, open_store
from ppwork.runtime.process_exit import leave_hard


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    """What a process remembers of its sessions; one that starts has none."""
    for name in ("_stores", "_sessions", "_open"):
        monkeypatch.setattr(membership, name, {})


def seated(rank, size):
    return Membership(rank, size, tuple(range(size)), rank)


def test_a_store_file_that_another_run_left_is_refused(tmp_path, monkeypatch):
    """Old keys must not be taken for those of ranks that are still to come."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    left = [open_store(seated(rank, 2), 0, 1.0) for rank in range(2)]
    left[0].set("parity/1", "of a rank that crashed")
    for rank in range(2):
        with pytest.raises(PlanError) as refused:
            open_store(seated(rank, 2), 0, 1.0)
        assert str(tmp_path / "store") in refused.value.what
        assert STORE_VARIABLE in refused.value.check_first
        assert refused.value.where == {"rank": rank}


def test_of_two_processes_with_one_rank_that_come_at_once_one_is_refused(tmp_path, monkeypatch):
    """Both looked before either had said that it came."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    open_store(seated(0, 2), 0, 5.0)  # this process's connection, for both
    met = threading.Barrier(2, timeout=10.0)
    check = dist.PrefixStore.check

    def looked(store, keys):
        found = check(store, keys)
        if keys == ["came/1"]:
            met.wait()
        return found

    monkeypatch.setattr(dist.PrefixStore, "check", looked)
    with ThreadPoolExecutor(2) as both:
        came = [both.submit(open_store, seated(1, 2), 0, 5.0) for _ in range(2)]
    refused = [error for future in came if (error := future.exception()) is not None]
    assert [type(error) for error in refused] == [PlanError]


def test_all_ranks_together_have_one_bound_at_start_up():
    """Ranks that come one after another had it each: four of them, four times as long."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=1.0))

    def come(rank):
        if not stop.wait(0.7 * rank):
            store.set(f"parity/{rank}", "late")

    stop = threading.Event()
    with ThreadPoolExecutor(3) as others:
        for rank in (1, 2, 3):
            others.submit(come, rank)
        begin_s = time.monotonic()
        with pytest.raises(PeerTimeoutError, match="Ranks 2 and 3 did not come to `join`") as late:
            membership.gather(store, "parity", b"here", 0, 4)
        assert time.monotonic() - begin_s < 1.4
        assert late.value.where == {"rank": 0, "peer": 2}
        stop.set()


def test_a_signature_is_over_bytes():
    """Two that are no text were signed as one."""
    assert groups.sign(b"s" * 64, 1, b"\xff")[:128] != groups.sign(b"s" * 64, 1, b"\xfe")[:128]


def test_a_store_whose_folder_is_gone_is_named_at_once(tmp_path, monkeypatch):
    """torch alone tries for five minutes to open the file, with Python's lock held: no watchdog could run."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "removed" / "store"))
    with pytest.raises(PlanError, match=r"store, .*removed/store, is not there") as refused:
        open_store(seated(1, 2), 0, 1.0)
    assert refused.value.where == {"rank": 1}


def test_a_restarted_attempt_has_keys_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    open_store(seated(0, 1), 0, 1.0).set("parity/0", "of the attempt before")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not open_store(seated(0, 1), 0, 1.0).check(["parity/0"])


@pytest.mark.parametrize(("rank", "error"), [(0, PlanError), (1, PeerTimeoutError)])
def test_a_port_that_somebody_else_has_is_named_with_the_remedy(monkeypatch, rank, error):
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if rank == 0:
            other.listen()
        port = str(other.getsockname()[1])
        for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(error) as refused:
            open_store(seated(rank, 2), 0, 1.0)
    assert port in refused.value.what
    assert port in refused.value.check_first
    assert refused.value.where["rank"] == rank


@pytest.mark.parametrize("depth", [1, 2])
def test_what_blocks_the_host_is_refused_on_all_ranks_where_chunks_overlap(tmp_path, monkeypatch, depth):
    """F21: it would be a deadlock in mid-run, and everybody sets it to find a CUDA error."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(groups, "pick_device", lambda *args: torch.device("cuda", 0))
    monkeypatch.setattr(groups, "versions_of", lambda device: {"version.nccl": "(2, 27, 5)"})
    at_exit = []
    monkeypatch.setattr(groups, "leave_hard_if_uncaught", lambda: None)
    monkeypatch.setattr(groups.atexit, "register", at_exit.append)

    class Reached(Exception):
        """The groups were about to be made."""

    def reached(*args, **kwargs):
        raise Reached

    monkeypatch.setattr(groups.dist, "init_process_group", reached)
    plan = PipelinePlan(mesh_size=2, in_flight_depth=depth)

    def come(rank):
        with pytest.raises(PlanError if depth > 1 else Reached) as refused:
            join(plan, seated(rank, 3))
        return refused.value

    with ThreadPoolExecutor(3) as ranks:
        refusals = list(ranks.map(come, range(3)))
    if depth > 1:
        assert {refusal.what for refusal in refusals} == {
            "At depth 2 the ranks could wait for each other: "
            "CUDA_LAUNCH_BLOCKING=1: every launch waits for its end."
        }
        assert [refusal.where["rank"] for refusal in refusals] == [0, 1, 2]
        assert "in_flight_depth 1 (--depth)" in refusals[0].check_first
    # NCCL's groups of a failed start stay open, and their destructors may wait: the process leaves hard.
    assert at_exit == ([] if depth > 1 else [leave_hard] * 3)


# The membership


@pytest.fixture
def torchrun(monkeypatch):
    for name, value in {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)


def test_a_rank_of_a_pipeline_counts_from_its_first_rank_in_the_job(torchrun):
    here = Membership.here([1, 4, 5])
    assert (here.rank, here.world_size, here.job_rank, here.local_rank) == (1, 3, 4, 0)
    assert Membership.here().rank == 4


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([4, 3], "The pipeline's ranks were [4, 3]; they must ascend, and the job has 0..5."),
        ([3, 4, 4], "The pipeline's ranks were [3, 4, 4]; they must ascend, and the job has 0..5."),
        ([4, 6], "The pipeline's ranks were [4, 6]; they must ascend, and the job has 0..5."),
        ([0, 1, 2], "Rank 4 of the job joined a pipeline of the ranks [0, 1, 2]."),
    ],
)
def test_ranks_that_make_no_pipeline_are_refused_at_once(torchrun, ranks, said):
    with pytest.raises(PlanError) as refused:
        Membership.here(ranks)
    assert refused.value.what == said
    assert refused.value.where == {"rank": 4}


def test_a_process_that_torchrun_has_not_started_is_told_so(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(PlanError, match="no RANK: torchrun has not started this process"):
        Membership.here()


def test_a_session_is_left_before_the_next_begins(torchrun):
    here = Membership.here([4, 5])
    assert here.begin() == 0
    with pytest.raises(PlanError, match="Rank 4 is in a pipeline that it has not left"):
        here.begin()
    here.end()
    assert here.begin() == 1


def test_with_a_secret_that_is_not_in_the_store_a_stranger_there_cannot_speak_for_a_rank(
    tmp_path, monkeypatch
):
    """N19: who reaches a store may write anything; what ranks tell of themselves is signed."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    plan, secret = PipelinePlan(mesh_size=1, backend="gloo"), tmp_path / "secret"
    secret.write_bytes(b"s" * 64)
    monkeypatch.setenv(SECRET_VARIABLE, str(secret))

    def agreed(forged):
        store = open_store(seated(1, 2), 0, 5.0)
        store.set("parity/1", forged)
        with ThreadPoolExecutor(1) as rank0:
            return rank0.submit(groups._agree, plan, seated(0, 2), 0, None, "none").result(timeout=30)

    text = groups.encode_facts({"plan.mesh_size": 2, "mesh": None})
    with pytest.raises(RemoteProtocolError, match="rank 1 was not made by a rank of this run"):
        agreed(text.decode())
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "another"))
    with pytest.raises(ParityError):  # a rank's own word is read, and differs
        agreed(groups.sign(b"s" * 64, 1, text).decode())
    secret.unlink()
    with pytest.raises(PlanError, match="cannot be read"):
        groups.given_secret()
