"""Cases of the claims about collectives."""

from __future__ import annotations

from claim_seen import noted

from ppwork.claims.claim import Verdict


def _traced(name, sizes, returned=10.31):
    each = {"returned": returned, "name": name, "sizes": sizes}
    return {"traced": noted(each, each | {"came": 10.3})}


def _enqueued(returned_s, with_edge=102.0):
    times = {"returned_s": returned_s, "complete_s": 0.02}
    return {
        "broken": noted(*[times | {"seen": [2.0, 102.0]}] * 2),
        "mended": noted(*[times | {"seen": [with_edge, with_edge]}] * 2),
    }


def _periods(barrier, messages):
    return {
        "broken": noted({"period_ms": barrier}, {"period_ms": barrier + 0.1}),
        "mended": noted({"period_ms": messages}, {"period_ms": messages + 4}),
    }


CASES = {
    "C06": [
        (Verdict.DOES_NOT_HOLD, _traced("gloo:barrier", [])),
        (Verdict.HOLDS, _traced("nccl:all_reduce_barrier", [[1]])),
        (Verdict.DOES_NOT_HOLD, _traced("nccl:all_reduce_barrier", [[1]], returned=10.0)),
    ],
    "C08": [
        (Verdict.HOLDS, _enqueued(0.0002)),
        (Verdict.DOES_NOT_HOLD, _enqueued(0.02)),
        (Verdict.ERROR, _enqueued(0.0002, with_edge=2.0)),
    ],
    "G07": [
        (Verdict.HOLDS, _periods(42.0, 24.4)),
        (Verdict.DOES_NOT_HOLD, _periods(42.0, 41.0)),
    ],
}
