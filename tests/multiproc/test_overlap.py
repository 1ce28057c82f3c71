"""Depth: the same answers, in less time, and never more in flight than the plan allows (step A3)."""

from __future__ import annotations

import pytest
from test_runs import expected, toy

import ppwork as pp
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1
from ppwork.timeline import Instant, Span

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("depth", [2, 3])
def test_outputs_are_the_same_at_every_depth_also_with_a_cut(tmp_path, depth):
    """R3: a cut loses nothing, whatever is in flight around it."""
    run = pp.launch(toy(in_flight_depth=depth, chunks=12, hard_cuts=(5,)), out=tmp_path / "run")
    assert run.summary["outputs"] == expected(12, cuts=(5,))
    assert run.summary["max_abs_diff"] == 0.0


def test_a_source_that_ends_early_is_drained_before_shutdown(tmp_path):
    plan = toy(in_flight_depth=3, chunks=9, options={"end_at": 4})
    assert pp.launch(plan, out=tmp_path / "run").summary["verified_chunks"] == 4


def synthetic(tmp_path, depth: int) -> pp.Run:
    plan = pp.Plan(
        mesh_size=2,
        chunks=20,
        backend="gloo",
        in_flight_depth=depth,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={"encode_ms": 30.0, "decode_ms": 30.0, "stage1_ms": 60.0, "payload_mb": 1.0},
    )
    return pp.launch(plan, out=tmp_path / f"depth{depth}")


def unfinished(run: pp.Run) -> int:
    """The most chunks that were between the start of their encode and their emission at one time."""
    moments = []
    for entry in run.entries(0):
        if isinstance(entry, Span) and entry.name == "encode":
            moments.append((entry.start_ns, 1))
        elif isinstance(entry, Instant) and entry.name == "emit":
            moments.append((entry.at_ns, -1))
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def envelope_left_before_decode(run: pp.Run) -> bool:
    left = {}
    for entry in run.entries(0):
        if entry.name == "envelope.send":
            left.setdefault(entry.chunk_index, entry.at_ns)  # SHUTDOWN bears the last chunk's index, too
    decodes = {e.chunk_index: e.start_ns for e in run.entries(0) if e.name == "decode"}
    return all(left[k + 1] < decodes[k] for k in decodes if k + 1 in decodes)


def test_overlap_halves_the_period_of_balanced_stages_and_keeps_the_bound(tmp_path):
    """The order is asserted exactly, the time as a ratio of two runs with a wide margin."""
    runs = {depth: synthetic(tmp_path, depth) for depth in (1, 2)}
    assert {depth: unfinished(run) for depth, run in runs.items()} == {1: 1, 2: 2}
    assert {depth: envelope_left_before_decode(run) for depth, run in runs.items()} == {1: False, 2: True}
    periods = {depth: run.summary["period_ms"] for depth, run in runs.items()}
    assert periods[2] < 0.8 * periods[1]
    assert runs[1].summary["overlap_score"] < 0.2
    assert runs[2].summary["overlap_score"] > 0.6
