"""Cases of the claims about groups."""

from __future__ import annotations

from claim_seen import noted, raised

from ppwork.claims.claim import Verdict

TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:62101"
GOT = {"got": [1.0] * 4}


def _created(left_out=True, told=True, later=False, swapped=False):
    late = [{"came": 10.4, "returned": 10.5}]
    return {
        "left out": noted({}, GOT, GOT)
        if left_out
        else [*noted({}), raised("Wait timeout"), raised("Wait timeout")],
        "left out until told": noted({"called": False}, *[{"total": 1110.0} if told else {}] * 3),
        "late": noted(*late, {"returned": 10.1}, {"returned": 10.1}),
        "late with barrier": noted(*late, {"returned": 10.5}, {"returned": 10.5}),
        "the next group": noted(*[GOT | {"tried": True}] * 3)
        if later
        else [raised("Wait timeout", tried=True)] * 3,
        "another order": noted(GOT, {}) if swapped else [raised(TIMED_OUT)] * 2,
        "one order": noted(GOT, {"got": [0.0] * 4}),
    }


def _late(*broken):
    return {"broken": list(broken), "mended": noted({"done": True}, {"done": True})}


def _handles(non_member, handle, rank):
    return {
        "handles": noted(
            {"non_member": non_member, "handle": handle, "rank_in_it": rank, "size": -1},
            {"non_member": False, "handle": "ProcessGroup", "rank_in_it": 0, "size": 2},
            {"non_member": False, "handle": "ProcessGroup", "rank_in_it": 1, "size": 2},
        )
    }


def _root(raises, refused):
    broken = (
        {"raised": "ValueError: Global rank 0 is not part of group <torch...>"}
        if raises
        else {"got": [1.0] * 4}
    )
    tried = {f"src_{rank}": "ValueError" if rank in refused else 0 for rank in range(4)}
    member = {"src": [1.0] * 4, "group_src": [1.0] * 4}
    return {
        "broken": noted({}, broken, broken),
        "mended": noted({}, member, member),
        "all roots": noted({}, tried, {}, tried),
    }


def _bounds(without, waited_s, error):
    return {
        "bounds": noted(*[{"world": 1.0, "without": without, "with": 1.0}] * 2),
        "broken": noted({}, {"waited_s": waited_s, "error": error}),
        "mended": noted({}, {"waited_s": 1.01, "error": TIMED_OUT}),
    }


CASES = {
    "C04": [
        (Verdict.DOES_NOT_HOLD, _created()),
        (Verdict.DOES_NOT_HOLD, _created(later=True, swapped=True)),
        (Verdict.HOLDS, _created(left_out=False, told=False)),
        (Verdict.ERROR, _created(told=False)),
    ],
    "G04": [
        (
            Verdict.HOLDS,
            _late(
                raised(TIMED_OUT, "dist.send(envelope, 1)"),
                raised("Wait timeout", "back = dist.new_group([0, 1])"),
            ),
        ),
        (Verdict.DOES_NOT_HOLD, _late(*noted({"done": True}, {"done": True}))),
        (Verdict.ERROR, _late(raised(TIMED_OUT), raised(TIMED_OUT))),
    ],
    "G05": [
        (Verdict.HOLDS, _handles(True, "int", -1)),
        (Verdict.DOES_NOT_HOLD, _handles(False, "NoneType", 0)),
    ],
    "T07": [
        (Verdict.HOLDS, _root(True, {0, 2})),
        (Verdict.DOES_NOT_HOLD, _root(False, {2, 3})),
        (Verdict.ERROR, _root(False, {0, 2})),
    ],
    "T18": [
        (Verdict.HOLDS, _bounds(1800.0, 1.8, CLOSED)),
        (Verdict.DOES_NOT_HOLD, _bounds(1.0, 1.0, TIMED_OUT)),
        (Verdict.ERROR, _bounds(1800.0, 1.0, TIMED_OUT)),
    ],
}
