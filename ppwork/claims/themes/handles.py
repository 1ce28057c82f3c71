"""Claims about what ``isend`` and ``irecv`` return: traps of gloo's handles."""

from __future__ import annotations

from ppwork.claims.claim import (
    DOCS,
    SEEN,
    Claim,
    ClaimFinding,
    Program,
    RankEnd,
    RankSeen,
    Seen,
    does_not_hold,
    end_of,
    holds,
)

TIMED_OUT = "Timed out"


def _is_completed(seen: Seen) -> ClaimFinding:
    ranks, watched = [rank.notes for rank in seen["broken"]], seen["data is here"][1].notes
    polled = ranks[0]["ever"] or ranks[1]["ever"]
    if polled != watched["ever"]:
        raise ValueError(f"polled: {polled}, asked when the data was here: {watched['ever']}")
    helper = "said so" if seen["mended"][1].notes["told"] else "did not say so"
    text = (
        f"Polled for 0.4 s while the message could pass: {_word(ranks[0]['ever'])} for the send, "
        f"{_word(ranks[1]['ever'])} for the receive, whose buffer held the message all the same "
        f"({ranks[1]['arrived'][0]:g}); asked once the data was here: {_word(watched['ever'])}. After "
        f"`wait()`: {_word(ranks[1]['after_wait'])}. In a thread that waits, the helper thread {helper}."
    )
    return holds(text, when=not polled)


def _word(answer: bool) -> str:
    return "True" if answer else "False"


def _second_wait(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1], seen["mended"][1]
    text = f"The first `wait()` brought the message ({broken.notes['first'][0]:g}); the second "
    if broken.notes.get("second"):
        return does_not_hold(f"{text}returned as well.")
    if TIMED_OUT not in broken.error:
        raise ValueError(f"the second wait ended with {broken.error!r}")
    return holds(
        f"{text}blocked until the group's timeout of 1 s ({broken.error_type}: timed out), though there was "
        f"nothing left to wait for. Waited for once and let go: {mended.ended}."
    )


def _timed_wait(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"], seen["mended"]
    poll = broken[1].notes.get("poll", "")
    if TIMED_OUT not in poll:
        raise ValueError(f"the wait of 0.2 s ended with {poll!r}")
    by_thread = mended[1].notes["arrived"][0]
    if broken[1].notes.get("arrived"):
        return does_not_hold("After a wait of 0.2 s that timed out, the next receive brought the message.")
    return holds(
        f"After a wait of 0.2 s that timed out, the next receive failed at once ({broken[1].error[:60]}), "
        f"and so did the send of the other rank ({broken[0].ended}). Looked for by a helper thread, the "
        f"message ({by_thread:g}) arrived."
    )


def _dropped_send(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1], seen["mended"][1].notes
    if mended.get("first") != 1.0:
        raise ValueError(f"with its handle kept the message arrived as {mended.get('first')}")
    first = broken.notes.get("first")
    if first == 1.0:
        return does_not_hold(
            "The message whose handle was let go arrived like the one whose handle was kept."
        )
    if first is None and TIMED_OUT not in broken.error:
        raise ValueError(f"the receiver {_ended(broken)}")
    what = f"the receiver got {first:g} instead" if first is not None else "the receiver timed out after 1 s"
    other = seen["broken"][0]
    sender = "the next send returned" if other.notes.get("sent") else "the next send failed too"
    return holds(
        f"The message whose handle was let go never arrived: {what}, and {sender}. Kept: it arrived."
    )


def _dropped_receive(seen: Seen) -> ClaimFinding:
    sender, receiver = seen["broken"]
    mended = seen["mended"][1].notes
    if (mended.get("first"), mended.get("got")) != (1.0, 2.0):
        raise ValueError(f"with its handle kept the messages arrived as {mended}")
    got = receiver.notes.get("got")
    sent = "both sends returned" if sender.notes.get("sent") else f"the sender {_ended(sender)}"
    if got == 1.0:
        return does_not_hold(f"Message 1 came to the second receive; {sent}.")
    if got is None and TIMED_OUT not in receiver.error:
        raise ValueError(f"the receiver {_ended(receiver)}")
    what = f"got message {got:g}" if got is not None else "got neither in 1 s"
    return holds(f"Of messages 1 and 2, {sent}, and the receiver {what}: message 1 was lost without a word.")


def _ended(rank: RankSeen) -> str:
    return f"{rank.ended}: {rank.error.split('] ')[-1][:60]}" if rank.error else str(rank.ended)


def _nobody(seen: Seen) -> ClaimFinding:
    if not all(len(ranks) == 2 for ranks in seen.values()):
        raise ValueError("nothing was seen")
    ends = [f"`{name}`: {' and '.join(map(_without_a_peer, ranks))}" for name, ranks in seen.items()]
    refused = all(_without_a_peer(rank) == "refused" for ranks in seen.values() for rank in ranks)
    return holds(f"To or from rank 7 of a world of two, by both ranks. {'; '.join(ends)}.", when=refused)


def _without_a_peer(rank: RankSeen) -> str:
    if rank.ended is not RankEnd.RAISED:
        return end_of(rank)
    return "waited for its timeout" if "timeout" in rank.error.lower() else "refused"


CLAIMS = (
    Claim(
        id="T01",
        statement="On gloo, `is_completed()` of a send or receive stays False until `wait()` was called.",
        source=f"{SEEN}; against {DOCS}, point-to-point communication: True if the operation has finished",
        backends=("gloo",),
        programs={
            "broken": Program("handles:polled"),
            "mended": Program("handles:waited_in_a_thread"),
            "data is here": Program("handles:asked_once_data_is_here"),
        },
        judge=_is_completed,
        advice="Do not poll gloo's handles: let a helper thread wait and ask the thread.",
    ),
    Claim(
        id="T02",
        statement="On gloo, a second `wait()` for a message that has arrived blocks until the group's "
        "timeout.",
        source=f"{SEEN}; against {DOCS}, `wait()`",
        backends=("gloo",),
        programs={
            "broken": Program("handles:waited_twice", timeout_s=1.0, limit_s=20.0),
            "mended": Program("handles:waited_once"),
        },
        judge=_second_wait,
        advice="Wait for each handle exactly once and let it go there.",
    ),
    Claim(
        id="T03",
        statement="On gloo, a `wait(timeout)` that times out closes the connection, for both ranks.",
        source=f"{SEEN}; gloo, `transport/tcp/unbound_buffer.cc`",
        backends=("gloo",),
        programs={
            "broken": Program("handles:polled_with_a_timeout"),
            "mended": Program("handles:polled_by_a_thread"),
        },
        judge=_timed_wait,
        advice="A timeout is the end of the group, never a way to look whether something has come.",
    ),
    Claim(
        id="T06",
        statement="On gloo, a message is lost when the handle of its `isend` is let go before it has left.",
        source=f"{SEEN}; gloo, `transport/tcp/unbound_buffer.cc`",
        backends=("gloo",),
        programs={
            "broken": Program("handles:dropped_send", timeout_s=1.0, limit_s=20.0),
            "mended": Program("handles:kept_send"),
        },
        judge=_dropped_send,
        advice="Keep every handle, and the tensor with it, until it was waited for.",
    ),
    Claim(
        id="T15",
        statement="On gloo, an `irecv` whose handle is let go still takes its message, which is lost.",
        source=f"{SEEN}; gloo, `transport/tcp/unbound_buffer.cc`",
        backends=("gloo",),
        programs={
            "broken": Program("handles:dropped_receive", timeout_s=1.0, limit_s=20.0),
            "mended": Program("handles:kept_receive"),
        },
        judge=_dropped_receive,
        advice="Never drop a posted receive, not even on the way out of an error: the sender believes that "
        "its message has arrived.",
    ),
    Claim(
        id="T19",
        statement="A message to or from a rank that the world does not have is refused.",
        source=f"{DOCS}, `send`, `isend`, `irecv`: the rank of the peer; on gloo: {SEEN}",
        backends=("gloo",),
        programs={
            "send": Program("handles:send_to_nobody", timeout_s=2.0),
            "isend": Program("handles:isend_to_nobody", timeout_s=2.0),
            "irecv": Program("handles:irecv_from_nobody", timeout_s=2.0),
        },
        judge=_nobody,
        advice="Compare the peer's rank with the size of the world before the call: a rank that is counted "
        "wrongly may end the process, with no exception and no word in the log.",
    ),
)
