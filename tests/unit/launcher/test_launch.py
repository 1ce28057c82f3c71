"""The launcher around its ranks: bounds that are none, and a reference that is verified against."""

from __future__ import annotations

import math

import pytest

import ppwork as pp
from ppwork.errors import PlanError
from ppwork.launcher import job, launch

PLAN = pp.synthetic(
    pp.Plan(mesh_size=2, chunks=2, backend="gloo", verify=True),
    encode_ms=1, decode_ms=1, stage1_ms=1, payload_mb=0.1,
)  # fmt: skip
EQUAL = '{"first_different": null, "dtype": "float32", "max_abs_diff": 0.0}'


@pytest.mark.parametrize("limit_s", [math.inf, math.nan, 0.0, -1.0])
def test_a_limit_that_is_none_is_refused_before_anything_is_there(limit_s, tmp_path, monkeypatch):
    """JSON has no word for the first two: a host and a job would not read what they were told."""
    monkeypatch.setattr(job, "ask", lambda *_, **__: pytest.fail("it was handed in"))
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.touch()
    for starts in ("ppwork.launcher.launch.run_folder", "ppwork.launcher.script.run_folder"):
        monkeypatch.setattr(starts, lambda *_: pytest.fail("it was begun"))
    for begin in (
        lambda: launch.launch(PLAN, out, limit_s=limit_s),
        lambda: pp.submit(PLAN, on=pp.Slurm(2), out=out, limit_s=limit_s),
        lambda: pp.launch_script(program, nproc=2, out=out, limit_s=limit_s),
    ):
        with pytest.raises(PlanError, match=rf"limit was {limit_s:g} s"):
            begin()
    assert not out.exists()
