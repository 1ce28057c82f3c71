"""A run as a notebook has it: its outputs, and two runs side by side."""

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ppwork as pp
from ppwork.records.run import OUTPUTS_FILE, SUMMARY_FILE
from ppwork.records.spans import Instant, Recorder, span_file
from ppwork.timeline.costs import Costs, Hop


def run_of(folder, outputs=None, summary=None, **fields):
    folder.mkdir()
    pp.Plan(chunks=3, **fields).save(folder)
    (folder / SUMMARY_FILE).write_bytes(msgspec.json.encode(summary or {}))
    if outputs is not None:
        by_name = {
            f"{index:06d} {name}".rstrip(): tensor
            for index, output in outputs.items()
            for name, tensor in (output if isinstance(output, dict) else {"": output}).items()
        }
        save_file(by_name, folder / OUTPUTS_FILE)
    return pp.Run(str(folder), 0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1.5, -2.0]]),
        torch.tensor([3, 4], dtype=torch.int64),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.tensor(0.5, dtype=torch.float16),
        torch.empty(0, 3, dtype=torch.uint8),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_outputs_come_back_in_their_dtype(tmp_path, tensor):
    (found,) = run_of(tmp_path / "a", {7: tensor}).outputs.items()
    assert found[0] == 7
    assert found[1].dtype == tensor.numpy().dtype
    assert np.array_equal(found[1], tensor.numpy())


def test_bfloat16_comes_as_float32_with_every_bit(tmp_path):
    values = torch.randn(5).to(torch.bfloat16)
    outputs = run_of(tmp_path / "a", {0: values}).outputs
    assert np.array_equal(outputs[0], values.float().numpy())


def test_outputs_that_are_not_there_are_refused_with_the_option(tmp_path):
    with pytest.raises(pp.PlanError, match="kept no outputs") as refused:
        _ = run_of(tmp_path / "a").outputs
    assert "keep_outputs" in refused.value.check_first
    with pytest.raises(pp.UnreadableError, match="F8_E4M3"):
        _ = run_of(tmp_path / "b", {0: torch.ones(1).to(torch.float8_e4m3fn)}).outputs


def test_two_runs_stand_side_by_side_with_what_differs(tmp_path):
    ones = {index: torch.ones(2) for index in range(3)}
    a = run_of(tmp_path / "a", ones, {"period_ms": 40.0, "figures": {"words": 3}, "metrics": {"loss": 0.5}})
    b = run_of(
        tmp_path / "b",
        {**ones, 1: torch.tensor([1.0, 1.25])},
        {"period_ms": 20.0, "figures": {"words": 4}, "metrics": {"loss": 0.25}},
        in_flight_depth=2,
    )
    compared = a.compare(b)
    assert compared.max_abs_diff == 0.25
    assert compared.differences == {0: 0.0, 1: 0.25, 2: 0.0}
    assert "The outputs of 1 of 3 chunks differ, by 0.25 at most; the first is chunk 1." in repr(compared)
    rows = {row[0]: row[1:] for row in compared.table.rows}
    assert rows == {
        "plan.in_flight_depth": ["1", "2", "-"],
        "period_ms": ["40", "20", "0.50"],
        "figures.words": ["3", "4", "-"],
        "metrics.loss": ["0.5", "0.25", "0.50"],
    }
    assert "<table>" in compared._repr_html_()


@pytest.mark.parametrize("other", [torch.ones(3), torch.tensor([1.0, float("nan")]), None], ids=str)
def test_outputs_that_cannot_be_compared_are_infinitely_far(tmp_path, other):
    a = run_of(tmp_path / "a", {0: torch.ones(2)})
    b = run_of(tmp_path / "b", {1: torch.ones(2)} if other is None else {0: other})
    assert a.compare(b).max_abs_diff == float("inf")


def test_chunks_that_one_run_lacks_are_missing_there_and_no_distance(tmp_path):
    ones = {index: torch.ones(2) for index in range(4)}
    a = run_of(tmp_path / "a", ones)
    assert a.compare(run_of(tmp_path / "b", {0: ones[0], 1: ones[1]})).finding == (
        "The outputs of all other 2 chunks are equal; chunks 2 and 3: missing in b."
    )
    odd = {0: ones[0], 1: torch.full((2,), 1.5), 2: torch.ones(3), 9: torch.ones(2)}
    assert a.compare(run_of(tmp_path / "c", odd)).finding == (
        "The outputs of 2 of 5 chunks differ, by 0.5 at most; the first is chunk 1; "
        "chunk 2: another shape, or a NaN; chunk 9: missing in a; chunk 3: missing in c."
    )


def test_chunks_that_only_round_otherwise_are_not_those_that_differ(tmp_path):
    """A cache that one rank does not reset showed from chunk 2 on; "the first is chunk 0" was a rounding."""
    results = {index: torch.ones(2) for index in range(4)}
    a = run_of(tmp_path / "a", results)
    odd = {0: torch.tensor([1.0, 1.0 + 2**-20]), 1: torch.ones(2), 2: torch.zeros(2), 3: torch.ones(2)}
    assert a.compare(run_of(tmp_path / "b", odd)).finding == (
        "The outputs of 1 of 4 chunks differ, by 1 at most; the first is chunk 2; "
        "those of 1 more by 9.53674e-07 at most, less than a tolerance of 0.0001."
    )
    assert a.compare(run_of(tmp_path / "c", {**results, 0: odd[0]})).finding == (
        "The outputs of 1 of 4 chunks differ by 9.53674e-07 at most, less than a tolerance of 0.0001."
    )
    exact = run_of(tmp_path / "one", results, mesh_size=1)
    assert exact.compare(run_of(tmp_path / "d", {**results, 3: odd[0]}, mesh_size=1)).finding == (
        "The outputs of 1 of 4 chunks differ, by 9.53674e-07 at most; the first is chunk 3."
    )


def test_a_first_difference_at_a_cut_is_said_to_be_at_one(tmp_path):
    """A cache that was not reset shows there, and was looked for in the weights."""
    results = {index: torch.ones(2) for index in range(4)}
    a, b = run_of(tmp_path / "a", results), run_of(tmp_path / "b", {**results, 2: torch.zeros(2)})
    with Recorder(span_file(a.run_dir, 0)) as recorder:
        for index, epoch in enumerate((0, 0, 1, 1)):
            recorder.write(Instant("emit", "main", index, chunk_index=index, cache_epoch=epoch))
    cut = "the first is chunk 2, which came with a cut: was the cache reset there on each mesh rank of both?"
    assert cut in a.compare(b).finding
    assert "the first is chunk 2." in b.compare(a).finding, "b has no entries"


def test_tensors_of_a_loops_results_are_compared_by_name(tmp_path):
    """In one row a difference of ids hid that of the scores."""
    results = {k: {"scores": torch.ones(2), "ids": torch.tensor([3, 4])} for k in range(3)}
    a = run_of(tmp_path / "a", results)
    results[1] = {"scores": torch.tensor([1.0, 1.25]), "ids": torch.tensor([3, 40])}
    b = run_of(tmp_path / "b", results)
    assert {name: each.tolist() for name, each in b.outputs[1].items()} == {
        "scores": [1.0, 1.25],
        "ids": [3, 40],
    }
    assert a.compare(b).differences == {0: 0.0, 1: 36.0, 2: 0.0}
    assert a.compare(b).finding == (
        "The outputs of 1 of 3 chunks differ, by 36 at most in 'ids' and 0.25 at most in 'scores'; "
        "the first is chunk 1."
    )


def test_without_kept_outputs_the_figures_are_compared_all_the_same(tmp_path):
    compared = run_of(tmp_path / "a", summary={"period_ms": 1.0}).compare(run_of(tmp_path / "b"))
    assert compared.max_abs_diff is None
    assert "keep_outputs=True" in compared.finding
    assert compared.table.rows == [["period_ms", "1", "-", "-"]]


@pytest.fixture
def sequential(tmp_path):
    """A run at depth 1 that the simulator made: 10, 60 and 10 ms, and 1 ms a hop."""
    hop = Hop(1.0)
    truth = Costs(encode_ms=10.0, decode_ms=10.0, stage1_ms=60.0, down=hop, broadcast={2: hop}, up=hop)
    found = pp.simulate(pp.Plan(mesh_size=2, chunks=12), truth)
    run = run_of(tmp_path / "sequential", mesh_size=2)
    for rank, entries in found.entries_by_rank.items():
        with Recorder(span_file(run.run_dir, rank)) as recorder:
            for entry in entries:
                recorder.write(entry)
    return run


def test_costs_of_a_run_say_what_it_would_do_deeper_and_on_other_hardware(sequential):
    costs, plan = sequential.costs(), sequential.plan.replace(in_flight_depth=3, chunks=24)
    assert pp.simulate(plan, costs).period_ms == pytest.approx(60.0, abs=0.1)
    quicker = costs.replace(stage1_ms=tuple(ms / 4 for ms in costs.stage1_ms))
    assert pp.simulate(plan, quicker).period_ms == pytest.approx(20.0, abs=0.1)
    assert quicker.encode_ms == costs.encode_ms


def test_costs_that_cannot_be_are_refused_when_they_are_changed(sequential):
    costs = sequential.costs()
    with pytest.raises(pp.PlanError, match="stage1_ms was -1"):
        costs.replace(stage1_ms=-1.0)
    with pytest.raises(TypeError, match="generate_ms"):
        costs.replace(generate_ms=1.0)
