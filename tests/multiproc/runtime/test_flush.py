"""A flush: exactly what was in flight is received and dropped, and everybody says so (rule R3)."""

from __future__ import annotations

import av
import pytest
from toy_runs import expected, toy

import ppwork as pp
from ppwork.records.run import log_file
from ppwork.records.spans import Instant

pytestmark = pytest.mark.multiproc


def test_a_flush_at_depth_3_drops_the_two_chunks_in_flight_and_a_cut_none(tmp_path):
    run = pp.launch(toy(chunks=12, in_flight_depth=3, hard_cuts=(9,), flushes=(5,)), out=tmp_path / "run")
    summary, stage0 = run.summary, run.entries(0)
    assert summary["dropped_chunks"] == [3, 4]
    every = expected(12, cuts=(5, 9))
    assert summary["figures"]["outputs"] == every[:3] + every[5:]
    assert (summary["max_abs_diff"], summary["verified_chunks"], summary["chunks"]) == (0.0, 10, 10)
    drops = {e.chunk_index: e for e in stage0 if isinstance(e, Instant) and e.name == "drop"}
    assert {k: (e.call_id, e.cache_epoch) for k, e in drops.items()} == {3: (3, 0), 4: (4, 0)}
    of_dropped = {e.name for e in stage0 if e.chunk_index in drops}
    assert "receive" in of_dropped  # never skipped
    assert not of_dropped & {"decode", "emit"}
    assert {e.chunk_index for e in run.entries(2) if e.name == "generate"} == set(range(12))
    log = log_file(run.run_dir, 0).read_text()
    assert "flush at chunk 5: in flight, now stale: 3, 4" in log
    assert "chunk 3 was stale and dropped" in log
    check_mesh_figures(summary)


def check_mesh_figures(summary):
    assert summary["mesh_idle_ms"] > 0
    queues = {(queue["rank"], queue["name"]): queue for queue in summary["queues"]}
    assert set(queues) == {(0, "down_pg"), (0, "up_pg"), (2, "mesh_pg"), (2, "ready")} | {
        (1, name) for name in ("down_pg", "mesh_pg", "up_pg", "arrived", "ready")
    }
    assert all(0 <= queue["most"] <= queue["bound"] for queue in queues.values())
    assert queues[0, "down_pg"]["done"] == queues[1, "ready"]["done"] == queues[2, "ready"]["done"] == 13


def test_the_shipped_denoiser_survives_a_cut_and_a_flush_at_depth_3(tmp_path):
    plan = pp.Plan(
        mesh_size=1,
        chunks=8,
        hard_cuts=(2,),
        flushes=(5,),
        in_flight_depth=3,
        options={"width": 64, "height": 48},
        backend="gloo",
        verify=True,
    )
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["max_abs_diff"] == 0.0
    assert run.summary["dropped_chunks"] == [3, 4]
    assert (run.summary["verified_chunks"], run.summary["figures"]["frames"]) == (6, 24)
    with av.open(str(run.run_dir / "denoised.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 24
    assert run.summary["figures"]["psnr_denoised_db"] > run.summary["figures"]["psnr_noisy_db"]
    assert (run.run_dir / "side_by_side.png").exists()
