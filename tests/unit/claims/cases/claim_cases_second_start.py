"""Cases of the claims about checkpoints, second starts, ended groups, and about NCCL alone."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict

WHOLE = [float(number) for number in range(8)]
ONE, TWO = [1.0, 1.0], [2.0, 2.0]
NEEDS = (
    'CheckpointException ranks:dict_keys([0])\n  raise AssertionError("DCP needs MASTER_ADDR to use it")\n'
)
DUPLICATE = {"tried": True, "error": "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"}
SUM = {"tried": True, "total": 2.0}


def _read(got):
    return {"two, then one": noted({"mine": WHOLE[:4], "read": got}, {"mine": WHOLE[4:]})}


def _saved(returned_s, read):
    return {
        "thread": noted({"returned_s": 0.002, "done_s": 0.02, "read": ONE}),
        "process": noted({"returned_s": returned_s, "done_s": 1.8, "read": read}),
    }


def _prefix(keys, error=NEEDS):
    return {"with an address": noted({"keys": keys}, {"keys": 0}), "without one": noted({"error": error})}


def _again(plain):
    first = {"plain_0": 1, "prefixed_0": 1}
    return {
        "agent's store": noted({**first, "plain_1": plain, "prefixed_1": 1}),
        "a store of its own": noted({**first, "plain_1": 1, "prefixed_1": 1}),
    }


def _ended(**notes):
    return {"ended": noted(notes, notes)}


def _tags(first, second):
    return {
        "broken": noted({}, {"tag_1": first, "tag_2": second}),
        "mended": noted({}, {"tag_1": 1.0, "tag_2": 2.0}),
    }


CASES = {
    "A09": [(Verdict.HOLDS, _read(WHOLE)), (Verdict.DOES_NOT_HOLD, _read([*WHOLE[:4], *[0.0] * 4]))],
    "A10": [
        (Verdict.DOES_NOT_HOLD, _again(2)),
        (Verdict.HOLDS, _again(1)),
        (Verdict.ERROR, {name: noted({"plain_0": 1, "prefixed_0": 1}) for name in _again(1)}),
    ],
    "A11": [
        (
            Verdict.DOES_NOT_HOLD,
            {"nowhere": noted(*[{"passed_by": "CheckpointException", "error": "no metadata"}] * 2)},
        ),
        (Verdict.HOLDS, {"nowhere": noted(*[{"caught": "FileNotFoundError"}] * 2)}),
    ],
    "R22": [
        (
            Verdict.DOES_NOT_HOLD,
            _ended(shutdown_returned=True, shutdown_total=2.0, abort_returned=True, abort_total=2.0),
        ),
        (Verdict.DOES_NOT_HOLD, _ended(shutdown_error="no attribute", abort_error="no attribute")),
        (
            Verdict.HOLDS,
            _ended(
                shutdown_returned=True, shutdown_error="aborted", abort_returned=True, abort_error="aborted"
            ),
        ),
    ],
    "R23": [
        (Verdict.HOLDS, {"graph": noted({"values": [7.0] * 4}, {"values": [7.0] * 4})}),
        (Verdict.DOES_NOT_HOLD, {"graph": noted({"values": [7.0] * 4}, {"values": [0.0] * 4})}),
        (Verdict.DOES_NOT_HOLD, {"graph": noted({"error": "not permitted"}, {"error": "not permitted"})}),
    ],
    "R24": [
        (Verdict.HOLDS, _saved(0.005, ONE)),
        (Verdict.DOES_NOT_HOLD, _saved(0.005, TWO)),
        (Verdict.DOES_NOT_HOLD, _saved(1.7, ONE)),
    ],
    "R25": [(Verdict.HOLDS, _prefix(2)), (Verdict.DOES_NOT_HOLD, _prefix(0, error=""))],
    "R26": [
        (Verdict.HOLDS, {"broken": noted(DUPLICATE, DUPLICATE), "mended": noted(SUM, SUM)}),
        (Verdict.DOES_NOT_HOLD, {"broken": noted(SUM, SUM), "mended": noted(SUM, SUM)}),
    ],
    "R27": [
        (Verdict.HOLDS, _tags(2.0, 1.0)),
        (Verdict.DOES_NOT_HOLD, _tags(1.0, 2.0)),
        (Verdict.HOLDS, {**_tags(1.0, 2.0), "broken": [seen(RankEnd.HUNG), seen(RankEnd.HUNG)]}),
    ],
}
