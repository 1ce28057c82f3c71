"""What the leader refuses never reaches the mesh, and everybody learns why (F06, F07)."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_runs import toy
from test_startup import folder, worker

from ppwork.failure import read_records

pytestmark = pytest.mark.multiproc
SABOTEUR = str(Path(__file__).with_name("saboteur.py"))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("version", "A frame of wire version 99 arrived, but this build reads version 1."),
        ("checksum", "The header's checksum was wrong."),
        ("oversized", "bytes of tensors; 1073741824 are allowed."),
        ("calls", "expected 5 generator calls, but 1 steps and recompute=False make 1."),
        ("skipped", "call_id 3 followed 1; it must grow by exactly 1."),
    ],
)
def test_leader_refuses_before_the_mesh_and_tells_both_sides(tmp_path, start_ranks, how, said):
    run_dir = folder(tmp_path / "run", toy(verify=False, chunks=6))
    ranks = start_ranks([[SABOTEUR, how, str(run_dir)], worker(run_dir), worker(run_dir)])
    codes = ranks.wait(15)
    records = {record.rank: record for record in read_records(run_dir, 3)}
    assert records[1].error_type == "RemoteProtocolError"
    assert said in records[1].what
    assert records[1].where["role"] == "leader"
    assert records[2].error_type == "TerminalNotice"
    assert said in records[2].what
    assert records[0].error_type == "TerminalNotice"
    assert said in records[0].what
    assert codes == [3, 1, 3]
    # within 2 s of the leader's refusal everybody has spoken
    times = [record.at_ns for record in records.values()]
    assert (max(times) - records[1].at_ns) / 1e9 < 2.0
    # the follower never saw the chunk
    assert (
        f'"chunk_index":{records[1].last_instants and 2}' not in (run_dir / "spans-rank2.jsonl").read_text()
    )
