"""Start-up: ranks that were started differently are told so, by key, value and rank, before any inference."""

from __future__ import annotations

import re
import socket

import pytest
from plain_torchrun import torchrun
from rank_folders import folder, worker
from toy_runs import toy
from waiting import END_S

from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc


def test_a_wrong_plan_on_one_rank_is_refused_with_key_values_and_ranks(tmp_path, start_ranks):
    """F04."""
    right = folder(tmp_path / "right", toy(steps=1))
    wrong = folder(tmp_path / "wrong", toy(steps=4))
    codes = start_ranks([worker(right), worker(right), worker(wrong)]).wait()
    assert codes == [1, 1, 1]
    records = read_records(right, 3) + read_records(wrong, 3)
    assert [record.error_type for record in records] == ["ParityError"] * 3
    assert len({record.what for record in records}) == 1
    assert "plan.steps was 1 on ranks 0 and 1; 4 on rank 2" in records[0].what
    assert not list(right.glob("spans-*")) or "encode" not in (right / "spans-rank0.jsonl").read_text()


def test_a_differing_environment_is_refused_with_the_variable_named(tmp_path, start_ranks):
    """F04 and R5."""
    run_dir = folder(tmp_path / "run", toy())
    environments = {1: {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
    codes = start_ranks([worker(run_dir)] * 3, environments).wait()
    assert codes == [1, 1, 1]
    for record in read_records(run_dir, 3):
        assert 'env.TORCH_DISTRIBUTED_DEBUG was null on ranks 0 and 2; "DETAIL" on rank 1' in record.what


def test_a_world_of_the_wrong_size_is_refused(tmp_path, start_ranks):
    """F21."""
    run_dir = folder(tmp_path / "run", toy(mesh_size=3))
    assert start_ranks([worker(run_dir)] * 3).wait() == [1, 1, 1]
    for record in read_records(run_dir, 3):
        assert record.error_type == "PlanError"
        assert "3 ranks were started" in record.what


def test_a_rank_too_many_is_refused_with_all_others_at_once(tmp_path, start_ranks):
    """F21: nobody waits for a rank that the plan has no role for."""
    run_dir = folder(tmp_path / "run", toy(mesh_size=1, timeout_s=60.0))
    assert start_ranks([worker(run_dir)] * 3).wait(30) == [1, 1, 1]
    records = read_records(run_dir, 3)
    assert [record.error_type for record in records] == ["PlanError"] * 3
    assert all("3 ranks were started; the plan's mesh of 1 needs 2" in record.what for record in records)


WITHOUT_THREADS = """
import os, sys
os.environ.pop("OMP_NUM_THREADS")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_torchrun_of_a_host_with_one_rank_sets_no_threads_and_the_plan_does(tmp_path, start_ranks):
    """Of a host with several it sets one; this was a ParityError of every first run over two hosts."""
    # That one imports torch while the others wait for it.
    run_dir = folder(tmp_path / "run", toy(verify=False, timeout_s=2 * END_S))
    alone = ["-c", WITHOUT_THREADS, *worker(run_dir)]
    assert start_ranks([alone, worker(run_dir), worker(run_dir)]).wait(2 * END_S) == [0, 0, 0]


def test_a_rank_that_never_comes_is_named_also_without_torchrun(tmp_path, start_ranks):
    """torch's store of a rank 0 that was started by hand waited for all, and said `2/3 clients joined`."""
    run_dir = folder(tmp_path / "run", toy(timeout_s=5))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    by_hand = {"PPWORK_STORE": "", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    start_ranks([worker(run_dir), ["-c", "pass"], worker(run_dir)], dict.fromkeys(range(3), by_hand)).wait(60)
    records = read_records(run_dir, 3)
    assert [(record.rank, record.error_type) for record in records] == [
        (0, "PeerTimeoutError"),
        (2, "PeerTimeoutError"),
    ]
    named, other = (record.what for record in records)
    assert "Rank 1 did not come to `join` within" in named
    assert (
        "Rank 1 did not come to `join`" in other or "The store was lost before all ranks had reached" in other
    )


@pytest.mark.parametrize(
    ("absent", "lives"),
    [("pass", r"Rank 1 has ended\."), ("import time; time.sleep(4)", r"Rank 1 \(pid \d+\) is alive\.")],
)
def test_a_rank_that_never_comes_is_named_within_the_bound(tmp_path, start_ranks, absent, lives):
    """R12: SCOPE_DIST_TIMEOUT_S overrides the plan's bound."""
    run_dir = folder(tmp_path / "run", toy())
    environments = {r: {"SCOPE_DIST_TIMEOUT_S": "2", "LOCAL_WORLD_SIZE": "3"} for r in range(3)}
    codes = start_ranks([worker(run_dir), ["-c", absent], worker(run_dir)], environments).wait(15)
    assert codes == [3, 0, 3]
    for record in read_records(run_dir, 3):
        assert record.error_type == "PeerTimeoutError"
        assert re.search(rf"Rank 1 did not come to `join` within 2 s\. {lives}", record.what), record.what
        assert record.where["peer"] == 1


LEAVES_BEFORE_JOIN = """
import os, time
from ppwork.ranks import Plan, PPWorkError, join
if os.environ["RANK"] != "2":
    began_s = time.monotonic()
    try:
        with join(Plan(mesh_size=2, backend="gloo", timeout_s=60)):
            pass
    except PPWorkError as error:
        print(os.environ["RANK"], time.monotonic() - began_s < 20, error.what, flush=True)
"""


def test_a_rank_that_has_left_is_not_waited_for(tmp_path):
    """`join` waited all of `timeout_s` for it, and then said that it had ended."""
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES_BEFORE_JOIN)
    said = sorted(torchrun(3, program))
    left = r"Rank 2 did not come to `join` within \d+\.\d s\. Rank 2 has ended\."
    for rank, line in enumerate(said):
        assert re.fullmatch(f"{rank} True {left}", line), line
    assert len(said) == 2
