"""Claims about what gloo checks of a message, which is little."""

from __future__ import annotations

from ppwork.claims.claim import DOCS, SEEN, Claim, ClaimFinding, Program, RankEnd, Seen, does_not_hold, holds

ANY_DTYPE = "float8_e4m3fn", "int16", "uint16"
"""Dtypes that gloo's collectives have no name for."""


def _too_long(seen: Seen) -> ClaimFinding:
    sender, receiver = seen["broken"]
    mended = seen["mended"][1].notes
    if mended.get("arrived") != [1.0] * 8:
        raise ValueError(f"with its length sent first the message arrived as {mended.get('arrived')}")
    sent = "`send` returned without an error" if sender.notes.get("sent") else f"the sender {sender.ended}"
    if receiver.ended is RankEnd.EXITED and receiver.exit_code:
        return holds(
            f"8 numbers into a buffer of 4: the receiver's process died of signal {-receiver.exit_code} with "
            f"nothing to catch, and {sent}. With the length sent first, all 8 arrived."
        )
    return does_not_hold(
        f"8 numbers into a buffer of 4: the receiver {receiver.ended} and caught "
        f"{receiver.notes.get('caught') or 'nothing'}; {sent}."
    )


def _dtype(seen: Seen) -> ClaimFinding:
    notes, mended = seen["broken"][1].notes, seen["mended"][1].notes
    text = (
        f"float32 ones received as int32 came as {notes['arrived'][0]}; with the dtype sent first as "
        f"{mended['arrived'][0]:g}. No rank raised."
    )
    silent = notes["arrived"] == [notes["bits_of_one"]] * 2
    return holds(text, when=silent)


def _too_short(seen: Seen) -> ClaimFinding:
    receiver, mended = seen["broken"][1], seen["mended"][1].notes["arrived"]
    if receiver.error:
        return does_not_hold(f"2 numbers into a buffer of 4: the receiver raised {receiver.error}")
    got = receiver.notes["arrived"]
    text = (
        f"2 numbers into a buffer of 4 that held -7: no error, and the buffer held {_numbers(got)}; with the "
        f"length sent first the receiver kept {_numbers(mended)}."
    )
    return holds(text, when=got == [1.0, 1.0, -7.0, -7.0])


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _no_copy(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1].notes, seen["mended"][1].notes
    if mended != {"small": [1.0, 1.0], "large": [1.0, 1.0]}:
        raise ValueError(f"of a copy arrived {mended}")
    text = (
        "Changed from 1 to 2 after `isend` and before the receiver came, 4 bytes arrived as "
        f"{broken['small'][0]:g} and 1 MB as {broken['large'][0]:g}; of a copy, 1 and 1 arrived."
    )
    changed = broken == {"small": [2.0, 2.0], "large": [2.0, 2.0]}
    return holds(text, when=changed)


def _with_gaps(seen: Seen) -> ClaimFinding:
    sender, receiver = seen["broken"]
    mended = seen["mended"][1].notes["arrived"]
    after = f"A contiguous copy {'arrived' if mended else 'did not arrive'}."
    if "refused" not in sender.notes:
        return does_not_hold(f"The view with gaps was sent; the receiver {receiver.ended}. {after}")
    text = f"The sender was told “{sender.notes['refused']}” at once; "
    if receiver.notes.get("arrived"):
        return does_not_hold(f"{text}the receiver got something all the same. {after}")
    if "Timed out" not in receiver.error:
        raise ValueError(f"the receiver {receiver.ended}: {receiver.error}")
    return holds(f"{text}the receiver was told nothing and waited for its timeout of 1 s. {after}")


def _dtypes(seen: Seen) -> ClaimFinding:
    by_send, by_broadcast = seen["by send"][1].notes, seen["broken"][1].notes
    as_bytes = seen["mended"][1].notes
    refused = [name for name, answer in by_broadcast.items() if answer is not True]
    sent = [name for name, answer in by_send.items() if answer is True]
    why = next((answer for answer in by_broadcast.values() if answer is not True), "")
    text = (
        f"`send` carried {', '.join(sent)}; `broadcast` refused "
        f"{', '.join(refused) or 'none of them'}{f' ({why})' if why else ''}; as bytes, "
        f"{sum(v is True for v in as_bytes.values())} of {len(as_bytes)} arrived."
    )
    everything = len(sent) == len(by_send) and all(value is True for value in as_bytes.values())
    return holds(text, when=everything and set(refused) >= set(ANY_DTYPE))


def _to_itself(seen: Seen) -> ClaimFinding:
    notes = seen["to itself"][0].notes
    if "send" not in notes:
        raise ValueError("send to itself was not refused")
    if "isend" in notes:
        return does_not_hold(
            "A rank that sends to itself is refused by `send` (invalid destination rank) and by `isend` with "
            f"the receive posted too: {notes['isend'].split('. ')[-1]}"
        )
    return holds(f"`send` to itself is refused, and by `isend` {notes['arrived']:g} arrived.")


def _order(seen: Seen) -> ClaimFinding:
    order = seen["tags"][1].notes["order"]
    text = (
        "Sent as 1, 2, 3 (tag 0), 4 (tag 4), 5 (tag 5) and asked for by tags 5, 4, 0, 0, 0, the messages "
        f"came as {', '.join(map(str, order))}."
    )
    return holds(text, when=order == [5, 4, 1, 2, 3])


def _anybody(seen: Seen) -> ClaimFinding:
    pairs = seen["anybody"][0].notes["pairs"]
    named = all(source == value for source, value in pairs)
    start = f"Rank 2 sent at once, rank 1 late; the receiver got them from {pairs[0][0]} and {pairs[1][0]}"
    text = f"{start}, {'as they had been sent by' if named else 'which is not who had sent them'}."
    return holds(text, when=named and {pair[0] for pair in pairs} == {1, 2})


CLAIMS = (
    Claim(
        id="T04",
        statement="On gloo, a message that is longer than the receive buffer kills the receiving process.",
        source=f"{SEEN}; gloo, `transport/tcp/pair.cc`",
        backends=("gloo",),
        programs={
            "broken": Program("messages:longer_than_the_buffer"),
            "mended": Program("messages:length_first"),
        },
        judge=_too_long,
        advice="Send a header of fixed size first, refuse a length that you did not plan for, then receive.",
    ),
    Claim(
        id="T05",
        statement="On gloo, a message received as another dtype of the same size is reinterpreted silently.",
        source=f"{SEEN}",
        backends=("gloo",),
        programs={
            "broken": Program("messages:another_dtype"),
            "mended": Program("messages:dtype_first"),
        },
        judge=_dtype,
        advice="Put the dtype into the header and compare it before the receive.",
    ),
    Claim(
        id="T08",
        statement="On gloo, a message shorter than the receive buffer leaves the rest as it was, silently.",
        source=f"{SEEN}",
        backends=("gloo",),
        programs={
            "broken": Program("messages:shorter_than_the_buffer"),
            "mended": Program("messages:sent_with_its_length"),
        },
        judge=_too_short,
        advice="Never take the size of the buffer for the size of the message: send the length.",
    ),
    Claim(
        id="T09",
        statement="On gloo, `isend` keeps no copy, however small the message: a later change arrives.",
        source=f"{SEEN}; {DOCS}, `isend`: undefined behaviour",
        backends=("gloo",),
        programs={
            "broken": Program("messages:changed_before_receive"),
            "mended": Program("messages:copied_before_send"),
        },
        judge=_no_copy,
        advice="Headers too need a buffer of their own per message in flight, or a copy.",
    ),
    Claim(
        id="T10",
        statement="On gloo, a tensor that is not contiguous is refused to its sender, and its receiver "
        "hangs.",
        source=f"{SEEN}",
        backends=("gloo",),
        programs={
            "broken": Program("messages:every_second_column", timeout_s=1.0, limit_s=20.0),
            "mended": Program("messages:made_contiguous"),
        },
        judge=_with_gaps,
        advice="Check every tensor of an envelope before its first byte is sent; then send all or nothing.",
    ),
    Claim(
        id="T11",
        statement="On gloo, p2p carries any dtype, and collectives refuse fp8 and 16-bit integers.",
        source=f"{SEEN}",
        backends=("gloo",),
        programs={
            "by send": Program("messages:dtypes_by_send"),
            "broken": Program("messages:dtypes_by_broadcast"),
            "mended": Program("messages:dtypes_as_bytes"),
        },
        judge=_dtypes,
        advice="Broadcast `tensor.view(torch.uint8)`: what came by p2p can then be passed on to the mesh.",
    ),
    Claim(
        id="T12",
        statement="A rank may send to itself by `isend`, though not by `send`.",
        source=f"{DOCS}, `isend`: allows a destination that is the sender",
        backends=("gloo",),
        programs={"to itself": Program("messages:to_itself", ranks=1)},
        judge=_to_itself,
        advice="Where two roles share a rank, pass the tensor on by hand.",
    ),
    Claim(
        id="T13",
        statement="On gloo, messages of one tag keep their order, and tags may be received in any order.",
        source=f"{SEEN}; {DOCS}, `send`: tag to match with the remote receive",
        backends=("gloo",),
        programs={"tags": Program("messages:tags")},
        judge=_order,
        advice="Rely on the order of one link, not on tags: NCCL ignores them. A number in the header finds "
        "what was skipped or repeated.",
    ),
    Claim(
        id="T14",
        statement="On gloo, `recv` without a source takes from whoever sends and says who it was.",
        source=f"{DOCS}, `recv`: from any process if unspecified",
        backends=("gloo",),
        programs={"anybody": Program("messages:from_anybody", ranks=3)},
        judge=_anybody,
        advice="Name the source all the same: NCCL has no receive from anybody.",
    ),
)
