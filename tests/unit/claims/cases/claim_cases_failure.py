"""Cases of the claims about bounds, the way out, and a rank's death."""

from __future__ import annotations

from claim_seen import noted, seen

from ppwork.claims.claim import RankEnd, Verdict

TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 1200ms for recv operation to complete"
CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:191. This is typically caused by ..."


def _defaults(others=1800.0, nccl=600.0):
    return {"constants": noted({"others": others, "nccl": nccl, "group": others})}


def _past_it(receiver):
    return {"past it": [*noted({}), receiver]}


WENT_ON = seen(notes={"raised_s": 1.01, "error": TIMED_OUT, "went_on": True})
CRASHED = seen(RankEnd.EXITED, exit_code=-6)


def _hang(bound_s, waiting):
    default = {"bound_s": bound_s, "waiting": waiting}
    return {"broken": noted(default, default), "mended": noted({}, {"raised_s": 2.0})}


def _exit(*ranks, in_order_s=2.0):
    in_order = [seen(notes={"ended": True}, seconds=in_order_s) for _ in range(2)]
    return {"one does not": list(ranks), "all do": in_order}


ENDED = seen(notes={"ended": True})


def _leaves(receiver):
    done = {"destroyed": True}
    return {"broken": noted({}, receiver), "mended": noted(done, done | {"got": [1.0, 2.0, -1.0]})}


def _aborted(recv_ended_s, error):
    receiver = {"aborted_s": 0.31, "recv_ended_s": recv_ended_s, "error": error}
    return {"broken": noted({}, receiver), "mended": [*noted({}), seen(RankEnd.EXITED, exit_code=3)]}


def _survivors(**got):
    told = {"seen_s": 0.004, "error": CLOSED, "collective": CLOSED}
    two = {"got": [1.0] * 4} if got else {}
    return {"survivors": [seen(RankEnd.EXITED, exit_code=9), *noted(told | got, told | two)]}


CASES = {
    "C03": [
        (Verdict.DOES_NOT_HOLD, _past_it(WENT_ON)),
        (Verdict.HOLDS, _past_it(CRASHED)),
        (Verdict.DOES_NOT_HOLD, _past_it(seen(RankEnd.HUNG))),
    ],
    "D49": [
        (Verdict.HOLDS, _defaults()),
        (Verdict.NOT_TESTABLE, _defaults(nccl=None)),
        (Verdict.DOES_NOT_HOLD, _defaults(others=60.0, nccl=None)),
        (Verdict.DOES_NOT_HOLD, _defaults(others=60.0)),
        (Verdict.DOES_NOT_HOLD, _defaults(nccl=60.0)),
    ],
    "C05": [
        (Verdict.DOES_NOT_HOLD, _exit(ENDED, ENDED)),
        (Verdict.HOLDS, _exit(ENDED, seen(RankEnd.HUNG, notes={"ended": True}))),
        (Verdict.ERROR, _exit(ENDED, seen(RankEnd.HUNG))),
        (Verdict.ERROR, _exit(ENDED, seen(RankEnd.HUNG, notes={"ended": True}), in_order_s=40.0)),
    ],
    "G01": [
        (Verdict.HOLDS, _hang(1800.0, True)),
        (Verdict.DOES_NOT_HOLD, _hang(5.0, True)),
        (Verdict.DOES_NOT_HOLD, _hang(1800.0, False)),
    ],
    "G06": [
        (Verdict.HOLDS, _leaves({"got": [1.0, 2.0], "error": CLOSED, "after_s": 0.02})),
        (Verdict.DOES_NOT_HOLD, _leaves({"got": [1.0, 2.0]})),
    ],
    "T16": [
        (Verdict.HOLDS, _aborted(1.22, TIMED_OUT)),
        (Verdict.DOES_NOT_HOLD, _aborted(0.32, "the group was aborted")),
    ],
    "T17": [
        (Verdict.HOLDS, _survivors(got=[2.0] * 4)),
        (Verdict.DOES_NOT_HOLD, _survivors()),
    ],
}
