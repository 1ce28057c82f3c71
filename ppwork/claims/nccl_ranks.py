"""Claims that speak of NCCL alone: ranks that share a GPU, tags, and messages in a CUDA graph."""

from __future__ import annotations

from ppwork.claims.claim import Claim, Ended, Finding, Program, Seen, does_not_hold, holds
from ppwork.claims.sources import NOTES

NCCL = ("nccl",)


def _one_gpu(seen: Seen) -> Finding:
    broken, mended = ([rank.notes for rank in seen[name]] for name in ("broken", "mended"))
    if [one["tried"] for one in [*broken, *mended]] != [True] * 4:
        raise ValueError("not every rank came to the all-reduce")
    refused = [one["error"] for one in broken if "error" in one]
    worked = [one.get("total") for one in mended] == [2.0, 2.0]
    said = (
        f"Two ranks on the first GPU: {refused[0] if refused else 'no error'}; with an NCCL_HOSTID "
        "of its own "
        f"for each, the all-reduce {'worked' if worked else 'did not come out'}."
    )
    return holds(said) if any("Duplicate" in one for one in refused) else does_not_hold(said)


def _tags(seen: Seen) -> Finding:
    broken, mended = seen["broken"][1], seen["mended"][1].notes
    if (mended["tag_1"], mended["tag_2"]) != (1.0, 2.0):
        raise ValueError("in order it did not work either")
    if broken.ended is not Ended.RETURNED:
        return holds(f"The receiver that took tag 2 first {broken.ended} {broken.error}".rstrip() + ".")
    got = broken.notes
    said = (
        "1 was sent with tag 1, then 2 with tag 2; a receiver that took tag 2 first got "
        f"{got['tag_2']:g} for it and {got['tag_1']:g} for tag 1."
    )
    return does_not_hold(said) if (got["tag_1"], got["tag_2"]) == (1.0, 2.0) else holds(said)


def _captured(seen: Seen) -> Finding:
    notes = seen["graph"][1].notes
    if "values" not in notes:
        return does_not_hold(f"Captured into a CUDA graph, they raised: {notes['error']}")
    said = f"Replayed with 7 in the sender's buffer, the graph brought {notes['values'][0]:g}."
    return holds(said) if notes["values"] == [7.0] * 4 else does_not_hold(said)


CLAIMS = (
    Claim(
        id="R23",
        statement="`isend` and `irecv` can be captured into a CUDA graph and replayed.",
        source=f"{NOTES}, bug fixes, #148462",
        backends=NCCL,
        programs={"graph": Program("nccl_ranks:captured_exchange", limit_s=30.0)},
        judge=_captured,
        advice="Exchange once before capturing, wait within the capture, replay in the same order on both "
        "ranks, and watch it yourself: no timeout of torch's does.",
        theme="Point-to-point",
        lesson="09",
        gpus=2,
    ),
    Claim(
        id="R26",
        statement="NCCL refuses two ranks of one group on one GPU.",
        source="documentation of torch.distributed, `init_process_group`: one process a GPU; NCCL, "
        "NCCL_HOSTID",
        backends=NCCL,
        programs={
            "broken": Program("nccl_ranks:two_ranks_on_one_gpu", timeout_s=0, limit_s=30.0),
            "mended": Program("nccl_ranks:two_ranks_as_of_two_hosts", timeout_s=0, limit_s=30.0),
        },
        judge=_one_gpu,
        advice="For trying code on one GPU give each rank its own NCCL_HOSTID before its first call, and "
        "measure nothing there: the ranks take turns on the GPU.",
        theme="Start-up and stores",
        lesson="09",
        gpus=1,
    ),
    Claim(
        id="R27",
        statement="NCCL has no tags: messages of one pair come in the order in which they were sent.",
        source="documentation of torch.distributed, `send`: a tag is not supported with NCCL",
        backends=NCCL,
        programs={
            "broken": Program("nccl_ranks:received_by_tag"),
            "mended": Program("nccl_ranks:received_in_order"),
        },
        judge=_tags,
        advice="Never tell messages apart by tag: send them in one fixed order, or in a group each; what is "
        "right by tag on gloo swaps its tensors without an error on NCCL.",
        theme="Point-to-point",
        lesson="01",
        gpus=2,
    ),
)
