"""F21: a store that cannot serve this job is refused at start-up, with the remedy."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ppwork.errors import PeerTimeoutError, PlanError
from ppwork.protocol.plan import PipelinePlan
from ppwork.runtime import groups, nccl
from ppwork.runtime.groups import STORE_VARIABLE, join, open_store, pick_device


def test_a_store_file_that_another_run_left_is_refused(tmp_path, monkeypatch):
    """Old keys must not be taken for those of ranks that are still to come."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    left = [open_store(rank, 2, 1.0) for rank in range(2)]
    left[0].set("parity/1", "of a rank that crashed")
    for rank in range(2):
        with pytest.raises(PlanError) as refused:
            open_store(rank, 2, 1.0)
        assert str(tmp_path / "store") in refused.value.what
        assert STORE_VARIABLE in refused.value.check_first
        assert refused.value.where == {"rank": rank}


def test_a_restarted_attempt_has_keys_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    open_store(0, 1, 1.0).set("parity/0", "of the attempt before")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not open_store(0, 1, 1.0).check(["parity/0"])


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
            open_store(rank, 2, 1.0)
    assert port in refused.value.what
    assert port in refused.value.check_first
    assert refused.value.where["rank"] == rank


# Devices; torch's answers are made up, because no card is here


@pytest.fixture
def card(monkeypatch):
    """Makes a host with so many devices; returns the list of those that were set."""
    taken = []
    for name in nccl.KNOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)

    def has(devices):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        return taken

    return has


@pytest.mark.parametrize(
    ("backend", "share", "devices", "device"),
    [
        ("gloo", False, 8, "cpu"),
        ("auto", False, 0, "cpu"),
        ("auto", False, 2, "cpu"),
        ("auto", False, 3, "cuda:1"),
        ("auto", True, 1, "cuda:0"),
        ("nccl", False, 3, "cuda:1"),
    ],
)
def test_a_rank_takes_the_device_that_the_launcher_would_decide_on(card, backend, share, devices, device):
    taken = card(devices)
    plan = PipelinePlan(mesh_size=2, backend=backend, share_gpu=share)
    assert pick_device(plan, 1, 1, 3) == torch.device(device)
    assert taken == ([] if device == "cpu" else [torch.device(device).index])


def test_knobs_are_turned_before_torch_is_asked_for_devices(card, monkeypatch):
    seen = {}
    card(3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen.update(os.environ) or 3)
    pick_device(PipelinePlan(backend="nccl"), 0, 0, 3)
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_nccl_on_a_host_with_too_few_devices_is_refused_with_both_numbers(card):
    card(1)
    with pytest.raises(PlanError, match="3 for this mesh, and this machine has 1") as refused:
        pick_device(PipelinePlan(backend="nccl"), 2, 2, 3)
    assert refused.value.where == {"rank": 2}


@pytest.mark.parametrize("depth", [1, 2])
def test_what_blocks_the_host_is_refused_on_all_ranks_where_chunks_overlap(tmp_path, monkeypatch, depth):
    """F21: it would be a deadlock in mid-run, and everybody sets it to find a CUDA error."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(groups, "pick_device", lambda *args: torch.device("cuda", 0))

    class Reached(Exception):
        """The groups were about to be made."""

    def reached(*args, **kwargs):
        raise Reached

    monkeypatch.setattr(groups.dist, "init_process_group", reached)
    plan = PipelinePlan(mesh_size=2, in_flight_depth=depth)

    def come(rank):
        with pytest.raises(PlanError if depth > 1 else Reached) as refused:
            join(plan, rank=rank, local_rank=rank, world_size=3)
        return refused.value

    with ThreadPoolExecutor(3) as ranks:
        refusals = list(ranks.map(come, range(3)))
    if depth > 1:
        assert {refusal.what for refusal in refusals} == {
            "At depth 2 the ranks could wait for each other: "
            "CUDA_LAUNCH_BLOCKING=1: every launch waits for its end."
        }
        assert [refusal.where["rank"] for refusal in refusals] == [0, 1, 2]
        assert "--depth 1" in refusals[0].check_first


def test_a_process_that_has_its_groups_already_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(PlanError, match="Rank 1 has a default process group already") as caught:
        join(PipelinePlan(mesh_size=1), rank=1, local_rank=1, world_size=2)
    assert "leave `init_process_group` out" in caught.value.check_first
