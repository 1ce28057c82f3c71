"""Both ranks of a mesh of one in one process on one GPU: true overlap of streams, and the times that follow.

Run with `pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import ppwork as pp
from ppwork.timeline.chunks import aligned
from ppwork.timeline.streams import hidden, transfers
from ppwork.workloads.times import synthetic

pytestmark = pytest.mark.gpu

HARD_LIMIT_S = 120.0
CHUNKS = 24


def launched(plan: pp.Plan, out: Path) -> pp.Run:
    return pp.launch(
        plan.replace(mesh_size=1, one_process=True, backend="nccl"), out=out, limit_s=HARD_LIMIT_S
    )


@pytest.mark.timeout(2 * HARD_LIMIT_S + 30)
def test_depth_3_returns_what_depth_1_returns_over_copies_on_streams(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    plan = pp.Plan(
        chunks=12,
        hard_cuts=(7,),
        stage0="cuda_toys:CudaCounter",
        stage1="cuda_toys:CudaSum",
        options={"payload_mb": 4.0, "stage0_cycles": 2_000_000, "stage1_cycles": 10_000_000},
    )
    runs = {
        depth: launched(plan.replace(in_flight_depth=depth), tmp_path / f"depth{depth}") for depth in (1, 3)
    }
    expected = [[float(sum(range(7 * (k >= 7), k + 1)))] * 2 for k in range(12)]
    outputs = {depth: run.summary["figures"]["outputs"] for depth, run in runs.items()}
    assert outputs == {
        1: expected,
        3: expected,
    }


@pytest.mark.timeout(HARD_LIMIT_S + 30)
def test_the_shipped_clip_equals_the_reference(tmp_path):
    run = launched(pp.Plan(chunks=6, in_flight_depth=3, verify=True), tmp_path / "run")
    assert (run.summary["device"], run.summary["max_abs_diff"]) == ("cuda", 0.0)


@pytest.mark.timeout(2 * HARD_LIMIT_S + 30)
def test_kernels_of_known_length_give_the_period_of_the_law_and_hide_every_transfer(tmp_path):
    """Stage 0 takes 40 ms, the generator 60: together at depth 1, the longer of them at depth 3."""
    times = {"encode_ms": 20.0, "decode_ms": 20.0, "stage1_ms": 60.0, "payload_mb": 8.0}
    plan = synthetic(pp.Plan(chunks=CHUNKS), **times)
    one = launched(plan, tmp_path / "depth1")
    three = launched(plan.replace(in_flight_depth=3), tmp_path / "depth3")
    assert one.summary["period_ms"] == pytest.approx(100.0, rel=0.1)
    assert three.summary["period_ms"] == pytest.approx(60.0, rel=0.1)
    assert sum(hidden(one.entries_by_rank).values()) == 0
    assert sum(hidden(three.entries_by_rank).values()) >= CHUNKS - 4
    halves = [half for half in transfers(aligned(three.entries_by_rank)) if half.span.chunk_index]
    assert all(half.span.end_ns - half.moves_ns < 5e6 for half in halves)
