"""Claims about collectives: what they compute, when one is complete, what a barrier is and costs."""

from __future__ import annotations

from ppwork.claims.claim import (
    BRIEFING,
    CARD,
    DOCS,
    Claim,
    ClaimFinding,
    Program,
    Seen,
    does_not_hold,
    holds,
    unhurried,
)

REDUCED = {"SUM": 5, "MIN": 2, "MAX": 3, "PRODUCT": 6, "BAND": 2, "BOR": 3, "BXOR": 1}
"""What becomes of 2 and 3 by the kinds that every backend of CPUs has."""
OF_NCCL = {"AVG": 2.5, "PREMUL_SUM": 50.0}
"""What becomes of them by the kinds that are said to be of NCCL only."""


def _barrier(seen: Seen) -> ClaimFinding:
    early, late = (rank.notes for rank in seen["traced"])
    waited = early["returned"] >= late["came"]
    name, sizes = early["name"], early["sizes"]
    text = (
        f"The flight recorder calls it {name} with inputs of {sizes or 'no size'}; rank 0 "
        f"{'stayed in it until' if waited else 'left it before'} rank 1 came, late."
    )
    return holds(text, when="reduce" in name and [1] in sizes and waited)


def _enqueued(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"], seen["mended"]
    early = all(rank.notes["returned_s"] < 0.5 * rank.notes["complete_s"] for rank in broken)
    values = sorted({value for rank in broken for value in rank.notes["seen"]})
    text = (
        f"`wait()` returned after {1000 * broken[0].notes['returned_s']:.1f} ms, everything was done after "
        f"{1000 * broken[0].notes['complete_s']:.1f} ms. Without the edge: values {_list(values)}; with it: "
        f"{_list(mended[0].notes['seen'])}, and {100 + len(broken)} is right."
    )
    right = all(rank.notes["seen"] == [100.0 + len(mended)] * 2 for rank in mended)
    if not right:
        raise ValueError(text)
    return holds(text, when=early)


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))


def _barrier_per_step(seen: Seen) -> ClaimFinding:
    broken = min(rank.notes["period_ms"] for rank in seen["broken"])
    mended = max(rank.notes["period_ms"] for rank in seen["mended"])
    text = (
        f"Steps of 40 and 4 ms in turns, long on one rank when short on the other: {broken:.0f} ms a step "
        f"with a barrier in each, {mended:.0f} ms with messages only"
    )
    if broken > 1.15 * mended:
        return holds(f"{text}: with a barrier every step is as long as its slowest rank's.")
    return does_not_hold(f"{text}.")


def _reductions(seen: Seen) -> ClaimFinding:
    notes = seen["each"][0].notes
    wrong = [f"{kind} ({notes[kind]})" for kind, right in REDUCED.items() if notes[kind] != right]
    works = [kind for kind, right in OF_NCCL.items() if notes[kind] == right]
    refused = [f"{kind} ({notes[kind]})" for kind in OF_NCCL if kind not in works]
    text = f"Of 2 and 3 gloo made {', '.join(f'{notes[kind]:g} by {kind}' for kind in _right(notes))}"
    text += f"; it refused {', '.join([*wrong, *refused]) or 'none'}."
    return holds(text, when=not wrong and not works)


def _right(notes: dict[str, object]) -> list[str]:
    return [kind for kind, right in (REDUCED | OF_NCCL).items() if notes[kind] == right]


def _futures(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["both"]]
    if any(note["called_with"] != 30.0 for note in notes):
        raise ValueError(f"10 times the sum of 1 and 2 was {[note['called_with'] for note in notes]}")
    refused = notes[0]["of_a_message"]
    text = "A call tied to the future of an all-reduce was made with its result; the future of a message "
    return holds(text + (f"was refused: {refused}" if refused else "was there too."), when=not refused)


def _polled(seen: Seen) -> ClaimFinding:
    early = seen["polled"][0].notes
    if early["at_once"]:
        raise ValueError("rank 0's all-reduce was done before rank 1 came: nothing was polled")
    text = (
        f"`is_completed()` was False at once, and {'True' if early['later'] else 'False'} when rank 1 had "
        f"come, without a `wait()`; the sum was {early['total']:g}."
    )
    return holds(text, when=early["later"] and early["total"] == 3.0)


def _uneven(seen: Seen) -> ClaimFinding:
    got = [rank.notes["got"] for rank in seen["uneven"]]
    text = f"Given one number for rank 0 and two for rank 1 by each, rank 0 got {got[0]} and rank 1 {got[1]}."
    return holds(text, when=got == [[0.0, 10.0], [1.0, 1.0, 11.0, 11.0]])


def _functional(seen: Seen) -> ClaimFinding:
    eager, step = seen["eager"][0].notes, seen["compiled"][0].notes
    right = eager["total"] == [[0.0, 9.0], [3.0, 12.0], [6.0, 15.0]]
    same = step["eager"] == step["compiled"] == [7.0]
    text = (
        f"It returned {_article(eager['kind'])} and {'changed' if eager['input_changed'] else 'left'} its "
        f"input; the sum, of a tensor that is not contiguous, was {'right' if right else 'wrong'}. A step "
        f"with `all_reduce` in it, compiled: {step['graphs']} graph{'s' * (step['graphs'] > 1)}, and "
        f"{'the result of the eager step' if same else 'another result than the eager step'}."
    )
    return holds(text, when=right and not eager["input_changed"] and same and step["graphs"] == 1)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


CLAIMS = (
    Claim(
        id="C06",
        statement="`barrier` is an all-reduce of one element in which the CPU waits.",
        source=f"{CARD}, claim 6; {DOCS}, `barrier`, of NCCL",
        programs={"traced": Program("collectives:traced_barrier")},
        judge=_barrier,
        advice="Use it to bring ranks together at the start, and nowhere else; on CUDA give "
        "`init_process_group` a `device_id`, or the element may land on a device that you did not mean.",
    ),
    Claim(
        id="C08",
        statement="A collective on CUDA is enqueued, not complete, when it returns: another stream has to "
        "wait.",
        source=f"{CARD}, claim 8; {DOCS}, synchronous and asynchronous collective operations",
        backends=("nccl",),
        programs={
            "broken": Program("collectives:used_on_another_stream", limit_s=30.0, timeout_s=20.0),
            "mended": Program("collectives:used_behind_the_edge", limit_s=30.0, timeout_s=20.0),
        },
        judge=_enqueued,
        advice="Where another stream uses the output, `side.wait_stream(current)` first. That the result was "
        "right without it once says nothing.",
        gpus=1,
        alone=True,
    ),
    Claim(
        id="G07",
        statement="A barrier in each step takes the overlap away: every step is as long as its slowest "
        "rank's.",
        source=f"{CARD}, seventh gotcha",
        programs={
            "broken": Program("collectives:steps_with_a_barrier"),
            "mended": Program("collectives:steps_with_messages_only"),
        },
        judge=_barrier_per_step,
        advice="No barrier in the hot path: the messages themselves hold the ranks together.",
        alone=True,
    ),
    Claim(
        id="D19",
        statement="`AVG` and `PREMUL_SUM` are reductions of NCCL; the other kinds of `ReduceOp` work on CPU "
        "tensors too.",
        source=f"{DOCS}, `ReduceOp`",
        backends=("gloo",),
        programs={"each": Program("collectives:every_reduction")},
        judge=_reductions,
        advice="What a backend reduces differs by version: add up and divide by yourself, and the same code "
        "runs on every backend and torch.",
    ),
    Claim(
        id="D20",
        statement="Every handle has a future: `get_future()` of a collective and of a message.",
        source=f"{CARD}, `Work`; {DOCS}, asynchronous operations, `get_future`: most operations of gloo",
        programs={"both": Program("collectives:futures")},
        judge=_futures,
        advice="Tie calls to collectives only; for a message let a helper thread wait, and do there what has "
        "to be done.",
    ),
    Claim(
        id="D21",
        statement="The handle of a collective can be asked: `is_completed()` turns True without a `wait()`.",
        source=f"{DOCS}, asynchronous operations, `is_completed`; for a message see T01",
        programs={"polled": Program("collectives:polled_all_reduce")},
        judge=_polled,
        advice="On a CPU a collective may be polled, a message of gloo may not; on CUDA True says that it "
        "was enqueued, and the data is there for whoever uses the same stream.",
    ),
    Claim(
        id="D22",
        statement="`all_to_all_single` has its name on every torch, and its parts may differ in size.",
        source=f"{DOCS}, `all_to_all_single`; {BRIEFING}, renaming of collectives: all-to-all",
        programs={"uneven": Program("collectives:uneven_parts")},
        judge=_uneven,
        advice="All ranks have to agree on the sizes before: a rank's parts to receive are the others' parts "
        "to send, and nobody compares them.",
    ),
    Claim(
        id="D32",
        statement="A functional collective leaves its input alone, and a compiled step with one is one "
        "graph.",
        source=f"{CARD}, related resources: functional collectives, torch.compile; release notes, #146467",
        programs={
            "eager": unhurried("collectives:functional"),
            "compiled": unhurried("collectives:compiled"),
        },
        judge=_functional,
        advice="Use what it returns: who goes on with the input has added up nothing, and no error says so. "
        "Ask for one graph by `fullgraph=True`, and compare one chunk with the eager step.",
    ),
)
