"""Cases of the claims about the handles of isend and irecv."""

from __future__ import annotations

from claim_seen import noted, raised, seen

from ppwork.claims.claim import RankEnd, Verdict

TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:9951"


def _polled(polled, watched):
    each = {"ever": polled, "arrived": [1.0] * 4, "after_wait": True}
    return {
        "broken": noted(each, each),
        "mended": noted({"told": True}, {"told": True}),
        "data is here": noted({}, {"ever": watched, "here": 1024.0}),
    }


def _twice(second):
    return {"broken": [*noted({}), second], "mended": noted({}, {"first": [1.0] * 4, "again": False})}


def _timed(*broken):
    return {"broken": list(broken), "mended": noted({"sent": True}, {"poll": "", "arrived": [1.0] * 4})}


def _dropped(*broken, mended):
    return {"broken": list(broken), "mended": noted({"sent": True}, mended)}


SENT = noted({"sent": True})[0]
KEPT_SEND = {"first": 1.0, "second": 2.0}
KEPT_RECEIVE = {"first": 1.0, "got": 2.0}


def _nobody(isend):
    refused = raised("Invalid destination rank")
    return {"send": [refused, refused], "isend": [refused, isend], "irecv": [refused, refused]}


CASES = {
    "T19": [
        (Verdict.HOLDS, _nobody(raised("Invalid destination rank"))),
        (Verdict.DOES_NOT_HOLD, _nobody(seen(RankEnd.EXITED, exit_code=-11))),
        (Verdict.DOES_NOT_HOLD, _nobody(raised("Wait timeout"))),
    ],
    "T01": [
        (Verdict.HOLDS, _polled(False, False)),
        (Verdict.DOES_NOT_HOLD, _polled(True, True)),
        (Verdict.ERROR, _polled(False, True)),
    ],
    "T02": [
        (Verdict.HOLDS, _twice(raised(TIMED_OUT, first=[1.0] * 4))),
        (Verdict.DOES_NOT_HOLD, _twice(noted({"first": [1.0] * 4, "second": True})[0])),
        (Verdict.ERROR, _twice(raised(CLOSED, first=[1.0] * 4))),
    ],
    "T03": [
        (
            Verdict.HOLDS,
            _timed(raised(CLOSED), raised("Application timeout caused pair closure", poll=TIMED_OUT)),
        ),
        (Verdict.DOES_NOT_HOLD, _timed(*noted({"sent": True}, {"poll": TIMED_OUT, "arrived": [1.0] * 4}))),
        (Verdict.ERROR, _timed(*noted({"sent": True}, {"arrived": [1.0] * 4}))),
    ],
    "T06": [
        (Verdict.HOLDS, _dropped(raised(CLOSED), raised(TIMED_OUT), mended=KEPT_SEND)),
        (Verdict.HOLDS, _dropped(SENT, raised(TIMED_OUT, first=2.0), mended=KEPT_SEND)),
        (Verdict.DOES_NOT_HOLD, _dropped(SENT, *noted(KEPT_SEND), mended=KEPT_SEND)),
        (Verdict.ERROR, _dropped(SENT, raised("Connection refused"), mended=KEPT_SEND)),
    ],
    "T15": [
        (Verdict.HOLDS, _dropped(SENT, raised(TIMED_OUT), mended=KEPT_RECEIVE)),
        (Verdict.HOLDS, _dropped(SENT, *noted({"got": 2.0}), mended=KEPT_RECEIVE)),
        (Verdict.DOES_NOT_HOLD, _dropped(SENT, *noted({"got": 1.0}), mended=KEPT_RECEIVE)),
        (Verdict.ERROR, _dropped(SENT, raised(CLOSED), mended=KEPT_RECEIVE)),
    ],
}
