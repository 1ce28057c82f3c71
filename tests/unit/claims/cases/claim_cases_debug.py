"""Cases of the claims about debugging tools."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict

TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
GLOO_ONLY = "monitored_barrier is only implemented for GLOO backend."


def _monitored(late, drawn, elsewhere=GLOO_ONLY):
    return {
        "late rank": noted({"error": f"[Rank 0]: {late}"}, {}, {}),
        "drawn": noted({"missing": [1, 3], "error": f"[Rank 0]: {drawn}"}, {}, {}, {}),
        "barrier": noted({"error": TIMED_OUT}, {}, {}),
        "elsewhere": noted({"error": elsewhere}),
    }


NAMED = "Rank 2 failed to pass monitoredBarrier in 1000 ms"
NAMED_BOTH = "Ranks 1, 3 failed to pass monitoredBarrier in 1000 ms"


def _mismatch(one, two):
    def rank(number, shape):
        return f"Rank {number} is running collective: CollectiveFingerPrint(TensorShape=[{shape}], ...)"

    return {"error": f"Detected mismatch. {rank(0, one)}, but {rank(1, two)}."}


def _detail(mended, mesh):
    return {
        "broken": [seen(RankEnd.EXITED, exit_code=-6), *noted({"error": "Connection reset by peer"})],
        "mended": noted(mended, mended),
        "in a mesh": noted({}, mesh, mesh),
    }


RESET = {"error": "Connection reset by peer"}

CASES = {
    "C07": [
        (Verdict.HOLDS, _monitored(NAMED, NAMED_BOTH)),
        (Verdict.DOES_NOT_HOLD, _monitored(TIMED_OUT, TIMED_OUT)),
        (Verdict.DOES_NOT_HOLD, _monitored(NAMED, NAMED_BOTH, elsewhere="")),
        (Verdict.ERROR, _monitored(NAMED, NAMED)),
    ],
    "C11": [
        (Verdict.HOLDS, _detail(_mismatch("3", "5"), _mismatch("2, 7", "7, 2"))),
        (Verdict.DOES_NOT_HOLD, _detail(RESET, RESET)),
        (Verdict.ERROR, _detail(_mismatch("3", "5"), RESET)),
    ],
    "G08": [
        (Verdict.HOLDS, {"broadcasts": noted({"plain_ms": 0.095, "detail_ms": 0.32})}),
        (Verdict.DOES_NOT_HOLD, {"broadcasts": noted({"plain_ms": 0.095, "detail_ms": 0.1})}),
    ],
}
