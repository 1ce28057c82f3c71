"""A rank's device. torch's answers are made up: no card is here, and tests/gpu asks a real one."""

from __future__ import annotations

import os

import pytest
import torch

from ppwork.errors import PlanError
from ppwork.protocol.plan import PipelinePlan
from ppwork.runtime import device, nccl
from ppwork.runtime.device import pick_device


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


def test_ranks_that_each_see_one_gpu_are_told_the_variable_that_hides_the_others(card, monkeypatch):
    card(1)
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(PlanError) as refused:
        pick_device(PipelinePlan(backend="nccl"), 1, 1, 3)
    assert refused.value.check_first.startswith("CUDA_VISIBLE_DEVICES=1: each rank of a host has to see all")


def test_auto_says_why_it_leaves_gpus_idle(card, caplog):
    card(2)
    assert pick_device(PipelinePlan(), 0, 0, 3).type == "cpu"
    assert "2 GPUs are seen here, and 3 ranks need one each" in caplog.text


@pytest.mark.parametrize(
    ("backend", "rank", "told"), [("auto", 0, True), ("auto", 1, False), ("nccl", 0, False)]
)
def test_who_has_not_asked_for_nccl_is_told_that_it_has_never_run(card, caplog, backend, rank, told):
    card(3)
    assert pick_device(PipelinePlan(backend=backend), rank, rank, 3).type == "cuda"
    assert (device.UNTRIED in caplog.text) is told


def test_a_local_rank_beyond_the_gpus_is_refused_by_name(card):
    card(3)
    with pytest.raises(PlanError, match="The local rank was 5, and this process sees 3 GPUs"):
        pick_device(PipelinePlan(backend="nccl"), 2, 5, 3)


@pytest.mark.parametrize(("depth", "refused"), [(1, False), (2, True)])
def test_a_process_whose_nccl_has_begun_may_not_overlap_without_one_order_of_launches(
    card, monkeypatch, caplog, depth, refused
):
    card(3)
    monkeypatch.setattr(device, "_has_nccl", lambda: True)
    plan = PipelinePlan(backend="nccl", in_flight_depth=depth)
    if refused:
        with pytest.raises(PlanError, match="too late to set NCCL_LAUNCH_ORDER_IMPLICIT") as error:
            pick_device(plan, 1, 1, 3)
        assert "export NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL_RUNTIME_CONNECT=0 before" in error.value.check_first
    else:
        assert pick_device(plan, 1, 1, 3).type == "cuda"
        assert "too late to set NCCL_LAUNCH_ORDER_IMPLICIT" in caplog.text


def test_what_was_exported_before_the_program_started_is_in_time(card, monkeypatch):
    card(3)
    monkeypatch.setattr(device, "_has_nccl", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in nccl.READ_ONCE:
        monkeypatch.setitem(os.environ, name, nccl.KNOBS[name][0])
    assert pick_device(PipelinePlan(backend="nccl", in_flight_depth=2), 1, 1, 3).index == 1
