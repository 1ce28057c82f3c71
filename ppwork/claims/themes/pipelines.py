"""Claims about ``torch.distributed.pipelining`` as a runtime for inference."""

from __future__ import annotations

from ppwork.claims.claim import (
    NOTES,
    SEEN,
    Claim,
    ClaimFinding,
    RankEnd,
    Seen,
    does_not_hold,
    end_of,
    holds,
    unhurried,
)

PIPELINING = "documentation of torch.distributed.pipelining"
ROUNDING = 1e-5


def _forward_only(seen: Seen) -> ClaimFinding:
    if any(rank.ended is not RankEnd.RETURNED for rank in seen["forward"]):
        ends = "; ".join(f"rank {number} {end_of(rank)}" for number, rank in enumerate(seen["forward"]))
        return does_not_hold(f"Two stages, four micro-batches, no loss: {ends}.")
    notes = seen["forward"][1].notes
    text = (
        f"Two stages, four micro-batches, no loss, in inference mode: {notes['rows']} rows came out, at most "
        f"{notes['difference']:.1g} from what one process computes."
    )
    return holds(text, when=notes["difference"] <= ROUNDING)


def _other_size(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"], seen["mended"][1].notes
    if broken[1].notes["after_8"] != 8 or mended["after_12"] != 12:
        raise ValueError("a batch of the first size, or a schedule for each size, did not work either")
    if all(rank.ended is RankEnd.RETURNED for rank in broken) and broken[1].notes["after_12"] == 12:
        return does_not_hold("After a batch of 8, one of 12 went through the same schedule.")
    ends = "; ".join(f"rank {number} {end_of(rank)}" for number, rank in enumerate(broken))
    return holds(
        f"After a batch of 8, one of 12 through the same schedule: {ends}. With a stage and a schedule for "
        "each size both went through."
    )


def _eval_keeps_a_graph(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1].notes["graph"], seen["mended"][1].notes["graph"]
    text = (
        f"The output of `schedule.eval()` {'carried' if broken else 'did not carry'} a graph for a backward "
        f"pass; in inference mode it {'did too' if mended else 'did not'}."
    )
    return holds(text, when=not broken)


def _microbatches(seen: Seen) -> ClaimFinding:
    notes = seen["schedules"][0].notes
    text = ", ".join(
        f"{kind} refused {' and '.join(map(str, notes[kind])) or 'none'}"
        for kind in ("ScheduleGPipe", "Schedule1F1B")
    )
    text = f"Of 1, 2 and 4 micro-batches over two stages, {text}"
    return (
        holds(f"{text}.")
        if all(4 in notes[kind] for kind in ("ScheduleGPipe", "Schedule1F1B"))
        else does_not_hold(f"{text}: more micro-batches than stages are what a pipeline lives of.")
    )


CLAIMS = (
    Claim(
        id="A01",
        statement="`torch.distributed.pipelining` runs forward only, without a loss, and equals one process.",
        source=f"{PIPELINING}, schedules, `step`; on gloo: {SEEN}",
        programs={"forward": unhurried("pipelines:forward_only")},
        judge=_forward_only,
        advice="It is there for a chain of single-rank stages and one batch at a time; a mesh behind a "
        "leader, chunks without an end and backpressure are yours to write.",
    ),
    Claim(
        id="A02",
        statement="A pipelining stage takes its shapes from its first micro-batch, and another shape breaks "
        "it.",
        source=f"{SEEN}; {PIPELINING}, `PipelineStage`: shape inference at the first step",
        programs={
            "broken": unhurried("pipelines:another_batch_size"),
            "mended": unhurried("pipelines:a_schedule_for_each_size"),
        },
        judge=_other_size,
        advice="Send the shape before the data, as an envelope does; or a stage and a schedule for each "
        "shape, chosen the same on all ranks.",
    ),
    Claim(
        id="A03",
        statement="`eval()` of a pipelining schedule is for inference: it keeps no graph.",
        source=f"{PIPELINING}, `eval`: calling forward only",
        programs={
            "broken": unhurried("pipelines:eval_of_a_schedule"),
            "mended": unhurried("pipelines:eval_in_inference_mode"),
        },
        judge=_eval_keeps_a_graph,
        advice="Forward only is not without gradients: call it in `torch.inference_mode()`, or every chunk "
        "holds its activations.",
    ),
    Claim(
        id="A04",
        statement="Schedules with one stage a rank do not allow more micro-batches than there are stages.",
        source=f"{NOTES}, pipelining, #144702",
        programs={"schedules": unhurried("pipelines:fewer_and_more_microbatches", ranks=1)},
        judge=_microbatches,
        advice="Read the note the other way round: more micro-batches than stages fill the pipeline, and "
        "fewer are what a schedule may refuse.",
    ),
)
