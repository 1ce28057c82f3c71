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


def test_a_knob_that_changes_the_order_of_calls_is_compared_at_start_up():
    assert "NCCL_LAUNCH_ORDER_IMPLICIT" in WIRE_KEYS


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
