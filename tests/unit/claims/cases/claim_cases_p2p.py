"""Cases of the claims about what has happened when send and recv return."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict

ONE, TWO, MIXED = [1.0, 1.0], [2.0, 2.0], [1.0, 2.0]


def _returns(small, large, recv):
    """How long after the call each returned; the other side always came after 0.4 s."""
    sender = {
        "small_called": 10.0,
        "small_returned": 10.0 + small,
        "large_called": 20.0,
        "large_returned": 20.0 + large,
    }
    return {
        "late receiver": noted(sender, {"small_came": 10.4, "large_came": 20.4}),
        "late sender": noted({"came": 30.4}, {"returned": 30.0 + recv, "arrived": [1.0] * 4}),
    }


def _overwritten(broken, mended, waited=0.12):
    return {
        "broken": noted({"wait_returned": 10.0 + waited}, {"came": 10.1, "arrived": broken}),
        "mended": noted({}, {"arrived": mended}),
        "read early": noted({}, {"before": [-1.0] * 4, "after": [1.0] * 4}),
    }


def _arrived(broken, mended):
    return {"broken": noted({}, {"arrived": broken}), "mended": noted({}, {"arrived": mended})}


def _two(first, second):
    return {
        "broken": noted({}, {"first": first, "second": second}),
        "mended": noted({}, {"first": ONE, "second": TWO}),
    }


SWAPPED = noted({"tried": True, "got": [1.0] * 4}, {"tried": True, "got": [0.0] * 4}, {})
STUCK = [seen(RankEnd.HUNG, notes={"tried": True}, line="work.wait()") for _ in range(2)] + noted({})
ELSEWHERE = [seen(RankEnd.HUNG, notes={"tried": True}, line="world.init()") for _ in range(2)] + noted({})


def _late(returned):
    return {
        "broken": noted(
            {"tried": True, "returned": returned}, {"tried": True, "returned": returned}, {"came": 10.4}
        ),
        "mended": noted({"returned": 20.5}, {"returned": 20.5}, {"came": 20.4}),
    }


CASES = {
    "C01": [
        (Verdict.DOES_NOT_HOLD, _returns(0.401, 0.44, 0.402)),
        (Verdict.HOLDS, _returns(0.001, 0.002, 0.001)),
        (Verdict.DOES_NOT_HOLD, _returns(0.001, 0.44, 0.001)),
    ],
    "C02": [
        (Verdict.HOLDS, _overwritten(TWO, ONE)),
        (Verdict.HOLDS, _overwritten(MIXED, ONE, waited=0.0)),
        (Verdict.DOES_NOT_HOLD, _overwritten(ONE, ONE)),
        (Verdict.DOES_NOT_HOLD, _overwritten(TWO, TWO)),
    ],
    "C09": [
        (Verdict.DOES_NOT_HOLD, {"subset first": SWAPPED, "subset later": SWAPPED}),
        (Verdict.HOLDS, {"subset first": STUCK, "subset later": SWAPPED}),
        (Verdict.ERROR, {"subset first": ELSEWHERE, "subset later": SWAPPED}),
    ],
    "G02": [
        (Verdict.DOES_NOT_HOLD, _arrived(ONE, ONE)),
        (Verdict.HOLDS, _arrived(MIXED, ONE)),
    ],
    "G03": [
        (Verdict.HOLDS, _two(TWO, TWO)),
        (Verdict.DOES_NOT_HOLD, _two(ONE, TWO)),
    ],
    "G10": [
        (Verdict.DOES_NOT_HOLD, _late(10.05)),
        (Verdict.HOLDS, _late(10.45)),
    ],
}
