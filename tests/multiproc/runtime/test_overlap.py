"""Depth: the same answers, in less time, and never more in flight than the plan allows (step A3)."""

from __future__ import annotations

import pytest
from toy_runs import expected, toy

import ppwork as pp
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1
from ppwork.records.run import FAILED_AT_END, log_file
from ppwork.records.spans import Span

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("depth", [2, 3])
def test_outputs_are_the_same_at_every_depth_also_with_a_cut(tmp_path, depth):
    """R3: a cut loses nothing, whatever is in flight around it."""
    run = pp.launch(toy(in_flight_depth=depth, chunks=12, hard_cuts=(5,)), out=tmp_path / "run")
    assert run.summary["figures"]["outputs"] == expected(12, cuts=(5,))
    assert run.summary["max_abs_diff"] == 0.0


def test_a_source_that_ends_early_is_drained_before_shutdown(tmp_path):
    """If its plan has a number of chunks, that is a failure, with all that came."""
    plan = toy(in_flight_depth=3, chunks=None, options={"end_at": 4})
    assert pp.launch(plan, out=tmp_path / "run").summary["verified_chunks"] == 4
    short = pp.launch(plan.replace(chunks=9), out=tmp_path / "short", check=False)
    assert (short.summary["chunks"], short.summary["verified_chunks"], short.exit_code) == (4, 4, 0)
    assert short.failure.what == f"{FAILED_AT_END}.\nNo rank failed, and the run emitted 4 of 9 chunks."
    assert short.failure.check_first.endswith("a source that may end earlier has no `chunks` in its plan")


def synthetic(out, times: tuple[float, float, float] = (30.0, 30.0, 60.0), **fields) -> pp.Run:
    """Run stages that take these times for encode, decode and stage 1, in milliseconds."""
    options = dict(zip(("encode_ms", "decode_ms", "stage1_ms"), times, strict=True))
    plan = pp.Plan(
        **{"mesh_size": 2, "chunks": 20, **fields},
        backend="gloo",
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={"payload_mb": 1.0, **options},
    )
    return pp.launch(plan, out=out)


def most_at_once(starts: dict[int, int], ends: dict[int, int]) -> int:
    """The most chunks that had started and not ended at one time."""
    moments = [(at, 1) for at in starts.values()] + [(at, -1) for at in ends.values()]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def moments_of(run: pp.Run, name: str) -> dict[int, int]:
    """When each chunk's span began, or its instant was, on rank 0."""
    found = {}
    for entry in run.entries(0):
        if entry.name == name:
            at = entry.start_ns if isinstance(entry, Span) else entry.at_ns
            found.setdefault(entry.chunk_index, at)  # SHUTDOWN bears the last chunk's index, too
    return found


def unfinished(run: pp.Run) -> int:
    """The most chunks that were between the start of their encode and their emission at one time."""
    return most_at_once(moments_of(run, "encode"), moments_of(run, "emit"))


def envelope_left_before_decode(run: pp.Run) -> bool:
    left, decodes = moments_of(run, "envelope.send"), moments_of(run, "decode")
    return all(left[k + 1] < decodes[k] for k in decodes if k + 1 in decodes)


def test_overlap_halves_the_period_of_balanced_stages_and_keeps_the_bound(tmp_path):
    """The order is asserted exactly, the time as a ratio of two runs with a wide margin."""
    runs = {depth: synthetic(tmp_path / f"{depth}", in_flight_depth=depth) for depth in (1, 2)}
    assert {depth: unfinished(run) for depth, run in runs.items()} == {1: 1, 2: 2}
    assert {depth: envelope_left_before_decode(run) for depth, run in runs.items()} == {1: False, 2: True}
    periods = {depth: run.summary["period_ms"] for depth, run in runs.items()}
    assert periods[2] < 0.8 * periods[1]
    assert runs[1].summary["overlap_score"] < 0.2
    assert runs[2].summary["overlap_score"] > 0.6


@pytest.mark.parametrize(("d_in", "d_out", "times"), [(2, 1, (5.0, 40.0, 5.0)), (1, 2, (5.0, 5.0, 120.0))])
def test_both_halves_of_a_split_depth_are_kept_and_used(tmp_path, d_in, d_out, times):
    """The slow side fills: decode for ``d_out``, stage 1 for ``d_in``; and it is still an overlap."""
    run = synthetic(tmp_path / "run", times, chunks=12, d_in=d_in, d_out=d_out)
    left, here, emitted = (moments_of(run, name) for name in ("envelope.send", "arrive", "emit"))
    assert most_at_once(left, here) == d_in
    assert most_at_once(here, emitted) == 1 <= d_out
    assert unfinished(run) == d_in + d_out == run.plan.in_flight_depth
    assert envelope_left_before_decode(run)


def test_the_classic_mistake_gives_the_same_results_and_a_flush_finds_nothing_in_flight(tmp_path):
    plan = toy(schedule="send-after-decode", in_flight_depth=3, chunks=8, hard_cuts=(2,), flushes=(5,))
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["figures"]["outputs"] == expected(8, cuts=(2, 5))
    assert (run.summary["max_abs_diff"], run.summary["dropped_chunks"]) == (0.0, [])
    assert "flush at chunk 5: in flight, now stale: none" in log_file(run.run_dir, 0).read_text()
    left, emitted, encodes = (moments_of(run, name) for name in ("envelope.send", "emit", "encode"))
    assert all(left[k + 1] > emitted[k] for k in range(7))
    assert all(encodes[k + 2] < emitted[k] for k in range(6))  # encoding goes on
    assert unfinished(run) == 3


def test_the_classic_mistake_leaves_the_mesh_idle_for_the_decode(tmp_path):
    """At least the decode, and a ratio with a wide margin; lesson 05 shows that it grows with the decode."""
    idle = {}
    for order in ("send-after-decode", "overlap"):
        run = synthetic(tmp_path / order, (10.0, 60.0, 80.0), chunks=10, in_flight_depth=2, schedule=order)
        idle[order] = run.summary["mesh_idle_ms"]
    assert idle["send-after-decode"] >= 60.0
    assert idle["overlap"] < 0.5 * idle["send-after-decode"]
