"""Cases of the claims about who starts ranks, and from which thread groups are made."""

from __future__ import annotations

from claim_seen import noted

from ppwork.claims.claim import Verdict


def _launched(by_agent, by_hand=False):
    return {
        "by hand": noted({"by_hand": by_hand, "with_variable": True}),
        "by the agent": noted({"by_agent": by_agent}),
    }


def _spawned(other_is_gone, named=True):
    notes = {"error": "ProcessRaisedException", "named": named, "other_is_gone": other_is_gone}
    return {"spawned": noted(notes | {"of_a_cell": "AttributeError: Can't pickle local object"})}


def _totals(down, up):
    return noted(*[{"down": down, "up": up}] * 2)


CASES = {
    "D25": [
        (Verdict.HOLDS, _launched(by_agent=True)),
        (Verdict.DOES_NOT_HOLD, _launched(by_agent=False)),
        (Verdict.DOES_NOT_HOLD, _launched(by_agent=True, by_hand=True)),
    ],
    "D26": [
        (Verdict.HOLDS, _spawned(other_is_gone=True)),
        (Verdict.DOES_NOT_HOLD, _spawned(other_is_gone=False)),
        (Verdict.DOES_NOT_HOLD, _spawned(other_is_gone=True, named=False)),
    ],
    "D27": [
        (Verdict.HOLDS, {"broken": _totals(11.0, 11.0), "mended": _totals(2.0, 20.0)}),
        (Verdict.HOLDS, {"broken": noted({"down_error": "timed out"}, {}), "mended": _totals(2.0, 20.0)}),
        (Verdict.DOES_NOT_HOLD, {"broken": _totals(2.0, 20.0), "mended": _totals(2.0, 20.0)}),
        (Verdict.ERROR, {"broken": _totals(11.0, 11.0), "mended": _totals(11.0, 11.0)}),
    ],
}
