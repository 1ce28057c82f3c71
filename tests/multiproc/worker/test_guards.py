"""The guards with real ranks: a difference between mesh ranks is an error on all of them, and not a hang."""

from __future__ import annotations

import json
import os
import re
import sys
import time

import pytest
from checkout import SUPPORT
from guarded_ranks import CASES
from rank_folders import folder, worker
from started_ranks import start_rank
from toy_runs import toy

import ppwork as pp
from ppwork.pictures.run_table import rows_of
from ppwork.records.failure import read_records
from ppwork.records.run import FAILED_AT_END, log_file

pytestmark = pytest.mark.multiproc

GONE_S = 10.0
"""From the first failure record to the end of all ranks, on a loaded machine."""
BOUND_S = 60.0
"""The plan's bound of a wait: a hang would end much later than ``GONE_S``."""


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """What each mesh rank said to each case, from one world of a mesh of three."""
    out = tmp_path_factory.mktemp("guards")
    plan = toy(mesh_size=3, compare_collectives=-1).to_json().decode()
    environment = {**os.environ, "WORLD_SIZE": "4", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PPWORK_STORE"] = str(out / "store")
    command = [sys.executable, str(SUPPORT / "guarded_ranks.py"), plan, str(out)]
    started = [start_rank(command, {**environment, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(4)]
    try:
        assert [process.wait(180) for process in started] == [0] * 4
    finally:
        for process in started:
            process.kill()
            process.wait()
    return {rank: json.loads((out / str(rank)).read_text()) for rank in (1, 2, 3)}


def test_ranks_that_agree_are_left_alone_and_sum_even_after_all_the_refusals(differences):
    for rank in (1, 2, 3):
        assert differences[rank]["agreed"] == {"said": [3.0] * 4, "reached": [[4], [4]]}


LINES = {
    mark: f"guarded_ranks.py:{number}: {line.strip()}"
    for number, line in enumerate((SUPPORT / "guarded_ranks.py").read_text().splitlines(), 1)
    for mark in ("SUM", "MAX", "FROM", "MORE")
    if line.endswith(f"# {mark}")
}
LINES["RETURN"] = ": a `return` of Summing.step"
"""No call was made there, and which ``return`` it was is not known."""
TENSORS, CALLS, FLAG = "tensors differ", "in another order", "only one rank knows"
ROOTS = "which rank gives, or takes?"
SUM4 = "called all_reduce float32[4]"
SAID = {
    "shape": (
        "Rank 2 differs from ranks 1 and 3 at collective 2 of chunk 0: rank 2 called all_reduce float32[5] ",
        TENSORS,
        ["rank 2 at SUM", "ranks 1 and 3 at SUM"],
    ),
    "dtype": (
        "Rank 3 differs from ranks 1 and 2 at collective 2 of chunk 1: rank 3 called all_reduce float64[4] ",
        "what makes it float32 on ranks 1 and 2 and float64 on rank 3?",
        ["rank 3 at SUM", "ranks 1 and 2 at SUM"],
    ),
    "reduction": (
        "at collective 2 of chunk 2: rank 2 called all_reduce(max) float32[4] ",
        CALLS,
        ["rank 2 at MAX", "ranks 1 and 3 at SUM"],
    ),
    "root": (
        "at collective 2 of chunk 3: rank 3 called broadcast(from rank 2) float32[4] ",
        ROOTS,
        ["rank 3 at FROM", "ranks 1 and 2 at FROM"],
    ),
    "order": (
        "at collective 1 of chunk 4: rank 3 called broadcast(from rank 2) float32[4] ",
        CALLS,
        ["rank 3 at FROM", "ranks 1 and 2 at SUM"],
    ),
    "one more at the end": (
        f"Rank 2 differs from ranks 1 and 3 in chunk 5: rank 2 {SUM4} as collective 3 ",
        FLAG,
        ["rank 2 at SUM", "ranks 1 and 3, last at SUM"],
    ),
    "one more before": (
        "at collective 1 of chunk 6: rank 3 called all_reduce float32[7] ",
        TENSORS,
        ["rank 3 at SUM", "ranks 1 and 2 at SUM"],
    ),
    "one more between": (
        "Rank 2 differs from ranks 1 and 3 at collective 2 of chunk 7: rank 2 called all_reduce float32[4] "
        "(MORE), ranks 1 and 3 called all_reduce float32[4] (SUM). It seems that rank 2 made one there that "
        "ranks 1 and 3 did not make. It showed later in chunk 7: rank 2 "
        f"{SUM4} as collective 3 (SUM), ranks 1 and 3 ended it after 2 collectives (the last at SUM).",
        FLAG,
        ["1 SUM", "2 MORE", "3 SUM", "1 SUM", "2 SUM"],
    ),
    "fewer": (
        "Rank 2 differs from ranks 1 and 3 in chunk 8: rank 2 ended it after 1 collective ",
        FLAG,
        ["rank 2, last at SUM", "ranks 1 and 3 at SUM"],
    ),
    "none": (
        "Rank 2 differs from ranks 1 and 3 in chunk 9: rank 2 ended it after 0 collectives, ",
        FLAG,
        ["rank 2 at RETURN", "ranks 1 and 3 at SUM"],
    ),
    "input": ("rank 3 differs from ranks 1 and 2 in 'sigma'", "write to the envelope", []),
    "inputs missing": ("the mesh ranks had [2, 1, 2] tensors", "write to the envelope", []),
}
REACHED = {"shape": 1, "dtype": 1, "reduction": 1, "root": 1, "one more at the end": 2}
REACHED |= {"one more between": 2, "fewer": 1}


@pytest.mark.parametrize("case", SAID)
def test_a_difference_raises_on_every_mesh_rank_before_the_backend(differences, case):
    """F05, F11, F12 and R5: one text everywhere, and no rank has made the call that others will not make."""
    said, check_first, lines = SAID[case]
    for rank in (1, 2, 3):
        kind, what, where, hint = differences[rank][case]["said"]
        assert kind == "LocalProtocolError"
        sentence, *shown = what.splitlines()
        for mark, line in LINES.items():
            sentence = sentence.replace(f"tests/support/{line.partition(': ')[0]}", mark)
        assert said in sentence
        shown = [line for line in shown if " at " in line]
        for line, expected in zip(shown, lines, strict=True):
            whom, _, mark = expected.rpartition(" ")
            assert line.strip().startswith(f"{whom} ")
            assert line.endswith(LINES[mark])
        assert what == differences[1][case]["said"][1]
        assert check_first in hint
        index = list(CASES).index(case)
        assert where == {
            "rank": rank,
            "role": "leader" if rank == 1 else "follower",
            "group": "tp_pg",
            "call_id": index,
            "chunk_index": index,
            "cache_epoch": 0,
        }
        assert len(differences[rank][case]["reached"]) == REACHED.get(case, 0)


def test_a_collective_on_another_group_is_refused_on_every_rank_that_makes_it(differences):
    """F08: all make the same call here, so without the guard it would go through, and nobody be the wiser."""
    for rank in (1, 2, 3):
        kind, what, where, _ = differences[rank]["wrong group"]["said"]
        assert kind == "LocalProtocolError"
        assert "called broadcast on mesh_pg; inside stage 1 only tp_pg may be used" in what
        assert where["group"] == "tp_pg"
        assert where["rank"] == rank


def failed(tmp_path, **changes):
    plan = toy(**{"verify": False, "timeout_s": BOUND_S, **changes})
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    ended_ns = time.monotonic_ns()
    assert run.failure is not None
    records = read_records(run.run_dir, plan.world_size)
    assert ended_ns - min(record.at_ns for record in records) < GONE_S * 1e9
    return run, records


def test_a_sum_behind_one_ranks_flag_is_caught_at_the_end_of_the_last_chunk(tmp_path):
    """F05: nobody would ever come to this call; and the chunk's result must not leave as if it were good."""
    run, records = failed(tmp_path, chunks=2, stage1="guarded_stages:OneMoreSum")
    assert run.failure.headline.startswith(
        "Ranks 1 and 2 differ in chunk 1: rank 1 ended it after 1 collective "
    )
    assert "LocalProtocolError: Ranks" not in run.failure.what  # of the other rank the same is not said again
    assert run.failure.where["chunk_index"] == 1
    assert run.failure.where["group"] == "tp_pg"
    mesh = [record for record in records if record.error_type == "LocalProtocolError"]
    assert mesh
    for record in mesh:
        assert record.what == mesh[0].what
        assert record.between == (1, 2)
        assert ", rank 2 called all_reduce float32[4] as collective 2 (" in record.what
    assert [e.chunk_index for e in run.entries(0) if e.name == "emit"] == [0]
    assert [e.chunk_index for e in run.entries(1) if e.name == "result.send"] == [0]


def test_a_refusal_that_the_stage_swallows_is_raised_again_at_the_end_of_its_step(tmp_path):
    """The call was not made, so what the step returned is wrong; a run with wrong results ended well."""
    run, records = failed(tmp_path, stage1="guarded_stages:SwallowsOther")
    own = [record for record in records if record.error_type == "LocalProtocolError"]
    assert {record.where["chunk_index"] for record in own} == {1}
    assert all("all_reduce on the default group" in record.what for record in own)
    assert all("guarded_stages.py" in record.source for record in own)
    assert [e.chunk_index for e in run.entries(1) if e.name == "result.send"] == [0]


def test_a_difference_that_the_stage_swallows_is_the_cause_of_the_runs_end(tmp_path):
    run, _ = failed(tmp_path, chunks=6, stage1="guarded_stages:Swallows")
    assert run.failure.headline.startswith("Ranks 1 and 2 differ at collective 1 of chunk 4: "), (
        run.failure.what
    )
    assert "all_reduce(max)" in run.failure.headline
    assert 4 not in [e.chunk_index for e in run.entries(1) if e.name == "result.send"]


def test_a_generator_call_too_many_is_caught_on_its_rank_before_its_first_collective(tmp_path):
    """F12, in a chunk that is not compared: the rank counts for itself."""
    run, _ = failed(tmp_path, steps=2, stage1="guarded_stages:StepsAgain")
    assert "Rank 2 (follower) failed first: LocalProtocolError" in run.failure.what
    assert "`step` was called as generator call 3 of a chunk that has 2" in run.failure.what
    assert run.failure.where["chunk_index"] == 3
    assert "guarded_stages.py:" in run.failure.what


@pytest.mark.parametrize("lost_at", [1, 4], ids=["in a compared chunk", "in a late chunk"])
def test_what_mesh_ranks_must_hold_alike_is_compared_where_a_stage_asks(tmp_path, lost_at):
    """A rank that had lost count gave a wrong share, and the wrong sum was alike on all ranks."""
    options = {"lost_at": lost_at}
    run, records = failed(tmp_path, chunks=6, stage1="guarded_stages:Holds", options=options)
    digest = r"called compare 'counts' float32\[2, 3\] with digest \w{8} \(guarded_stages.py:\d+\)"
    sentence, *lines = run.failure.what.splitlines()
    assert re.fullmatch(
        rf"Ranks 1 and 2 differ at call 2 of chunk {lost_at}: rank 1 {digest}, rank 2 {digest}\.", sentence
    )
    assert [line.endswith('"counts": self.counts})  # HELD') for line in lines[:2]] == [True, True]
    own = [record for record in records if record.error_type == "LocalProtocolError"]
    assert len(own) == (2 if lost_at == 1 else 1)  # an exchange tells both, the folder the later one
    assert {record.where["chunk_index"] for record in own} == {lost_at}
    assert all(record.check_first.startswith("is it loaded, reset and updated alike") for record in own)
    sent = [entry.chunk_index for entry in run.entries(1) if entry.name == "result.send"]
    assert sent == [*range(lost_at)]


def test_a_stage_that_holds_the_same_runs_and_one_that_asks_in_its_constructor_is_told_where_to(tmp_path):
    """With the plan's default some chunks are compared by an exchange and some by the folder."""
    run = pp.launch(toy(chunks=6, verify=True, stage1="guarded_stages:Holds"), out=tmp_path / "same")
    assert (run.summary["verified_chunks"], run.summary["max_abs_diff"]) == (6, 0.0)
    failure = failed(tmp_path, stage1="guarded_stages:Holds", options={"too_early": True})[0].failure
    assert "`tp.compare` was called while no chunk was computed" in failure.what
    assert failure.check_first.startswith("`replicated()`")


def test_weights_and_variables_of_the_stage_that_differ_are_named_before_any_chunk(tmp_path, start_ranks):
    """F11 and F05: on every rank, with the same text."""
    plan = toy(digests=True, stage1="guarded_stages:Loaded", timeout_s=BOUND_S)
    run_dir = folder(tmp_path / "run", plan)
    environments = {2: {"TOY_FAST": "1", "TOY_WEIGHT": "1.5"}}
    assert start_ranks([worker(run_dir)] * 3, environments).wait(BOUND_S) == [1, 1, 1]
    ended_ns = time.monotonic_ns()
    records = read_records(run_dir, 3)
    assert ended_ns - min(record.at_ns for record in records) < GONE_S * 1e9
    assert [record.error_type for record in records] == ["ParityError"] * 3
    assert len({record.what for record in records}) == 1
    assert 'env.TOY_FAST was null on rank 1; "1" on rank 2' in records[0].what
    assert 'weight.embed was "float32[2, 2] ' in records[0].what
    assert "weight.norm" not in records[0].what
    assert "encode" not in (run_dir / "spans-rank0.jsonl").read_text()


def test_a_sum_that_one_rank_alone_makes_in_its_constructor_is_named_with_its_line(tmp_path):
    """Rank 0 was named, which torchrun had ended while it waited for the others to be loaded."""
    run, records = failed(tmp_path, stage1="guarded_stages:SumsAlone", timeout_s=6.0)
    assert run.failure.where["rank"] == 2
    assert "A collective in the stage's constructor met nobody" in run.failure.what
    assert "guarded_stages.py:" in run.failure.what
    assert [record.rank for record in records if not record.symptom] == [2]


def test_a_message_within_the_mesh_that_nobody_sends_is_named_with_its_line_and_its_peer(tmp_path):
    run, _ = failed(tmp_path, stage1="guarded_stages:ReceivesAlone", timeout_s=6.0)
    assert "Rank 1 waited in recv (guarded_stages.py:" in run.failure.what
    assert ") for rank 2; rank 2 was at " in run.failure.what
    assert "dist.recv(torch.ones(1), 2, group=self.tp.group)" in run.failure.what.splitlines()[1]
    assert "nobody" not in run.failure.what


def test_a_result_that_one_mesh_rank_has_otherwise_is_named_before_it_leaves(tmp_path):
    """F11: the leader's is the one that is sent, so nobody else would ever see the other."""
    run, records = failed(tmp_path, digests=True, stage1="guarded_stages:Drifts")
    what = "The result of a chunk differed on the mesh: ranks 1 and 2 differ in 'small'."
    assert what in run.failure.what
    assert [record.what for record in records if record.error_type == "LocalProtocolError"][:1] == [what]
    assert run.failure.where["chunk_index"] == 1
    assert [e.chunk_index for e in run.entries(1) if e.name == "result.send"] == [0]


def test_without_digests_results_that_differ_are_told_in_every_chunk_and_fail_the_run_at_its_end(tmp_path):
    """In a first chunk by an exchange, which names rank and tensor; in a later one by a sample."""
    run = pp.launch(toy(verify=False, stage1="guarded_stages:Drifts"), out=tmp_path / "run", check=False)
    assert run.exit_code == 0  # no rank failed
    told = "Mesh ranks returned different results in chunks 1 and 4: the leader's were sent"
    assert run.failure.what.startswith(f"{FAILED_AT_END}.\n{told}")
    assert "returns none, `{}`" in run.failure.check_first
    assert run.summary["results_differ"] == [1, 4]
    assert "of chunks 1 and 4 differed on the mesh; the leader's were sent" in dict(rows_of(run))["results"]
    found = pp.diagnose(run)
    assert found.cause.rank == -1  # nobody failed
    assert found.text.startswith(f"{FAILED_AT_END}.\n{told}")
    assert found.text.count(told) == 1
    logs = [log_file(run.run_dir, rank).read_text() for rank in run.plan.topology.mesh_ranks]
    told = "results of chunk 1: ranks 1 and 2 differ in 'small'; the leader's are sent"
    assert all(told in log for log in logs)
    assert any("results of chunk 4 differ: a sample of 'small' that rank" in log for log in logs)


def test_followers_that_return_nothing_are_not_compared_in_a_first_chunk_nor_in_a_late_one(tmp_path):
    """What is a rank's own has no place in a comparison, and the run ends well."""
    run = pp.launch(toy(verify=True, mesh_size=3, stage1="guarded_stages:Keeps"), out=tmp_path / "run")
    assert "results_differ" not in run.summary
    assert "max_abs_diff" in run.summary
    assert pp.diagnose(run).cause is None


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (1, "ranks 1 and 2 differ in 'small': float32[4] and float32[2, 3]"),
        (4, "rank 1 returned 'small' float32[4], rank 2 returned 'small' float32[2, 3]"),
    ],
    ids=["by an exchange", "by a sample"],
)
def test_a_result_of_another_shape_is_named_with_rank_tensor_and_both_shapes(tmp_path, at, said):
    """Only the logs had them, and nobody reads the logs of a run that went well."""
    plan = toy(verify=False, stage1="guarded_stages:Reshapes", options={"at": at})
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    assert run.failure is not None
    assert run.summary["results_differ"] == [*range(at, 6)]
    told = f"the leader's were sent; of chunk {at}, {said}"
    assert told in dict(rows_of(run))["results"]
    found = pp.diagnose(run)
    assert found.cause.rank == -1
    assert f"{told}. All that differs: the logs of the mesh ranks" in found.text
    assert said in "".join(log_file(run.run_dir, rank).read_text() for rank in (1, 2))


def test_a_second_caller_of_the_transport_is_refused_and_the_run_goes_on(tmp_path, start_ranks):
    """F22."""
    plan = toy(mesh_size=1).to_json().decode()
    script = str(SUPPORT / "two_callers.py")
    assert start_ranks([[script, plan, str(tmp_path)]] * 2).wait() == [0, 0]
    refused, results = json.loads((tmp_path / "seen").read_text())
    assert results == [[k, True, *[2.0 * k] * 3] for k in range(4)]
    assert len(refused) == 3 * 4
    for (what, where), name in zip(refused, ["send", "heartbeat", "receive_result"] * 4, strict=True):
        assert f"{name} was called by thread 'second'; thread 'MainThread' made the first call" in what
        assert where == {"rank": 0, "role": "stage0"}


def test_the_shipped_denoiser_passes_all_comparisons_and_computes_the_same(tmp_path):
    """R5: with everything compared always, across a cut and a recompute, at depth 2."""
    plan = pp.Plan(
        mesh_size=2,
        chunks=4,
        options={"width": 64, "height": 32},
        backend="gloo",
        in_flight_depth=2,
        hard_cuts=(2,),
        recompute_every=3,
        compare_collectives=-1,
        digests=True,
        verify=True,
    )
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["verified_chunks"] == 4
    assert run.summary["max_abs_diff"] <= plan.tolerance
