"""Cases of the claims about what gloo checks of a message."""

from __future__ import annotations

from claim_seen import noted, raised, seen

from ppwork.claims.claim import RankEnd, Verdict

TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int16", "uint16", "bool")
ALL = dict.fromkeys(DTYPES, True)
REFUSED = ALL | dict.fromkeys(("float8_e4m3fn", "int16", "uint16"), "Invalid scalar type")
BITS = 1065353216


def _long(receiver):
    return {
        "broken": [*noted({"sent": True}), receiver],
        "mended": noted({"sent": True}, {"alive": True, "arrived": [1.0] * 8}),
    }


def _dtype(arrived):
    return {
        "broken": noted({}, {"arrived": arrived, "bits_of_one": BITS}),
        "mended": noted({}, {"arrived": [1.0, 1.0]}),
    }


def _short(receiver):
    return {"broken": [*noted({}), receiver], "mended": noted({}, {"arrived": [1.0, 1.0]})}


def _copy(small, large):
    return {
        "broken": noted({}, {"small": [small] * 2, "large": [large] * 2}),
        "mended": noted({}, {"small": [1.0, 1.0], "large": [1.0, 1.0]}),
    }


def _gaps(sender, receiver):
    return {"broken": [*noted(sender), receiver], "mended": noted({}, {"arrived": True})}


def _dtypes(by_send, by_broadcast):
    return {"by send": noted({}, by_send), "broken": noted({}, by_broadcast), "mended": noted({}, ALL)}


NOT_CONTIGUOUS = {"refused": "input tensor has to be contiguous"}
NOT_SELF = {"send": "Invalid destination rank"}

CASES = {
    "T04": [
        (Verdict.HOLDS, _long(seen(RankEnd.EXITED, exit_code=-6))),
        (Verdict.DOES_NOT_HOLD, _long(seen(notes={"caught": "message too long", "alive": True}))),
    ],
    "T05": [
        (Verdict.HOLDS, _dtype([BITS, BITS])),
        (Verdict.DOES_NOT_HOLD, _dtype([1, 1])),
    ],
    "T08": [
        (Verdict.HOLDS, _short(seen(notes={"arrived": [1.0, 1.0, -7.0, -7.0]}))),
        (Verdict.DOES_NOT_HOLD, _short(seen(notes={"arrived": [1.0, 1.0, 0.0, 0.0]}))),
        (Verdict.DOES_NOT_HOLD, _short(raised("message too short"))),
    ],
    "T09": [
        (Verdict.HOLDS, _copy(2.0, 2.0)),
        (Verdict.DOES_NOT_HOLD, _copy(1.0, 2.0)),
    ],
    "T10": [
        (Verdict.HOLDS, _gaps(NOT_CONTIGUOUS, raised(TIMED_OUT))),
        (Verdict.DOES_NOT_HOLD, _gaps({}, seen(notes={"arrived": True}))),
        (Verdict.ERROR, _gaps(NOT_CONTIGUOUS, raised("Connection closed by peer"))),
    ],
    "T11": [
        (Verdict.HOLDS, _dtypes(ALL, REFUSED)),
        (Verdict.DOES_NOT_HOLD, _dtypes(ALL, ALL)),
        (Verdict.DOES_NOT_HOLD, _dtypes(REFUSED, REFUSED)),
    ],
    "T12": [
        (
            Verdict.DOES_NOT_HOLD,
            {"to itself": noted(NOT_SELF | {"isend": "[pair.cc:801] Pair is not connected"})},
        ),
        (Verdict.HOLDS, {"to itself": noted(NOT_SELF | {"arrived": 1.0})}),
    ],
    "T13": [
        (Verdict.HOLDS, {"tags": noted({}, {"order": [5, 4, 1, 2, 3]})}),
        (Verdict.DOES_NOT_HOLD, {"tags": noted({}, {"order": [1, 2, 3, 4, 5]})}),
    ],
    "T14": [
        (Verdict.HOLDS, {"anybody": noted({"pairs": [[2, 2.0], [1, 1.0]]}, {}, {})}),
        (Verdict.DOES_NOT_HOLD, {"anybody": noted({"pairs": [[1, 2.0], [2, 1.0]]}, {}, {})}),
    ],
}
