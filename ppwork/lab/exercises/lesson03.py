"""Exercises of the lesson on envelopes (03)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppwork.errors import RemoteProtocolError
from ppwork.lab.exercises.answers import Answer, Case, exercise
from ppwork.lab.exercises.attempts import Programs
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, TensorSpec
from ppwork.protocol.header import HEADER_BYTES, Limits, body_room
from ppwork.protocol.session import Session
from ppwork.protocol.topology import Role
from ppwork.protocol.wire import ALIGN, lay_out

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
        given = answer(list(sizes))
        if given == right:
            continue
        short = f"Header and body have the first {room} bytes for themselves, however short they are."
        habits = {
            f"Each tensor begins at a multiple of {ALIGN} bytes.": packed(sizes, start=room),
            short: packed(sizes, start=HEADER_BYTES, align=ALIGN),
            "The header and the body are in the frame, too.": packed(sizes, start=0, align=ALIGN),
            "One that is too large goes alone; the ones behind it may still fit.": packed(
                sizes, start=room, align=ALIGN, go_on=False
            ),
        }
        thought = next((hint for hint, fits in habits.items() if fits == given), "")
        return f"For {list(sizes)} you gave {given!r}, expected {right}. {thought}".rstrip()
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
        given = answer(list(actions))
        right = [tuple(envelope.ids.where().values()) for envelope in _ids_of(actions)]
        if not isinstance(given, list) or len(given) != len(right):
            return f"For {actions} you gave {given!r}; return a list with three numbers for each action."
        for action, numbers, expected in zip(actions, given, right, strict=True):
            for counter, number, wanted in zip(COUNTS, numbers, expected, strict=True):
                if number != wanted:
                    case = f"For the {action} in {actions} you gave {numbers!r}, expected {expected}."
                    return f"{case} {COUNTS[counter]}"
    return ""


SENDS = (
    [
        ("serialise metadata", "check"),
        ("send header", "send"),
        ("check dtypes", "check"),
        ("send tensors", "send"),
    ],
    [
        ("header leaves", "send"),
        ("sender's turn", "check"),
        ("body leaves", "send"),
        ("tensors leave", "send"),
    ],
)
"""Somebody's send, step by step: what may raise, and what leaves."""


def _order(answer: Answer) -> str:
    for steps in SENDS:
        given = answer([list(step) for step in steps])
        kinds = dict(steps)
        if not isinstance(given, list) or sorted(map(str, given)) != sorted(kinds):
            return f"You gave {given!r}; return the names of all steps, each once: {', '.join(kinds)}."
        gone = ""
        for name in given:
            if gone and kinds[name] == "check":
                return f"In {given} {name!r} may raise when {gone!r} has left: the peer waits for the rest."
            gone = gone or (name if kinds[name] == "send" else "")
        parts = [name for name in given if kinds[name] == "send"]
        if parts != [name for name in kinds if kinds[name] == "send"]:
            return (
                f"In {given} the parts leave as {parts}; the receiver reads them as they stood, header first."
            )
    return ""


TWO = ["INFER", "INFER"]
ARRIVALS: dict[str, tuple[list[str], tuple[int, int, int], str, bool]] = {
    "Each counter is one further: nothing is wrong.": (TWO, (2, 2, 0), "INFER", False),
    "A call is missing between the last one and this.": (TWO, (3, 3, 0), "INFER", False),
    "This call has been here before.": (TWO, (1, 1, 0), "INFER", False),
    "A NOOP is a call, and no chunk.": (TWO, (2, 1, 0), "NOOP", False),
    "A NOOP must not take a chunk's number.": (TWO, (2, 2, 0), "NOOP", False),
    "A call is missing, even if it was no chunk.": (TWO, (3, 2, 0), "INFER", False),
    "A cut: the epoch goes up, and the plan resets the cache.": (TWO, (2, 2, 1), "INFER", True),
    "The epoch went up, and the plan does not reset the cache.": (TWO, (2, 2, 1), "INFER", False),
    "The plan resets the cache, and the epoch did not go up.": (TWO, (2, 2, 0), "INFER", True),
    "The epoch went down; it never does.": (["INFER", CUT], (2, 2, 0), "INFER", False),
}
"""Received actions, the ids that come, their action, and whether the plan resets the cache, by the reason."""


@exercise
def _accepts() -> Iterator[Case]:
    for thought, (history, new, name, reset) in ARRIVALS.items():
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
        text = f"After {last} came {new} with {name}, reset_cache={reset}:"
        yield Case(text, (last, new, name, reset), right, thought)


FUNCTIONS = {"03.1": _rides, "03.2": _count, "03.3": _order, "03.4": _accepts}
PROGRAMS: Programs = {}
