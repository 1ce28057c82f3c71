"""Cases of the claims about how ranks find each other."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict

REFUSED = "Gloo connectFullMesh failed with [/build/pair.cc:152] timed out connecting: Connection refused"
UNSET = "Error initializing torch.distributed: environment variable {} expected, but not set"


def _totals(file):
    return {
        "tcp": noted({"total": 3.0}, {"total": 3.0}),
        "file": noted({"total": file}, {"total": file}),
        "environment": noted({"total": 3.0}, {"total": 3.0}),
    }


def again(broken, worked):
    """A group made again: what the broken program's ranks saw, and how often the mended one worked."""
    return {"broken": broken, "mended": noted({"worked": worked}, {"worked": worked})}


FAILED = noted({"worked": 1}, {"worked": 1, "error": REFUSED})
WORKED = noted({"worked": 8}, {"worked": 8})


def stood(line):
    """Both ranks were in this line at the limit."""
    return [seen(RankEnd.HUNG, notes={"worked": 2}, line=line) for _ in range(2)]


def _missing(**changed):
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {"one missing": noted({name: UNSET.format(name) for name in names} | changed)}


NEVER = {
    "kind": "DistStoreError",
    "error": "Timed out after 2 seconds waiting for clients. 1/2 clients joined.",
    "after_s": 2.04,
}


def _waits(returned, never):
    return {"late": noted({"returned": returned}, {"came": 10.5}), "never": [never, *noted({})]}


def _connections(eager, lazy, lazy_after):
    def ranks(start, after):
        return noted(*({"at_start": s, "after_send": a} for s, a in zip(start, after, strict=True)))

    return {"eager": ranks(eager, eager), "lazy": ranks(lazy, lazy_after)}


NONE, ALL, EDGE = [0] * 4, [3] * 4, [1, 1, 0, 0]

CASES = {
    "D01": [
        (Verdict.HOLDS, _totals(3.0)),
        (Verdict.DOES_NOT_HOLD, _totals(1.0)),
    ],
    "D02": [
        (Verdict.HOLDS, again(FAILED, 3)),
        (Verdict.HOLDS, again(stood("world.init(timeout=BOUND, **how(number))"), 3)),
        (Verdict.DOES_NOT_HOLD, again(WORKED, 3)),
        (Verdict.DOES_NOT_HOLD, again(FAILED, 2)),
        (Verdict.ERROR, again(stood("turn.get('begun2')"), 3)),
    ],
    "D03": [
        (Verdict.DOES_NOT_HOLD, _missing()),
        (Verdict.HOLDS, _missing(MASTER_ADDR="")),
        (Verdict.DOES_NOT_HOLD, _missing(MASTER_ADDR="", MASTER_PORT="")),
    ],
    "D04": [
        (Verdict.HOLDS, _waits(10.503, seen(notes=NEVER))),
        (Verdict.DOES_NOT_HOLD, _waits(10.1, seen(notes=NEVER))),
        (Verdict.DOES_NOT_HOLD, _waits(10.503, seen(RankEnd.HUNG))),
        (Verdict.DOES_NOT_HOLD, _waits(10.503, seen(notes=NEVER | {"after_s": 9.0}))),
    ],
    "D05": [
        (Verdict.HOLDS, _connections(ALL, NONE, EDGE)),
        (Verdict.DOES_NOT_HOLD, _connections(ALL, ALL, ALL)),
        (Verdict.DOES_NOT_HOLD, _connections(NONE, NONE, EDGE)),
    ],
}
