"""F21: a store that cannot serve this job is refused at start-up, with the remedy."""

from __future__ import annotations

import socket

import pytest

from ppwork.errors import PeerTimeoutError, PlanError
from ppwork.protocol.plan import PipelinePlan
from ppwork.runtime.groups import STORE_VARIABLE, join, open_store


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


def test_a_process_that_has_its_groups_already_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(PlanError, match="Rank 1 has a default process group already") as caught:
        join(PipelinePlan(mesh_size=1), rank=1, local_rank=1, world_size=2)
    assert "leave `init_process_group` out" in caught.value.check_first
