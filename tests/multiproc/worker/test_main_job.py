"""The main job on real ranks: the shipped clip, the shipped weights, compared with one process."""

from __future__ import annotations

import av
import pytest

import ppwork as pp

pytestmark = pytest.mark.multiproc
SMALL = {"options": {"width": 64, "height": 48}, "backend": "gloo", "verify": True}


@pytest.mark.parametrize("depth", [1, 3])
def test_a_mesh_of_one_gives_exactly_what_one_process_gives(tmp_path, depth):
    plan = pp.Plan(mesh_size=1, chunks=8, hard_cuts=(3,), in_flight_depth=depth, **SMALL)
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["max_abs_diff"] == 0.0


@pytest.mark.parametrize(("mesh_size", "depth", "chunks", "cuts"), [(2, 3, 44, (20, 36)), (4, 2, 12, (5,))])
def test_long_streams_with_cuts_stay_within_rounding_of_one_process(tmp_path, mesh_size, depth, chunks, cuts):
    """The clip has 33 chunks and is run forwards and backwards; the rolling cache must not add up errors."""
    plan = pp.Plan(mesh_size=mesh_size, chunks=chunks, hard_cuts=cuts, in_flight_depth=depth, **SMALL)
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["verified_chunks"] == chunks
    assert 0.0 < run.summary["max_abs_diff"] <= 1e-4


def test_the_default_size_gains_what_the_readme_says_and_leaves_video_and_picture(tmp_path):
    plan = pp.Plan(mesh_size=2, chunks=4, backend="gloo", recompute_every=2, verify=True)
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["figures"]["psnr_denoised_db"] - run.summary["figures"]["psnr_noisy_db"] > 7.0
    assert run.summary["max_abs_diff"] <= 1e-4
    with av.open(str(run.run_dir / "denoised.mp4")) as video:
        frames = sum(1 for _ in video.decode(video=0))
        assert (frames, video.streams.video[0].width, video.streams.video[0].height) == (16, 160, 96)
    assert (run.run_dir / "side_by_side.png").read_bytes().startswith(b"\x89PNG")


def test_a_cut_changes_what_comes_after_it_and_nothing_before(tmp_path):
    """A check that cannot fail is a defect: the cache must matter for a hard cut to mean anything."""
    figures = {}
    for name, cuts in (("whole", ()), ("cut", (2,))):
        fields = {**SMALL, "verify": False}
        run = pp.launch(pp.Plan(mesh_size=1, chunks=4, hard_cuts=cuts, **fields), out=tmp_path / name)
        figures[name] = [e.figures["psnr_denoised_db"] for e in run.entries(0) if e.name == "emit"]
    assert figures["whole"][:2] == figures["cut"][:2]
    assert figures["whole"][2] != figures["cut"][2]
