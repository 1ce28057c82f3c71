"""Errors of a backend, by its own words: whose doing they are, and what of them is said."""

from __future__ import annotations

import pytest
from captured_logs import NCCL_ERRORS

from ppwork.errors import PeerLostError, PeerTimeoutError
from ppwork.protocol.backend_errors import as_peer_error, is_backends
from ppwork.records.failure import record_of


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("remote exited", PeerLostError, "failed : Connection reset by peer"),
        ("remote exited, no details", PeerLostError, "remote process exited or there was a network error"),
        ("nobody listens", PeerLostError, "failed : Connection refused"),
        ("communicator aborted", PeerLostError, "NCCL communicator was aborted on rank 1."),
        ("bound passed", PeerTimeoutError, "ran for 600013 milliseconds before timing out."),
        ("key of a store", PeerTimeoutError, "Timeout waiting for key: default_pg/0//cuda//0"),
        ("key of torchrun's store", PeerTimeoutError, "wait timeout after 60000ms"),
    ],
)
def test_words_of_nccl_about_a_peer_are_a_symptom_that_says_the_most_of_them(name, kind, said):
    error = RuntimeError(NCCL_ERRORS[name])
    found = as_peer_error(error, "broadcast", rank=2, group="tp_pg")
    assert type(found) is kind
    assert said in found.what
    assert found.where == {"rank": 2, "group": "tp_pg"}
    assert record_of(error, 2, {}).symptom


@pytest.mark.parametrize("name", ["illegal access", "out of memory", "no shared memory", "duplicate GPU"])
def test_words_about_this_ranks_own_device_or_host_are_a_cause(name):
    """A peer's name on them would send the reader to the wrong rank."""
    error = RuntimeError(NCCL_ERRORS[name])
    assert as_peer_error(error, "broadcast") is None
    assert not record_of(error, 2, {}).symptom


def test_a_cuda_error_that_speaks_of_time_is_this_ranks_own():
    error = RuntimeError("CUDA error: the launch timed out and was terminated")
    assert as_peer_error(error, "broadcast") is None


def test_an_error_without_words_is_nobodys():
    assert as_peer_error(RuntimeError(), "broadcast") is None


def test_words_of_gloo_are_said_without_its_source_position_and_its_advice():
    said = (
        "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:28054. This is typically caused by a remote worker crashing. Good luck!"
    )
    found = as_peer_error(RuntimeError(said), "all_reduce")
    assert found.what == "The connection broke during all_reduce: Connection closed by peer."


def test_a_pair_that_gloo_closed_because_a_wait_of_this_rank_passed_its_bound_is_no_lost_peer():
    said = "[/gloo/gloo/transport/tcp/pair.cc:1170] Application timeout caused pair closure"
    assert isinstance(as_peer_error(RuntimeError(said), "transfer"), PeerTimeoutError)


def test_a_users_own_error_that_speaks_of_time_is_no_backends():
    assert not is_backends(RuntimeError("DataLoader timed out after 5 seconds"))
    assert is_backends(RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] Read timeout"))
    of_torch = type("DistStoreError", (RuntimeError,), {"__module__": "torch.distributed"})
    assert is_backends(of_torch("wait timeout after 5000ms"))
