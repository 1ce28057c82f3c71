"""The main job on CUDA: one GPU per rank where there are enough, else all ranks on one, functional only.

Run with `pytest -m gpu tests/gpu`; left out by default because CI has no GPU.
"""

from __future__ import annotations

import pytest

import ppwork as pp
from ppwork.launcher.checks import count_gpus

pytestmark = pytest.mark.gpu

HARD_LIMIT_S = 300.0
"""Ranks that share a GPU wait for time slices at each hop; a hang must still end."""


@pytest.mark.timeout(HARD_LIMIT_S + 30)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("mesh_size", [1, 2])
def test_the_shipped_clip_on_nccl_equals_one_process(tmp_path, mesh_size, depth):
    gpus = count_gpus()
    assert gpus > 0, "select these tests only where there is a GPU"
    plan = pp.Plan(
        mesh_size=mesh_size,
        chunks=6,
        hard_cuts=(3,),
        in_flight_depth=depth,
        backend="nccl",
        share_gpu=gpus <= mesh_size,
        timeout_s=120.0,
        verify=True,
    )
    run = pp.launch(plan, out=tmp_path / "run", limit_s=HARD_LIMIT_S)
    assert run.summary["backend"] == "nccl"
    assert run.summary["device"] == "cuda"
    assert run.summary["figures"]["psnr_denoised_db"] - run.summary["figures"]["psnr_noisy_db"] > 5.5
