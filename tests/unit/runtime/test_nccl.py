"""The NCCL variables: set where nobody has, each with a reason; and what is said of an old driver."""

from __future__ import annotations

import ctypes

import pytest

from ppwork.protocol.parity import WIRE_KEYS
from ppwork.runtime import nccl


def test_knobs_are_turned_where_nobody_has_and_give_their_reasons():
    environment = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500", "HOME": "/"}
    nccl.turn(environment)
    assert environment["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "500"
    assert environment["NCCL_LAUNCH_ORDER_IMPLICIT"] == "1"
    assert set(environment) == {*nccl.KNOBS, "HOME"}
    assert all(len(why) > 20 for _, why in nccl.KNOBS.values())


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "NCCL_RUNTIME_CONNECT",
        "TORCH_NCCL_HIGH_PRIORITY",
        "CUDA_DEVICE_MAX_CONNECTIONS",
    ],
)
def test_a_knob_that_changes_who_waits_for_whom_is_turned_and_compared_at_start_up(name):
    assert name in nccl.KNOBS
    assert name in WIRE_KEYS


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, None),
        ({"CUDA_LAUNCH_BLOCKING": "0", "TORCH_NCCL_BLOCKING_WAIT": "false"}, None),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, None),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING=1: every launch waits"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, "TORCH_NCCL_BLOCKING_WAIT=1: every wait blocks"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG=DETAIL: every"),
    ],
)
def test_what_keeps_chunks_from_overlapping_is_told(monkeypatch, environment, said):
    monkeypatch.setattr(nccl, "old_driver", lambda: None)
    found = nccl.sequential(environment)
    assert found is None if said is None else found.startswith(said)


def test_an_old_driver_keeps_chunks_from_overlapping(monkeypatch):
    monkeypatch.setattr(nccl, "old_driver", lambda: "this driver is for CUDA 12.2")
    assert nccl.sequential({}) == "this driver is for CUDA 12.2"


def test_ranks_that_share_a_gpu_have_hosts_of_their_own():
    ids = {nccl.sharing_a_gpu(rank)["NCCL_HOSTID"] for rank in range(3)}
    assert len(ids) == 3
    assert nccl.sharing_a_gpu(0)["NCCL_NET"] == "Socket"


class Driver:
    """In place of libcuda: it writes its version through the pointer, as C does."""

    def __init__(self, version: int, failed: int = 0):
        self._version, self._failed = version, failed

    def cuDriverGetVersion(self, pointer):  # noqa: N802  CUDA's name
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = self._version
        return self._failed


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Driver(12020), "CUDA 12.2;"),
        (Driver(11080), "CUDA 11.8;"),
        (Driver(12030), None),
        (Driver(13000), None),
        (Driver(12020, failed=3), None),
        (None, None),
    ],
)
def test_an_old_driver_is_told_of(monkeypatch, driver, said):
    def load(name):
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    found = nccl.old_driver()
    assert found is None if said is None else said in found
