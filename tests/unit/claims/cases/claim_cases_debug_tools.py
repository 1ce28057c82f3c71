"""Cases of the claims about what torch.distributed says by itself."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict


def _lines(info, debug, trace):
    return {"info": info, "debug": debug, "trace": trace}


SILENT = _lines(0, 0, 0)


def _logs(detail, without=SILENT):
    levels = {"OFF": _lines(1, 0, 0), "INFO": _lines(3, 11, 0), "DETAIL": detail}
    return {"at INFO": noted(levels), "without": noted(dict.fromkeys(levels, without))}


NETWORK = ["DistNetworkError", "DistError", "RuntimeError"]
STORE = ["DistStoreError", "DistError", "RuntimeError"]


def _errors(backend, server=NETWORK):
    stores = {"no server": server, "no key": STORE, "no key in a HashStore": STORE}
    stores["empty queue"] = ["QueueEmptyError", *STORE]
    return {
        "stores": noted(stores),
        "backend": [seen(RankEnd.EXITED), *noted({"recv": backend, "barrier": backend, "error": "closed"})],
    }


def _stopped(other, rank):
    quit_ = seen(RankEnd.RAISED, error_type="BdbQuit", notes={"before_s": 5.0, "after_s": 3600.0})
    return {
        "at a terminal": noted(other, {"continued": 10.4, "returned": 10.5} | rank),
        "without one": [seen(RankEnd.RAISED, error_type="RuntimeError"), quit_],
    }


def _server(*addresses):
    ranks = [{"addresses": [one], "missing": ""} for one in addresses] or [
        {"addresses": [], "missing": "jinja2"}
    ]
    return {"documented": noted(*ranks), "on a unix socket": noted({"addresses": [], "stack": True})}


def _status(**notes):
    return {"peer gone": [seen(RankEnd.EXITED), *noted(notes)]}


def _levels(*levels):
    when = ("at start", "by call", "environment changed", "environment read again")
    return {"levels": noted({"levels": dict(zip(when, levels, strict=True))})}


def _stacks(with_it, frames):
    return {
        "with it": noted({"lines": with_it, "frames": frames}),
        "without": noted({"lines": 1, "frames": 0}),
    }


CASES = {
    "D28": [
        (Verdict.HOLDS, _stacks(25, 7)),
        (Verdict.DOES_NOT_HOLD, _stacks(1, 0)),
    ],
    "D29": [
        (Verdict.HOLDS, _levels("OFF", "INFO", "INFO", "DETAIL")),
        (Verdict.DOES_NOT_HOLD, _levels("OFF", "INFO", "DETAIL", "DETAIL")),
        (Verdict.DOES_NOT_HOLD, _levels("OFF", "OFF", "OFF", "OFF")),
    ],
    "D10": [
        (Verdict.HOLDS, _logs(_lines(3, 11, 8))),
        (Verdict.DOES_NOT_HOLD, _logs(_lines(3, 11, 0))),
        (Verdict.DOES_NOT_HOLD, _logs(_lines(3, 11, 8), without=_lines(0, 11, 0))),
    ],
    "D11": [
        (Verdict.DOES_NOT_HOLD, _errors(["RuntimeError"])),
        (Verdict.HOLDS, _errors(["DistBackendError", "DistError", "RuntimeError"])),
        (Verdict.DOES_NOT_HOLD, _errors(NETWORK, server=["RuntimeError"])),
    ],
    "D12": [
        (Verdict.HOLDS, _stopped({"returned": 10.5}, {"here": 1})),
        (Verdict.DOES_NOT_HOLD, _stopped({"returned": 10.1}, {"here": 1})),
        (Verdict.DOES_NOT_HOLD, _stopped({"returned": 10.5, "here": 0}, {})),
    ],
    "D13": [
        (Verdict.HOLDS, _server(":::58795", ":::33681")),
        (Verdict.DOES_NOT_HOLD, _server("127.0.0.1:58795", "127.0.0.1:33681")),
        (Verdict.NOT_TESTABLE, _server()),
    ],
    "R04": [
        (Verdict.DOES_NOT_HOLD, _status(there=False)),
        (Verdict.DOES_NOT_HOLD, _status(there=True, before="ErrorType.SUCCESS", after="ErrorType.SUCCESS")),
        (Verdict.HOLDS, _status(there=True, before="ErrorType.SUCCESS", after="ErrorType.COMM_ERROR")),
    ],
}
