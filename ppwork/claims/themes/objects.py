"""Claims about object collectives: pickle, two transfers, their time, and whose time."""

from __future__ import annotations

from ppwork.claims.claim import CARD, DOCS, Claim, ClaimFinding, Program, Seen, does_not_hold, holds

SLOW = 1.5
"""Times as long as the tensor itself: what counts as slow."""


def _objects(seen: Seen) -> ClaimFinding:
    recorded, by_hand = seen["recorded"][1].notes, seen["by hand"][1].notes
    transfers, messages = recorded["transfers"], by_hand["messages"]
    if not seen["by hand"][0].notes["returned"] or by_hand["object"] != {"chunk": 7}:
        raise ValueError("received one by one, it was not these messages")
    if transfers != messages:
        raise ValueError(f"{transfers} transfers recorded, {messages} messages received by hand")
    times = {name: seen[name][1].notes for name in ("broadcast", "there and back")}
    ratios = {name: notes["object_ms"] / notes["tensor_ms"] for name, notes in times.items()}
    if len({ratio > SLOW for ratio in ratios.values()}) > 1:
        raise ValueError(f"object against tensor: {ratios}")
    executed = recorded["executed_by"] == recorded["pid"]
    text = (
        f"{transfers} transfers for one object, counted by the flight recorder and by receiving them one by "
        f"one; 4 MB as an object take {ratios['broadcast']:.0f} times as long as a tensor by broadcast and "
        f"{ratios['there and back']:.0f} times there and back; unpickling "
        f"{'ran code that the sender had chosen' if executed else 'ran nothing'} in the receiver's process."
    )
    slow = ratios["broadcast"] > SLOW
    return holds(text, when=transfers == 2 and slow and executed)


def _sweep(seen: Seen) -> ClaimFinding:
    notes = seen["sizes"][1].notes
    extra = {size: notes[f"object_{size}_ms"] - notes[f"tensor_{size}_ms"] for size in (1, 256, 16384)}
    rows = "; ".join(
        f"{name} {notes[f'tensor_{size}_ms']:.2f} and {notes[f'object_{size}_ms']:.2f} ms"
        for size, name in ((1, "1 KB"), (256, "256 KB"), (16384, "16 MB"))
    )
    text = f"As a tensor and as an object: {rows}. An object costs {extra[1]:.2f} ms more when small"
    if extra[16384] > 5 * max(extra[1], 0.0) and extra[16384] > extra[256]:
        return holds(f"{text} and {extra[16384]:.0f} ms more at 16 MB.")
    return does_not_hold(f"{text} and {extra[16384]:.2f} ms more at 16 MB: no more for large ones.")


def _asymmetric(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["counted"]]
    if not notes:
        raise ValueError("nothing was seen")
    text = "; ".join(f"{name}: {_shares([note[name] for note in notes])}" for name in notes[0])
    uneven = [name for name in notes[0] if len({tuple(note[name]) for note in notes}) > 1]
    return holds(
        f"Objects pickled and unpickled by ranks 0, 1 and 2 in one call of each: {text}.",
        when="gather_object" in uneven and "scatter_object_list" in uneven,
    )


def _shares(counts: list[list[int]]) -> str:
    return ", ".join(f"{pickled} and {unpickled}" for pickled, unpickled in counts)


CLAIMS = (
    Claim(
        id="C10",
        statement="Object collectives pickle, take two transfers for one object, and are slow.",
        source=f"{CARD}, claim 10; {DOCS}, object collectives",
        programs={
            "recorded": Program("objects:recorded_broadcast_of_an_object"),
            "by hand": Program("objects:counted_messages_of_an_object"),
            "broadcast": Program("objects:four_megabytes", limit_s=20.0, timeout_s=15.0),
            "there and back": Program("objects:there_and_back", limit_s=20.0, timeout_s=15.0),
        },
        judge=_objects,
        advice="Send a header and tensors. Whoever may send you an object runs code in your process: take "
        "none from ranks that you do not trust.",
        alone=True,
    ),
    Claim(
        id="G09",
        statement="Object collectives are for small set-up data: what they cost more grows with the size.",
        source=f"{CARD}, ninth gotcha",
        programs={"sizes": Program("objects:sizes", limit_s=20.0, timeout_s=15.0)},
        judge=_sweep,
        advice="Plans and addresses at the start, yes; activations, never.",
        alone=True,
    ),
    Claim(
        id="D30",
        statement="In an object collective one rank may pickle and unpickle for all the others.",
        source=f"{CARD}, claim 10; {DOCS}, object collectives: asymmetric pickle and unpickle time",
        programs={"counted": Program("objects:counted_pickles", ranks=3)},
        judge=_asymmetric,
        advice="Where objects have to come together, all ranks wait for the one that unpickles them all, and "
        "the more so the more ranks there are: send tensors, or let each rank write a file.",
    ),
)
