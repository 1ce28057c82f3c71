"""Cases of the claims about stores."""

from __future__ import annotations

from cases.claim_cases_startup import FAILED, WORKED, again
from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict


def _there(hash_store, file=True):
    there = {"TCPStore": True, "FileStore": file, "PrefixStore": True, "HashStore": hash_store}
    return {"two processes": noted({}, there), "two threads": noted({"got": "value"})}


def _refused(*file, tcp=()):
    refused = {"TCPStore": list(tcp), "FileStore": list(file), "HashStore": [], "PrefixStore": []}
    return {"each on each": noted(refused)}


def _listens(address, key="written by a stranger"):
    return {
        "broken": noted({"addresses": [address], "key": key}),
        "mended": noted({"addresses": ["127.0.0.1"], "key": "written by a stranger"}),
    }


TAKEN = {"kind": "DistNetworkError", "error": "The server socket has failed to listen: EADDRINUSE"}


def _second(without, agent):
    return {"without": noted(without), "with the agent's word": noted(agent)}


CLOSED = {"kind": "DistNetworkError", "error": "Failed to recv, got 0 bytes.", "at": 10.55}


def _peer(waiting, got="value"):
    gone = seen(RankEnd.EXITED)
    return {
        "host": [seen(RankEnd.EXITED, notes={"left": 10.5}), *noted(waiting)],
        "client": [*noted({}), gone, *noted({"got": got} if got else {})],
    }


CASES = {
    "D06": [
        (Verdict.HOLDS, _there(hash_store=False)),
        (Verdict.DOES_NOT_HOLD, _there(hash_store=True)),
        (Verdict.DOES_NOT_HOLD, _there(hash_store=False, file=False)),
    ],
    "D07": [
        (Verdict.DOES_NOT_HOLD, _refused("queue_push")),
        (Verdict.HOLDS, _refused("delete_key")),
        (Verdict.DOES_NOT_HOLD, _refused("delete_key", tcp=["queue_push"])),
    ],
    "D08": [
        (Verdict.HOLDS, again(FAILED, 3)),
        (Verdict.DOES_NOT_HOLD, again(WORKED, 3)),
        (Verdict.DOES_NOT_HOLD, again(FAILED, 1)),
    ],
    "D09": [
        (Verdict.HOLDS, _listens("::")),
        (Verdict.DOES_NOT_HOLD, _listens("127.0.0.1")),
        (Verdict.DOES_NOT_HOLD, _listens("::", key="")),
    ],
    "R01": [
        (Verdict.HOLDS, _second(TAKEN, {"got": "of the first"})),
        (Verdict.DOES_NOT_HOLD, _second(TAKEN, TAKEN)),
        (Verdict.DOES_NOT_HOLD, _second({"got": "of the first"}, {"got": "of the first"})),
    ],
    "R02": [
        (Verdict.HOLDS, _peer(CLOSED)),
        (Verdict.DOES_NOT_HOLD, _peer(CLOSED | {"at": 15.6})),
        (Verdict.DOES_NOT_HOLD, _peer({})),
        (Verdict.DOES_NOT_HOLD, _peer(CLOSED, got="")),
    ],
}
