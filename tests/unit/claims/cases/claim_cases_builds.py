"""Cases of the claims about what a build of torch has."""

from __future__ import annotations

from claim_seen import noted

from ppwork.claims.claim import Verdict
from ppwork.claims.programs.builds import OF_SEVERAL_GPUS


def _backends(nccl, by_function=None):
    there = {"gloo": True, "nccl": nccl, "nonesuch": False}
    asked = {"gloo": True, "nccl": nccl if by_function is None else by_function}
    chosen = {"cpu": "gloo", "cuda": "nccl"}
    notes = {"there": there, "by_function": asked, "chosen": chosen, "ours": "gloo", "torch": "2.13.0"}
    return {"asked": noted(notes)}


def _old_names(several, launch=True):
    notes = {"reduce_op": 3.0, "warned": ["FutureWarning"], "launch": launch, "several_gpus": list(several)}
    return {"asked": noted(notes, notes)}


def _ours(**made):
    return {"registered": noted(*[{"before": "Unknown backend type ours"} | made] * 2)}


def _buffer(device, **answer):
    return {"asked": noted(*[{"device": device} | answer] * 2)}


REFUSED = "SymmetricMemory does not support device type cpu"

CASES = {
    "D24": [
        (Verdict.HOLDS, _backends(nccl=True)),
        (Verdict.DOES_NOT_HOLD, _backends(nccl=False)),
        (Verdict.ERROR, _backends(nccl=False, by_function=True)),
    ],
    "D23": [
        (Verdict.HOLDS, _old_names(OF_SEVERAL_GPUS)),
        (Verdict.DOES_NOT_HOLD, _old_names(())),
        (Verdict.DOES_NOT_HOLD, _old_names(OF_SEVERAL_GPUS, launch=False)),
    ],
    "D31": [
        (Verdict.HOLDS, _ours(asked=1, name="ours", total=2.0)),
        (Verdict.DOES_NOT_HOLD, _ours(asked=0, name="gloo", total=2.0)),
        (Verdict.DOES_NOT_HOLD, _ours()),
    ],
    "D33": [
        (Verdict.HOLDS, _buffer("cpu", error=REFUSED)),
        (Verdict.HOLDS, _buffer("cuda", made=[4])),
        (Verdict.DOES_NOT_HOLD, _buffer("cpu", made=[4])),
        (Verdict.DOES_NOT_HOLD, _buffer("cuda", error="not supported")),
    ],
}
