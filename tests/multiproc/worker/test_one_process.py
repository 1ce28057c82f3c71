"""Both ranks of a mesh of one in one process: the same answers, records and words of failure as in two."""

from __future__ import annotations

import pytest
from checkout import SUPPORT
from toy_runs import expected, toy
from typer.testing import CliRunner

import ppwork as pp
from ppwork.cli.main import app
from ppwork.records.failure import read_records
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import Span
from ppwork.timeline.chunks import lanes_of

pytestmark = pytest.mark.multiproc


def in_one(**changes) -> pp.Plan:
    return toy(mesh_size=1, one_process=True, **changes)


def steps(run):
    """Names and ids of every span, in which ranks and lanes: what a run did, without its times."""
    return {
        rank: sorted(
            (e.lane, e.name, e.call_id, e.chunk_index, e.cache_epoch) for e in entries if isinstance(e, Span)
        )
        for rank, entries in run.entries_by_rank.items()
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same plan in one process and in two."""
    folder = tmp_path_factory.mktemp("both")
    plans = {
        "one": in_one(in_flight_depth=3, hard_cuts=(3,)),
        "two": toy(mesh_size=1, in_flight_depth=3, hard_cuts=(3,)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(SUPPORT)
        return [pp.launch(plan, out=folder / name) for name, plan in plans.items()]


def test_outputs_are_those_of_two_processes(both):
    one, _ = both
    outputs = [run.summary["figures"]["outputs"] for run in both]
    assert outputs == [expected(6, cuts=(3,))] * 2
    assert (one.summary["max_abs_diff"], one.summary["verified_chunks"]) == (0.0, 6)
    assert (one.summary["backend"], one.summary["device"]) == ("copies", "cpu")


def test_it_is_one_process_and_leaves_the_spans_of_two(both):
    one, two = both
    pids = [{read_pulse(run.run_dir, rank).pid for rank in (0, 1)} for run in both]
    assert [len(found) for found in pids] == [1, 2]
    assert lanes_of(one.entries_by_rank) == lanes_of(two.entries_by_rank)
    assert steps(one) == steps(two)


def test_the_timeline_command_reads_it_and_says_what_it_was(both):
    one, _ = both
    answer = CliRunner().invoke(app, ["timeline", str(one.run_dir)])
    assert answer.exit_code == 0, answer.output
    assert "depth 3, mesh of 1, one process" in (one.run_dir / "timeline.txt").read_text()


def test_every_dtype_and_awkward_shape_is_copied_in_the_frame_and_alone(tmp_path):
    plan = in_one(stage0="toy_stages:AllDtypes", stage1="toy_stages:Echo")
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["figures"]["outputs"] == [24] * 6


def test_a_flush_drops_what_is_in_flight(tmp_path):
    run = pp.launch(in_one(in_flight_depth=3, flushes=(3,)), out=tmp_path / "run")
    assert run.summary["chunks"] + len(run.summary["dropped_chunks"]) == 6
    assert run.summary["dropped_chunks"]
    assert run.summary["max_abs_diff"] == 0.0


@pytest.mark.parametrize(
    ("stages", "rank", "said"),
    [
        ({"stage1": "toy_stages:RaisesOn", "options": {"group_rank": 0}}, 1, "the stage's own bug"),
        ({"stage0": "toy_stages:DecodeRaises"}, 0, "cannot write"),
        ({"stage1": "toy_stages:ResultCannotTravel"}, 1, "non-contiguous"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_other_is_told(tmp_path, stages, rank, said):
    run = pp.launch(in_one(in_flight_depth=2, **stages), out=tmp_path / "run", check=False)
    assert run.failure is not None
    assert run.failure.where["rank"] == rank
    records = {record.rank: record for record in read_records(run.run_dir, 2)}
    assert said in records[rank].what
    assert records[1 - rank].error_type == "TerminalNotice"


def test_a_rank_that_fails_before_there_is_a_link_does_not_leave_the_other_to_its_bound(tmp_path):
    plan = in_one(stage1="toy_stages:ConstructorRaises", options={"group_rank": 0})
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    assert "weights.pt" in str(run.failure)
    assert [record.rank for record in read_records(run.run_dir, 2)] == [1]


def test_a_leader_that_loops_is_ended_by_the_watchdog_of_its_thread(tmp_path):
    plan = in_one(
        stage1="stuck_stages:Spins",
        stall_s=2.0,
        options={"group_rank": 0, "mark": str(tmp_path / "mark")},
    )
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    records = {record.rank: record for record in read_records(run.run_dir, 2)}
    assert records[1].error_type == "StuckError"
    assert "The stage's step did not return within 2 s" in records[1].what
    assert "stuck_stages.py" in records[1].source
    assert run.failure.where["rank"] == 1
