"""Whole runs on real gloo ranks under torchrun: the right answers, and what is left behind."""

from __future__ import annotations

import msgspec
import pytest
from checkout import SUPPORT
from toy_runs import expected, toy

import ppwork as pp
from ppwork.diagnosis.runs import diagnose
from ppwork.launcher.launch import launch
from ppwork.launcher.view import NoView
from ppwork.records.run import LaunchEnd
from ppwork.records.spans import Span

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("mesh_size", [1, 2, 4])
def test_worlds_of_two_three_and_five_give_the_right_outputs(tmp_path, mesh_size):
    run = pp.launch(toy(mesh_size=mesh_size, hard_cuts=(3,)), out=tmp_path / "run")
    assert run.summary["figures"]["outputs"] == expected(6, cuts=(3,))
    assert run.summary["max_abs_diff"] == 0.0
    assert run.summary["verified_chunks"] == run.summary["chunks"] == 6
    assert run.summary["backend"] == "gloo"
    left = {path.name for path in run.run_dir.iterdir()}
    ranks = range(mesh_size + 1)
    assert left == {"plan.json", "summary.json", "torchrun.log", "reference.log", "launch.json"} | {
        name for r in ranks for name in (f"rank{r}.log", f"spans-rank{r}.jsonl", f"pulse-rank{r}")
    } | {f"collectives-rank{r}" for r in ranks[1:] if mesh_size > 1}


def test_every_dtype_and_awkward_shape_survives_both_links_and_the_broadcast(tmp_path):
    """Chunks alternate between two schemas, one inline in the frame and one sent alone."""
    plan = toy(stage0="toy_stages:AllDtypes", stage1="toy_stages:Echo", chunks=5)
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["figures"]["outputs"] == [24] * 5  # 21 dtypes and three shapes


def test_a_progress_that_raises_ends_the_run_its_view_and_leaves_a_last_word(tmp_path):
    """It was told later as a launcher that somebody had killed, and its view never ended."""
    shown = []

    class View(NoView):
        def end(self, finished):
            shown.append(finished)

    def progress(entry):
        raise KeyError("emitted")

    with pytest.raises(KeyError, match="emitted"):
        launch(toy(), out=tmp_path / "run", progress=progress, view=View)
    assert [str(finished.failure).splitlines()[0] for finished in shown] == [
        "The launcher ended the run, because it raised KeyError: 'emitted'"
    ]
    found = diagnose(tmp_path / "run")
    assert found.cause.error_type == "Stopped"
    assert "raised KeyError" in found.text
    assert "progress" in found.check_first


@pytest.fixture(scope="module")
def unverified(tmp_path_factory):
    """One run of the plan without verification, and what its progress was."""
    progress = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(SUPPORT)
        run = pp.launch(
            toy(verify=False), out=tmp_path_factory.mktemp("unverified") / "run", progress=progress.append
        )
    return run, progress


def test_every_rank_leaves_spans_for_each_step_of_each_chunk(unverified):
    run, _ = unverified
    steps = {
        0: {"encode", "preflight", "send", "receive", "decode"},
        1: {"receive", "broadcast", "generate", "send_result"},
        2: {"receive", "generate"},
    }
    for rank, names in steps.items():
        entries = run.entries(rank)
        for k in range(6):
            found = {e.name for e in entries if e.chunk_index == k}
            assert names <= found, (rank, k)
    points = [e.name for e in run.entries(1) if e.name in ("mesh.broadcast", "result.send")]
    assert points[:2] == ["mesh.broadcast", "result.send"]


def test_the_start_of_every_process_is_known_step_by_step(unverified):
    run, _ = unverified
    table = pp.pictures.startup(run).table
    rows = {row[0]: dict(zip(table.head[1:], row[1:], strict=True)) for row in table.rows}
    assert list(rows) == ["launcher", "torchrun", "rank 0", "rank 1", "rank 2"]
    for rank in range(3):
        steps = rows[f"rank {rank}"]
        assert "-" not in [steps[n] for n in ("start Python", "import torch", "join", "load", "chunks")]
        spans = [span for span in run.entries(rank) if isinstance(span, Span)]
        starts = [
            span.start_ns for span in spans if span.name in ("start Python", "import torch", "join", "load")
        ]
        assert starts == sorted(starts)
    begun = min(span.start_ns for rank in range(3) for span in run.entries(rank) if isinstance(span, Span))
    (torchrun,) = (step for step in LaunchEnd.load(run.run_dir).steps if step.name == "torchrun")
    assert torchrun.start_ns <= begun + 20_000_000  # a rank knows its own start to 10 ms


def test_recompute_rebuilds_the_cache_from_context_frames_on_every_rank(tmp_path):
    """R4: the plan of the chunk travels; the reference computes the same."""
    run = pp.launch(toy(recompute_every=2, chunks=5), out=tmp_path / "run")
    # before chunk 2 the cache is rebuilt to (2 - 1) + 0.5, before chunk 4 to (4 - 1) + 0.5
    assert [row[0] for row in run.summary["figures"]["outputs"]] == [100.0, 210.0, 270.0, 380.0, 490.0]
    assert run.summary["max_abs_diff"] == 0.0


def test_several_steps_are_counted_and_the_source_may_end_by_itself(tmp_path):
    run = pp.launch(toy(steps=3, chunks=None, options={"end_at": 4}), out=tmp_path / "run")
    assert run.summary["chunks"] == run.summary["verified_chunks"] == 4


def test_a_large_message_goes_through_without_a_copy_limit_of_the_frame(tmp_path):
    run = pp.launch(toy(chunks=2, options={"large": 4_000_000}), out=tmp_path / "run")
    assert run.summary["max_abs_diff"] == 0.0


def test_progress_reports_every_chunk_in_order_while_running(unverified):
    _, progress = unverified
    emitted = [entry.chunk_index for entry in progress if entry.name == "emit"]
    assert emitted == list(range(6))


def test_summary_names_plan_digest_and_versions(unverified):
    run, _ = unverified
    plan = pp.Plan.load(run.run_dir)
    assert run.summary["plan_digest"] == plan.digest
    assert msgspec.convert(run.summary["plan"], pp.Plan) == plan
    assert set(run.summary["versions"]) == {"ppwork", "torch", "python"}
