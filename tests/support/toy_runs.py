"""Plans of runs with ``toy_stages``, and what comes out of them."""

from __future__ import annotations

import ppwork as pp


def toy(**changes) -> pp.Plan:
    fields = {"mesh_size": 2, "chunks": 6, "backend": "gloo", "timeout_s": 20.0, "verify": True}
    stages = {"stage0": "toy_stages:Counter", "stage1": "toy_stages:Scaler"}
    return pp.Plan(**{**fields, **stages, **changes})


def expected(chunks: int, cuts: tuple[int, ...] = ()) -> list[list[float]]:
    """The outputs of ``toy``: ten times the chunk, and a hundred for each chunk since the cut."""
    outputs, cached = [], 0
    for k in range(chunks):
        cached = 1 if k in cuts else cached + 1
        outputs.append([10.0 * k + 100.0 * cached] * 4)
    return outputs
