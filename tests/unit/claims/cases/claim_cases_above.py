"""Cases of the claims about what stands on torch.distributed: pipelines, and models in parts and copies."""

from __future__ import annotations

from claim_seen import noted, raised, seen

from ppwork.claims.claim import RankEnd, Verdict

RESET = raised("Connection reset by peer", after_8=0)
ABORTED = seen(RankEnd.EXITED, exit_code=-6, notes={"after_8": 8})
BOTH_SIZES = noted({"after_8": 0, "after_12": 0}, {"after_8": 8, "after_12": 12})
REFUSED = {"error": "NotImplementedError: Operator ... does not have a sharding strategy registered."}
RIGHT = [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
WRONG = [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]


def _graph(broken, mended=False):
    return {
        "broken": noted({"graph": False}, {"graph": broken}),
        "mended": noted({"graph": False}, {"graph": mended}),
    }


def _schedules(gpipe, one_f_one_b):
    return {"schedules": noted({"ScheduleGPipe": gpipe, "Schedule1F1B": one_f_one_b})}


def _shares(difference, part=(4, 8)):
    notes = {"difference": difference, "whole": [8, 8], "part": list(part)}
    return {"mesh of 1 and 2": noted({}, notes, notes)}


def _distributed(given, mine):
    return {
        "given": noted(
            *({"whole": [whole] * 2, "mine": [own] * 2} for whole, own in ((0, 0), (1, 1), given))
        ),
        "own": noted({}, {"whole": [1.0] * 2, "mine": [1.0] * 2}, {"whole": [mine] * 2, "mine": [mine] * 2}),
    }


def _attention(**what):
    return noted({"rows": [0, 1, 6, 7], **what}, {"rows": [2, 3, 4, 5], **what})


def _wrapped(synchronised, own):
    return {"wrapped": noted({"synchronised": 1.0, "own": 1.0}, {"synchronised": synchronised, "own": own})}


def _transposed(**what):
    return {"transposed": noted({"contiguous": False, **what}, {"contiguous": False, **what})}


CASES = {
    "A01": [
        (Verdict.HOLDS, {"forward": noted({}, {"rows": 8, "difference": 8.9e-08})}),
        (Verdict.DOES_NOT_HOLD, {"forward": noted({}, {"rows": 8, "difference": 0.7})}),
        (Verdict.DOES_NOT_HOLD, {"forward": [raised("no backend"), raised("no backend")]}),
    ],
    "A02": [
        (Verdict.HOLDS, {"broken": [RESET, ABORTED], "mended": BOTH_SIZES}),
        (Verdict.DOES_NOT_HOLD, {"broken": BOTH_SIZES, "mended": BOTH_SIZES}),
        (Verdict.ERROR, {"broken": BOTH_SIZES, "mended": [RESET, ABORTED]}),
    ],
    "A03": [
        (Verdict.DOES_NOT_HOLD, _graph(broken=True)),
        (Verdict.HOLDS, _graph(broken=False)),
    ],
    "A04": [
        (Verdict.DOES_NOT_HOLD, _schedules([], [1])),
        (Verdict.HOLDS, _schedules([4], [1, 4])),
    ],
    "A05": [
        (Verdict.HOLDS, _shares(6e-08)),
        (Verdict.DOES_NOT_HOLD, _shares(0.3)),
        (Verdict.DOES_NOT_HOLD, _shares(0.0, part=(8, 8))),
    ],
    "A06": [
        (Verdict.HOLDS, _distributed((1.0, 1.0), 2.0)),
        (Verdict.DOES_NOT_HOLD, _distributed((1.0, 2.0), 2.0)),
        (Verdict.DOES_NOT_HOLD, _distributed((2.0, 2.0), 2.0)),
    ],
    "A07": [
        (Verdict.DOES_NOT_HOLD, {"attention": _attention(**REFUSED)}),
        (Verdict.HOLDS, {"attention": _attention(difference=0.004)}),
        (Verdict.DOES_NOT_HOLD, {"attention": _attention(difference=1.5)}),
    ],
    "A08": [
        (Verdict.HOLDS, {"broken": _attention(difference=3.6), "mended": _attention(**REFUSED)}),
        (Verdict.HOLDS, {"broken": _attention(difference=3.6), "mended": _attention(difference=0.004)}),
        (Verdict.DOES_NOT_HOLD, {"broken": _attention(difference=0.0), "mended": _attention(difference=0.0)}),
    ],
    "R20": [
        (Verdict.HOLDS, _wrapped(1.0, 2.0)),
        (Verdict.DOES_NOT_HOLD, _wrapped(1.0, 1.0)),
        (Verdict.DOES_NOT_HOLD, _wrapped(2.0, 2.0)),
    ],
    "R21": [
        (Verdict.HOLDS, _transposed(with_gradient=RIGHT, plain=RIGHT)),
        (Verdict.DOES_NOT_HOLD, _transposed(with_gradient=WRONG, plain=RIGHT)),
        (Verdict.DOES_NOT_HOLD, _transposed(error="Tensors must be contiguous")),
        (Verdict.ERROR, {"transposed": noted({"contiguous": True, "with_gradient": RIGHT, "plain": RIGHT})}),
    ],
}
