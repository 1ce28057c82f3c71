"""Cases of the claims about profiles and the flight recorder."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict

COLLECTIVES = ["gloo:broadcast", "gloo:all_reduce", "gloo:barrier"]


def _profiled(*receiver):
    sender = {"names": ["gloo:broadcast", "gloo:send"], "facts": []}
    return {"profiled": noted(sender, {"names": ["gloo:broadcast", *receiver], "facts": []})}


def _records(names, records):
    drawn = {"collectives": 4, "messages": 3, "records": records}
    return {
        "named": noted({"names": names, "states": ["scheduled"]}, {}),
        "counted": noted(drawn, drawn),
    }


def _dumped(late, *files):
    ours = {"names": ["gloo:all_reduce", "gloo:all_reduce"]}
    return {
        "by itself": [late, *noted({"error": "", "files": list(files)})],
        "by ourselves": noted(ours, ours),
    }


TIMED_OUT = seen(notes={"error": "Timed out waiting 1000ms", "files": []})

CASES = {
    "D14": [
        (Verdict.HOLDS, _profiled("gloo:recv")),
        (Verdict.DOES_NOT_HOLD, _profiled()),
    ],
    "D15": [
        (Verdict.HOLDS, _records(COLLECTIVES, 4)),
        (Verdict.DOES_NOT_HOLD, _records([*COLLECTIVES, "nccl:send 0->1"], 7)),
        (Verdict.ERROR, _records(COLLECTIVES, 7)),
        (Verdict.ERROR, _records([], 4)),
    ],
    "R03": [
        (Verdict.DOES_NOT_HOLD, _dumped(TIMED_OUT)),
        (Verdict.HOLDS, _dumped(TIMED_OUT, "records0")),
        (Verdict.HOLDS, _dumped(seen(RankEnd.EXITED, exit_code=-6), "records0")),
        (Verdict.ERROR, _dumped(seen(notes={"error": "", "files": []}))),
    ],
}
