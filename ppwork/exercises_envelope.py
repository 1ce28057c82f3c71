"""Exercises of the lesson on envelopes (03)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, TensorSpec
from ppwork.errors import RemoteProtocolError
from ppwork.header import HEADER_BYTES, Limits, body_room
from ppwork.layout import ALIGN, lay_out
from ppwork.protocol import Session
from ppwork.topology import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppwork.answers import Answer

FRAME = Limits().frame_bytes
SIZES = ((8192,), (6145,), (6144,), (1, 6100), (8000, 100), (4096, 4096))
"""CPU tensors of some messages, in bytes."""


def packed(sizes: Sequence[int], *, start: int, align: int = 1, go_on: bool = True) -> list[bool]:
    """Return which tensors fit behind ``start``, by a rule that may be another than the library's."""
    fits: list[bool] = []
    cursor = start
    for size in sizes:
        begin = -(-cursor // align) * align
        fits.append(begin + size <= FRAME and (go_on or all(fits)))
        cursor = begin + size if fits[-1] else cursor
    return fits


def _rides(answer: Answer) -> str:
    room = body_room(FRAME)
    for sizes in SIZES:
        specs = [TensorSpec(f"t{n}", "uint8", (size,)) for n, size in enumerate(sizes)]
        right = [offset is not None for offset in lay_out(specs, FRAME).inline]
        found = answer(list(sizes))
        if found == right:
            continue
        habits = [
            (packed(sizes, start=room), f"Each tensor begins at a multiple of {ALIGN} bytes."),
            (
                packed(sizes, start=HEADER_BYTES, align=ALIGN),
                f"Header and body have the first {room} bytes for themselves, however short they are.",
            ),
            (packed(sizes, start=0, align=ALIGN), "The header and the body are in the frame, too."),
            (
                packed(sizes, start=room, align=ALIGN, go_on=False),
                "One that is too large goes alone; the ones behind it may still fit.",
            ),
        ]
        thought = next((hint for wrong, hint in habits if wrong == found), "")
        return f"For {list(sizes)} you gave {found!r}, expected {right}. {thought}".rstrip()
    return ""


CUT = "INFER, cut"
ACTIONS = (
    ["INFER", "INFER"],
    ["INFER", "NOOP", "INFER"],
    ["INFER", "INFER", CUT, "INFER", CUT],
    ["NOOP", "INFER"],
)
COUNTS = {
    "call_id": "`call_id` counts every action, from 0.",
    "chunk_index": "`chunk_index` counts INFER only; a NOOP repeats it, and -1 stands before the first.",
    "cache_epoch": "`cache_epoch` counts cuts: it goes up by one, and stays.",
}


def _ids_of(actions: Sequence[str]) -> list[PPEnvelope]:
    """Return what rank 0 would send for these actions."""
    session, sent = Session(0, Role.STAGE0, len(actions)), []
    session.joined()
    for name in actions:
        action, cut = PPAction[name.partition(",")[0]], name == CUT
        plan = ChunkPlan.of(1, reset_cache=cut) if action is PPAction.INFER else None
        sent.append(PPEnvelope(action, session.next_ids(action, hard_cut=cut), plan))
        session.sent(sent[-1])
    return sent


def _count(answer: Answer) -> str:
    for actions in ACTIONS:
        found = answer(list(actions))
        right = [tuple(envelope.ids.where().values()) for envelope in _ids_of(actions)]
        if not isinstance(found, list) or len(found) != len(right):
            return f"For {actions} you gave {found!r}; return a list with three numbers for each action."
        for action, given, expected in zip(actions, found, right, strict=True):
            for counter, *numbers in zip(COUNTS, given, expected, strict=True):
                if numbers[0] != numbers[1]:
                    case = f"For the {action} in {actions} you gave {given!r}, expected {expected}."
                    return f"{case} {COUNTS[counter]}"
    return ""


SENDS = (
    (
        ("serialise metadata", "check"),
        ("send header", "send"),
        ("check dtypes", "check"),
        ("send tensors", "send"),
    ),
    (
        ("header leaves", "send"),
        ("sender's turn", "check"),
        ("body leaves", "send"),
        ("tensors leave", "send"),
    ),
)
"""Somebody's send, step by step: what may raise, and what leaves."""


def _order(answer: Answer) -> str:
    for steps in SENDS:
        found = answer([list(step) for step in steps])
        kinds = dict(steps)
        if not isinstance(found, list) or sorted(map(str, found)) != sorted(kinds):
            return f"You gave {found!r}; return the names of all steps, each once: {', '.join(kinds)}."
        gone = ""
        for name in found:
            if gone and kinds[name] == "check":
                return f"In {found} {name!r} may raise when {gone!r} has left: the peer waits for the rest."
            gone = gone or (name if kinds[name] == "send" else "")
        left = [name for name in found if kinds[name] == "send"]
        if left != [name for name in kinds if kinds[name] == "send"]:
            return (
                f"In {found} the parts leave as {left}; the receiver reads them as they stood, header first."
            )
    return ""


ARRIVALS: tuple[tuple[list[str], tuple[int, int, int], str, bool, str], ...] = (
    (["INFER", "INFER"], (2, 2, 0), "INFER", False, "Each counter is one further: nothing is wrong."),
    (["INFER", "INFER"], (3, 3, 0), "INFER", False, "A call is missing between the last one and this."),
    (["INFER", "INFER"], (1, 1, 0), "INFER", False, "This call has been here before."),
    (["INFER", "INFER"], (2, 1, 0), "NOOP", False, "A NOOP is a call, and no chunk."),
    (["INFER", "INFER"], (2, 2, 0), "NOOP", False, "A NOOP must not take a chunk's number."),
    (["INFER", "INFER"], (3, 2, 0), "INFER", False, "A call is missing, even if it was no chunk."),
    (
        ["INFER", "INFER"],
        (2, 2, 1),
        "INFER",
        True,
        "A cut: the epoch goes up, and the plan resets the cache.",
    ),
    (
        ["INFER", "INFER"],
        (2, 2, 1),
        "INFER",
        False,
        "The epoch went up, and the plan does not reset the cache.",
    ),
    (
        ["INFER", "INFER"],
        (2, 2, 0),
        "INFER",
        True,
        "The plan resets the cache, and the epoch did not go up.",
    ),
    (["INFER", CUT], (2, 2, 0), "INFER", False, "The epoch went down; it never does."),
)
"""What was received, the ids that come, their action, whether the plan resets the cache, and why."""


def _accepts(answer: Answer) -> str:
    for history, new, name, reset, thought in ARRIVALS:
        session = Session(1, Role.LEADER, len(history) + 1)
        session.joined()
        for envelope in _ids_of(history):
            session.received(envelope)
        last = tuple(session.last_ids.where().values())
        action = PPAction[name]
        plan = ChunkPlan.of(1, reset_cache=reset) if action is PPAction.INFER else None
        try:
            session.received(PPEnvelope(action, Ids(*new), plan))
            right = True
        except RemoteProtocolError:
            right = False
        found = answer(last, new, name, reset)
        if found is not right:
            case = f"After {last} came {new} with {name}, reset_cache={reset}:"
            return f"{case} you gave {found!r}, expected {right}. {thought}"
    return ""


ENVELOPE = {"03.1": _rides, "03.2": _count, "03.3": _order, "03.4": _accepts}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""
