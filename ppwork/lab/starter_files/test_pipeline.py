"""The pipeline on real ranks: its outputs equal those of one process, at depth 1 and overlapped."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppwork as pp


@pytest.mark.parametrize("depth", [1, 2])
def test_the_pipeline_equals_one_process(tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # stages.py is imported from here
    plan = pp.Plan(
        stage0="stages:Source",
        stage1="stages:Block",
        mesh_size=2,
        chunks=4,
        in_flight_depth=depth,
        timeout_s=60,
        verify=True,
    )
    run = pp.launch(plan, out=tmp_path / "run")
    assert run.summary["verified_chunks"] == 4
    assert run.summary["max_abs_diff"] < 1e-4
