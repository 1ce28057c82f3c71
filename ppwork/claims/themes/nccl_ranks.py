"""Claims that speak of NCCL alone: ranks that share a GPU, tags, and messages in a CUDA graph."""

from __future__ import annotations

from ppwork.claims.claim import NOTES, Claim, ClaimFinding, Program, RankEnd, Seen, does_not_hold, holds


def _one_gpu(seen: Seen) -> ClaimFinding:
    broken, mended = ([rank.notes for rank in seen[name]] for name in ("broken", "mended"))
    if [note["tried"] for note in [*broken, *mended]] != [True] * 4:
        raise ValueError("not every rank came to the all-reduce")
    refused = [note["error"] for note in broken if "error" in note]
    worked = [note.get("total") for note in mended] == [2.0, 2.0]
    text = (
        f"Two ranks on the first GPU: {refused[0] if refused else 'no error'}; with an NCCL_HOSTID of its "
        f"own for each, the all-reduce {'worked' if worked else 'did not come out'}."
    )
    return holds(text, when=any("Duplicate" in error for error in refused))


def _tags(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1], seen["mended"][1].notes
    if (mended["tag_1"], mended["tag_2"]) != (1.0, 2.0):
        raise ValueError("in order it did not work either")
    if broken.ended is not RankEnd.RETURNED:
        return holds(f"The receiver that took tag 2 first {broken.ended} {broken.error}".rstrip() + ".")
    got = broken.notes
    text = (
        f"1 was sent with tag 1, then 2 with tag 2; a receiver that took tag 2 first got {got['tag_2']:g} "
        f"for it and {got['tag_1']:g} for tag 1."
    )
    return holds(text, when=(got["tag_1"], got["tag_2"]) != (1.0, 2.0))


def _captured(seen: Seen) -> ClaimFinding:
    notes = seen["graph"][1].notes
    if "values" not in notes:
        return does_not_hold(f"Captured into a CUDA graph, they raised: {notes['error']}")
    text = f"Replayed with 7 in the sender's buffer, the graph brought {notes['values'][0]:g}."
    return holds(text, when=notes["values"] == [7.0] * 4)


CLAIMS = (
    Claim(
        id="R23",
        statement="`isend` and `irecv` can be captured into a CUDA graph and replayed.",
        source=f"{NOTES}, bug fixes, #148462",
        backends=("nccl",),
        programs={"graph": Program("nccl_ranks:captured_exchange", limit_s=30.0)},
        judge=_captured,
        advice="Exchange once before capturing, wait within the capture, replay in the same order on both "
        "ranks, and watch it yourself: no timeout of torch's does.",
        theme="Point-to-point",
        gpus=2,
    ),
    Claim(
        id="R26",
        statement="NCCL refuses two ranks of one group on one GPU.",
        source="documentation of torch.distributed, `init_process_group`: one process a GPU; NCCL, "
        "NCCL_HOSTID",
        backends=("nccl",),
        programs={
            "broken": Program("nccl_ranks:two_ranks_on_one_gpu", timeout_s=0, limit_s=30.0),
            "mended": Program("nccl_ranks:two_ranks_as_of_two_hosts", timeout_s=0, limit_s=30.0),
        },
        judge=_one_gpu,
        advice="For trying code on one GPU give each rank its own NCCL_HOSTID before its first call, and "
        "measure nothing there: the ranks take turns on the GPU.",
        theme="Start-up and stores",
        gpus=1,
    ),
    Claim(
        id="R27",
        statement="NCCL has no tags: messages of one pair come in the order in which they were sent.",
        source="documentation of torch.distributed, `send`: a tag is not supported with NCCL",
        backends=("nccl",),
        programs={
            "broken": Program("nccl_ranks:received_by_tag"),
            "mended": Program("nccl_ranks:received_in_order"),
        },
        judge=_tags,
        advice="Never tell messages apart by tag: send them in one fixed order, or in a group each; what is "
        "right by tag on gloo swaps its tensors without an error on NCCL.",
        theme="Point-to-point",
        gpus=2,
    ),
)
