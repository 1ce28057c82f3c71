"""When a rank fails: the right one is named first, soon, and nothing is left running."""

from __future__ import annotations

import re
import time

import pytest
from toy_runs import toy

import ppwork as pp
from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc

TIMEOUT_S = 30.0
DEADLINE_S = 15.0
"""From the first record until the launcher is done, on a loaded machine; a wait for a peer takes 30 s."""


def failed(tmp_path, **changes) -> tuple[pp.RunFailed, list]:
    plan = toy(verify=False, timeout_s=TIMEOUT_S, **changes)
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    end_ns = time.monotonic_ns()
    assert run.failure is not None
    records = read_records(run.run_dir, plan.world_size)
    assert end_ns - min(record.at_ns for record in records) < DEADLINE_S * 1e9
    return run.failure, records


@pytest.mark.parametrize("group_rank", [0, 1])
def test_a_stage_that_raises_on_one_mesh_rank_is_named_first_with_the_users_line(tmp_path, group_rank):
    """F15."""
    failure, records = failed(tmp_path, stage1="toy_stages:RaisesOn", options={"group_rank": group_rank})
    rank = group_rank + 1
    assert f"Rank {rank} (" in failure.what
    assert "StageError" in failure.what
    assert "ZeroDivisionError: the stage's own bug" in failure.what
    assert f"rank{rank}.log" in failure.what
    assert "toy_stages.py:" in failure.what
    assert failure.where["rank"] == rank
    assert failure.where["chunk_index"] == 2
    cause = next(record for record in records if record.rank == rank)
    assert not cause.symptom
    assert all(record.symptom for record in records if record.rank != rank)


def test_a_constructor_that_raises_ends_the_run_before_any_chunk(tmp_path):
    failure, _ = failed(tmp_path, stage1="toy_stages:ConstructorRaises")
    assert "FileNotFoundError: weights.pt" in failure.what
    assert failure.where["rank"] == 2
    assert not [e for e in pp.Run(tmp_path / "run", 1).entries(0) if e.name == "encode"]


def test_a_decode_that_raises_ends_the_mesh_by_notice(tmp_path):
    failure, records = failed(tmp_path, stage0="toy_stages:DecodeRaises")
    assert "Rank 0 (stage0) failed first: StageError" in failure.what
    assert "ValueError: cannot write" in failure.what
    mesh = [record for record in records if record.rank > 0]
    assert all(record.error_type == "TerminalNotice" for record in mesh)


def test_a_source_that_fails_before_the_first_chunk_ends_the_mesh_by_notice(tmp_path):
    """The notice must get through although no call has been counted yet."""
    failure, records = failed(tmp_path, stage0="toy_stages:EncodeRaisesAtOnce")
    assert "OSError: camera unplugged" in failure.what
    mesh = [record for record in records if record.rank > 0]
    assert all(record.error_type == "TerminalNotice" for record in mesh), mesh
    assert any("camera unplugged" in record.what for record in mesh)


def test_a_result_that_cannot_travel_is_refused_at_the_leader_and_told_both_ways(tmp_path):
    """R1 on the way back: the leader names the tensor, the remedy, the method and its chunk at any depth."""
    failure, _ = failed(tmp_path, stage1="toy_stages:ResultCannotTravel", in_flight_depth=3)
    line, source, headline = failure.what.splitlines()[:3]
    assert re.fullmatch(r"/.*/toy_stages.py:\d+", line)  # on top, as that of any other error
    assert source.startswith("    return ")
    assert headline.startswith("Rank 1 (leader) failed first: LocalProtocolError")
    assert "non-contiguous" in failure.what
    assert "contiguous()" in failure.check_first
    assert re.search(r"the `return` of ResultCannotTravel.step, .*toy_stages.py:\d+$", failure.check_first)
    assert failure.where["chunk_index"] == 0


def test_launch_raises_run_failed_unless_told_not_to(tmp_path):
    plan = toy(verify=False, stage0="toy_stages:DecodeRaises")
    with pytest.raises(pp.RunFailed, match="failed first"):
        pp.launch(plan, out=tmp_path / "run")
    assert (tmp_path / "run" / "rank0.log").exists()


def test_a_run_past_its_limit_is_stopped_and_says_so(tmp_path):
    plan = toy(verify=False, chunks=1000, stage1="toy_stages:Slow", options={"step_s": 0.2})
    run = pp.launch(plan, out=tmp_path / "run", check=False, limit_s=5.0)
    assert run.exit_code == 124
    assert "passed its limit" in run.failure.what
