"""Cases of the claims about object collectives."""

from __future__ import annotations

from claim_seen import noted

from ppwork.claims.claim import Verdict


def _objects(transfers=2, executed_by=71, broadcast_ms=25.1, both_ways_ms=28.1):
    return {
        "recorded": noted({}, {"transfers": transfers, "pid": 71, "executed_by": executed_by}),
        "by hand": noted({"returned": True}, {"messages": 2, "object": {"chunk": 7}}),
        "broadcast": noted({}, {"tensor_ms": 2.4, "object_ms": broadcast_ms}),
        "there and back": noted({}, {"tensor_ms": 4.2, "object_ms": both_ways_ms}),
    }


def _sweep(large_ms):
    times = {"tensor_1_ms": 0.04, "object_1_ms": 0.42, "tensor_256_ms": 0.09, "object_256_ms": 0.63}
    return {"sizes": noted({}, times | {"tensor_16384_ms": 6.8, "object_16384_ms": large_ms})}


def _pickles(gathered, scattered):
    each = {"all_gather_object": [1, 3]}
    return {
        "counted": noted(
            *(
                {**each, "gather_object": one, "scatter_object_list": other}
                for one, other in zip(gathered, scattered, strict=True)
            )
        )
    }


CASES = {
    "D30": [
        (Verdict.HOLDS, _pickles([[1, 3], [1, 0], [1, 0]], [[3, 1], [0, 1], [0, 1]])),
        (Verdict.DOES_NOT_HOLD, _pickles([[1, 1]] * 3, [[1, 1]] * 3)),
    ],
    "C10": [
        (Verdict.HOLDS, _objects()),
        (Verdict.DOES_NOT_HOLD, _objects(executed_by=None)),
        (Verdict.DOES_NOT_HOLD, _objects(broadcast_ms=2.5, both_ways_ms=4.3)),
        (Verdict.ERROR, _objects(transfers=1)),
        (Verdict.ERROR, _objects(broadcast_ms=2.5)),
    ],
    "G09": [
        (Verdict.HOLDS, _sweep(98.2)),
        (Verdict.DOES_NOT_HOLD, _sweep(7.0)),
    ],
}
