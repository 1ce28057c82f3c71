"""Cases of the claims about names and versions."""

from __future__ import annotations

from claim_seen import noted

from ppwork.claims.claim import Verdict
from ppwork.claims.themes.names import NEW, OF_TABLE, OLD

WORKS = {"there": True, "right": True, "warned": ""}
WARNS = {"there": True, "right": True, "warned": "FutureWarning"}
ABSENT = {"there": False}


def _names(new, old):
    both = dict.fromkeys(NEW, new) | dict.fromkeys(OLD, old)
    return {
        "both": noted(both, both),
        "mended": noted({"name": (OLD if new == ABSENT else NEW)[0], "got": [0.0, 1.0]}),
    }


def _nccl(*version):
    return {"version": noted({"nccl": list(version), "torch": "2.13.0"})}


def _table(**refused):
    return {"each": noted(dict.fromkeys((*OF_TABLE, "all_to_all"), "") | refused)}


NOT_THERE = "Backend gloo does not support alltoall"

CASES = {
    "D16": [
        (Verdict.HOLDS, _names(WORKS, WARNS)),
        (Verdict.DOES_NOT_HOLD, _names(ABSENT, WORKS)),
        (Verdict.DOES_NOT_HOLD, _names(WORKS, WORKS)),
        (Verdict.DOES_NOT_HOLD, _names(WORKS | {"right": False}, WARNS)),
    ],
    "D17": [
        (Verdict.HOLDS, _nccl(2, 28, 9)),
        (Verdict.DOES_NOT_HOLD, _nccl(2, 21, 5)),
        (Verdict.NOT_TESTABLE, _nccl()),
    ],
    "D18": [
        (Verdict.HOLDS, _table(all_to_all=NOT_THERE)),
        (Verdict.DOES_NOT_HOLD, _table()),
        (Verdict.DOES_NOT_HOLD, _table(all_to_all=NOT_THERE, gather=NOT_THERE)),
    ],
}
