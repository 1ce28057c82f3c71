"""Claims about send and recv: what has happened when a call returns, and when a tensor is free again."""

from __future__ import annotations

from ppwork.claims.claim import (
    CARD,
    DOCS,
    Claim,
    ClaimFinding,
    Program,
    RankEnd,
    Seen,
    between,
    does_not_hold,
    end_of,
    holds,
)


def _send_returns(seen: Seen) -> ClaimFinding:
    sender, receiver = (rank.notes for rank in seen["late receiver"])
    waited, sentences = [], []
    for size, name in (("4 bytes", "small"), ("16 MB", "large")):
        late = receiver[f"{name}_came"] - sender[f"{name}_called"]
        took = sender[f"{name}_returned"] - sender[f"{name}_called"]
        waited.append(sender[f"{name}_returned"] >= receiver[f"{name}_came"])
        sentences.append(
            f"`send` of {size} returned after {took:.2f} s, its receiver came after {late:.2f} s"
        )
    recv = seen["late sender"]
    recv_waited = recv[1].notes["returned"] >= recv[0].notes["came"]
    sentences.append(f"`recv` returned {'after' if recv_waited else 'before'} its sender came")
    text = "; ".join(sentences)
    if all(waited) and recv_waited:
        return does_not_hold(f"{text}: each side waits for the other, whatever the size.")
    if not any(waited) and not recv_waited:
        return holds(f"{text}: nobody waits for the other side.")
    return does_not_hold(f"{text}: some of them wait for the other side.")


def _touched_before_wait(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1].notes["arrived"], seen["mended"][1].notes["arrived"]
    read = seen["read early"][1].notes
    cpu = seen["broken"][0].notes["wait_returned"] >= seen["broken"][1].notes["came"]
    text = (
        f"Overwritten with 2 before `wait()`, a tensor of 1 arrived as {between(broken)}, after it as "
        f"{between(mended)}; a buffer read before `wait()` had {read['before'][0]:g}, after it "
        f"{read['after'][0]:g}. `wait()` {'kept the CPU until' if cpu else 'let the CPU go before'} the "
        "receiver came."
    )
    if mended != [1.0, 1.0]:
        return does_not_hold(f"{text} Even after `wait()` the tensor was not free.")
    return holds(text, when=broken != mended)


def _reused_after_send(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1].notes["arrived"], seen["mended"][1].notes["arrived"]
    text = (
        f"16 MB of 1, overwritten with 2 as soon as `send` had returned, arrived as {between(broken)}; "
        f"overwritten after the receiver's answer, as {between(mended)}"
    )
    if broken == [1.0, 1.0]:
        return does_not_hold(f"{text}: when `send` returns here, the message has left the buffer.")
    return holds(f"{text}.")


def _buffers(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1].notes, seen["mended"][1].notes
    text = (
        f"Messages 1 and 2 in flight from one buffer arrived as {between(broken['first'])} and "
        f"{between(broken['second'])}; from a buffer each as {between(mended['first'])} and "
        f"{between(mended['second'])}."
    )
    apart = (mended["first"], mended["second"]) == ([1.0, 1.0], [2.0, 2.0])
    return holds(text, when=apart and broken["first"] != [1.0, 1.0])


def _first_batch(seen: Seen) -> ClaimFinding:
    first, later = seen["subset first"], seen["subset later"]
    if not first:
        raise ValueError("nothing was seen")
    for rank in first[:2]:
        if not rank.notes["tried"] or (rank.ended is RankEnd.HUNG and "wait" not in rank.line):
            raise ValueError(f"it hung at {rank.line!r}, not in its batch")
    came = [rank.notes.get("got") == [1.0 - number] * 4 for number, rank in enumerate(first[:2])]
    text = "Ranks 0 and 1 of three swapped in one batch. As the group's first call: "
    text += (
        "both got the other's tensor"
        if all(came)
        else f"rank 0 {end_of(first[0])}, rank 1 {end_of(first[1])}"
    )
    after = [rank.notes["got"] == [1.0 - number] * 4 for number, rank in enumerate(later[:2])]
    text += f"; after an all-reduce of all three: {'both got it' if all(after) else 'not both got it'}."
    return holds(text, when=not all(came) and all(after))


def _late_rank(seen: Seen) -> ClaimFinding:
    came = seen["broken"][2].notes["came"]
    early = [came - rank.notes["returned"] for rank in seen["broken"][:2] if "returned" in rank.notes]
    mended = [rank.notes["returned"] - seen["mended"][2].notes["came"] for rank in seen["mended"][:2]]
    for rank in seen["broken"][:2]:
        if not rank.notes["tried"]:
            raise ValueError("not tried")
    behind = f"With a barrier before it, it was done {min(mended):.2f} s after rank 2 came."
    if len(early) == 2 and min(early) > 0:
        return does_not_hold(
            "Ranks 0 and 1 were done with their first batch when rank 2, which takes no part in it, had not "
            f"yet come to the group: nobody waited. {behind}"
        )
    ends = ", ".join(f"rank {number} {end_of(rank)}" for number, rank in enumerate(seen["broken"][:2]))
    return holds(
        f"Until rank 2, which takes no part in it, came to the group, the batch stood: {ends}. {behind}"
    )


CLAIMS = (
    Claim(
        id="C01",
        statement="`send` and `recv` return when the transfer is enqueued, while it is still under way.",
        source=f"{CARD}, claim 1; {DOCS}, point-to-point communication",
        programs={
            "late receiver": Program("p2p:late_receiver"),
            "late sender": Program("p2p:late_sender"),
        },
        judge=_send_returns,
        advice="Count on neither: on one backend two ranks that both send first stand still, on the other a "
        "buffer that `send` has left is still being read. Fix who sends first, and keep a buffer until its "
        "receiver has answered.",
    ),
    Claim(
        id="C02",
        statement="A tensor given to `isend` or `irecv` must not be touched before `wait()` has returned.",
        source=f"{CARD}, claim 2; {DOCS}, `isend`: modifying the tensor before the request completes",
        programs={
            "broken": Program("p2p:overwritten_before_wait"),
            "mended": Program("p2p:overwritten_after_wait"),
            "read early": Program("p2p:read_before_wait"),
        },
        judge=_touched_before_wait,
        advice="Write into a buffer again, or read from it, only after its `wait()`; on CUDA `wait()` orders "
        "the current stream only, so touch it from that stream.",
    ),
    Claim(
        id="C09",
        statement="The first `batch_isend_irecv` of a group needs all its ranks; later ones may be of a few.",
        source=f"{CARD}, claim 9; {DOCS}, `batch_isend_irecv`",
        programs={
            "subset first": Program("p2p:batch_of_two_first", ranks=3, limit_s=20.0),
            "subset later": Program("p2p:batch_of_two_later", ranks=3),
        },
        judge=_first_batch,
        advice="Make a collective of the whole group its first call; then the batches of pairs are safe on "
        "either backend.",
    ),
    Claim(
        id="G02",
        statement="When `send` has returned, its buffer may not be written again yet.",
        source=f"{CARD}, second gotcha",
        programs={
            "broken": Program("p2p:reused_after_send"),
            "mended": Program("p2p:reused_after_answer"),
        },
        judge=_reused_after_send,
        advice="Give each message in flight a buffer of its own, and take it again when the answer is here: "
        "code that is right on gloo only breaks on the day it moves to CUDA.",
    ),
    Claim(
        id="G03",
        statement="Messages in flight at the same time need buffers of their own.",
        source=f"{CARD}, third gotcha; {DOCS}, `isend`",
        programs={
            "broken": Program("p2p:one_buffer_for_two"),
            "mended": Program("p2p:a_buffer_each"),
        },
        judge=_buffers,
        advice="As many send buffers as messages may be in flight (the depth), used in turns, each waited "
        "for before it is filled again.",
    ),
    Claim(
        id="G10",
        statement="The first batched p2p of a group stands still until every rank has come to the group.",
        source=f"{CARD}, tenth gotcha",
        programs={
            "broken": Program("p2p:batch_with_a_late_rank", ranks=3, limit_s=20.0),
            "mended": Program("p2p:batch_after_a_barrier", ranks=3),
        },
        judge=_late_rank,
        advice="One barrier when all ranks are up, before the first message: it costs once what a wrong "
        "guess about who is there costs at every start.",
    ),
)
