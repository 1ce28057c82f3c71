"""Claims about collectives: what a barrier is, when one is complete, what one per step costs."""

from __future__ import annotations

from ppwork.claims.claim import CARD, DOCS, Claim, Finding, Program, Seen, does_not_hold, holds

THEME = "Collectives"


def _barrier(seen: Seen) -> Finding:
    early, late = (rank.notes for rank in seen["traced"])
    waited = early["returned"] >= late["came"]
    name, sizes = early["name"], early["sizes"]
    text = (
        f"The flight recorder calls it {name} with inputs of {sizes or 'no size'}; rank 0 "
        f"{'stayed in it until' if waited else 'left it before'} rank 1 came, late."
    )
    return holds(text, when="reduce" in name and [1] in sizes and waited)


def _enqueued(seen: Seen) -> Finding:
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


def _barrier_per_step(seen: Seen) -> Finding:
    broken = min(rank.notes["period_ms"] for rank in seen["broken"])
    mended = max(rank.notes["period_ms"] for rank in seen["mended"])
    text = (
        f"Steps of 40 and 4 ms in turns, long on one rank when short on the other: {broken:.0f} ms a step "
        f"with a barrier in each, {mended:.0f} ms with messages only"
    )
    if broken > 1.15 * mended:
        return holds(f"{text}: with a barrier every step is as long as its slowest rank's.")
    return does_not_hold(f"{text}.")


CLAIMS = (
    Claim(
        id="C06",
        statement="`barrier` is an all-reduce of one element in which the CPU waits.",
        source=f"{CARD}, claim 6; {DOCS}, `barrier`, of NCCL",
        programs={"traced": Program("collectives:traced_barrier")},
        judge=_barrier,
        advice="Use it to bring ranks together at the start, and nowhere else; on CUDA give "
        "`init_process_group` a `device_id`, or the element may land on a device that you did not mean.",
        theme=THEME,
        lesson="06",
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
        theme=THEME,
        lesson="05",
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
        theme=THEME,
        lesson="10",
        alone=True,
    ),
)
