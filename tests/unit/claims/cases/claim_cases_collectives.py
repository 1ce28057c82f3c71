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


REDUCED = {"SUM": 5.0, "MIN": 2.0, "MAX": 3.0, "PRODUCT": 6.0, "BAND": 2, "BOR": 3, "BXOR": 1}
REFUSED = {"AVG": "Cannot use ReduceOp.AVG with Gloo", "PREMUL_SUM": "Cannot use ReduceOp.PREMUL_SUM"}


def _reduced(**changed):
    return {"each": noted(REDUCED | REFUSED | changed, REDUCED | REFUSED | changed)}


def _future(called_with=30.0, of_a_message=""):
    note = {"called_with": called_with, "of_a_message": of_a_message}
    return {"both": noted(note, note)}


def _asked(at_once, later, total=3.0):
    note = {"at_once": at_once, "later": later, "total": total}
    return {"polled": noted(note, note)}


def _parts(*got):
    return {"uneven": noted(*({"got": each} for each in got))}


def _functional(graphs, compiled=(7.0,), changed=False):
    total = [[0.0, 9.0], [3.0, 12.0], [6.0, 15.0]]
    eager = {"kind": "AsyncCollectiveTensor", "input_changed": changed, "total": total}
    step = {"eager": [7.0], "compiled": list(compiled), "graphs": graphs}
    return {"eager": noted(eager, eager), "compiled": noted(step, step)}


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
    "D19": [
        (Verdict.HOLDS, _reduced()),
        (Verdict.DOES_NOT_HOLD, _reduced(AVG=2.5)),
        (Verdict.DOES_NOT_HOLD, _reduced(BXOR="Cannot use ReduceOp.BXOR")),
    ],
    "D20": [
        (Verdict.HOLDS, _future()),
        (Verdict.DOES_NOT_HOLD, _future(of_a_message="Work::getFuture not implemented.")),
        (Verdict.ERROR, _future(called_with=20.0)),
    ],
    "D21": [
        (Verdict.HOLDS, _asked(False, True)),
        (Verdict.DOES_NOT_HOLD, _asked(False, False)),
        (Verdict.ERROR, _asked(True, True)),
    ],
    "D22": [
        (Verdict.HOLDS, _parts([0.0, 10.0], [1.0, 1.0, 11.0, 11.0])),
        (Verdict.DOES_NOT_HOLD, _parts([0.0, 1.0], [1.0, 10.0, 11.0, 11.0])),
    ],
    "D32": [
        (Verdict.HOLDS, _functional(1)),
        (Verdict.DOES_NOT_HOLD, _functional(2)),
        (Verdict.DOES_NOT_HOLD, _functional(1, compiled=(5.0,))),
        (Verdict.DOES_NOT_HOLD, _functional(1, changed=True)),
    ],
}
