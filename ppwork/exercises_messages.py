"""Exercises of the lesson on messages between two ranks (01)."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from ppwork.answers import compared

if TYPE_CHECKING:
    from ppwork.answers import Answer

BLOCKS = {("gloo", "send"): True, ("gloo", "isend"): False, ("nccl", "send"): False, ("nccl", "isend"): False}
"""Whether a call is back only when the receiver has come (claim C01; of NCCL the documentation's word)."""


def _back_early(answer: Answer) -> str:
    thoughts = {
        ("gloo", "send"): "On gloo a send of any size waits for its receiver.",
        ("gloo", "isend"): "The i stands for immediate: it is `wait` that waits.",
        ("nccl", "send"): "NCCL puts the transfer into a CUDA stream; the CPU does not wait for it.",
        ("nccl", "isend"): "What `send` does not wait for, `isend` does not either.",
    }
    for case in product(("gloo", "nccl"), ("send", "isend")):
        found, right = answer(*case), not BLOCKS[case]
        if found is not right:
            return f"For {case} you gave {found!r}, expected {right}. {thoughts[case]}"
    return ""


Steps = list[tuple[str, str]]
TOUCHED: tuple[tuple[Steps, str], ...] = (
    ([("isend", "a"), ("write", "a"), ("wait", "a")], "The buffer is lent from `isend` until `wait`."),
    ([("isend", "a"), ("wait", "a"), ("write", "a")], "After its `wait` the buffer is yours again."),
    ([("isend", "a"), ("write", "b"), ("wait", "a")], "Another buffer than the one that is lent."),
    (
        [("isend", "a"), ("isend", "b"), ("wait", "a"), ("write", "a"), ("write", "b"), ("wait", "b")],
        "Each buffer has a `wait` of its own.",
    ),
    (
        [("write", "a"), ("isend", "a"), ("wait", "a"), ("isend", "a"), ("write", "a"), ("wait", "a")],
        "The second `isend` lends it a second time.",
    ),
)
"""What a rank does with its buffers, step by step, and what to think of."""


def touch_in_flight(steps: Steps) -> int | None:
    """Return the number of the first step that writes to a buffer which is lent; ``None`` if none does."""
    lent: set[str] = set()
    for number, (what, buffer) in enumerate(steps):
        if what == "write" and buffer in lent:
            return number
        if what == "isend":
            lent.add(buffer)
        elif what == "wait":
            lent.discard(buffer)
    return None


def _first_touch(answer: Answer) -> str:
    for steps, thought in TOUCHED:
        found, right = answer(list(steps)), touch_in_flight(steps)
        if found != right or isinstance(found, bool):
            return f"For {steps} you gave {found!r}, expected {right}. {thought}"
    return ""


IN_FLIGHT: tuple[tuple[list[str], str], ...] = (
    (
        ["isend", "isend", "wait", "isend", "wait", "wait"],
        "The third message leaves when the first one's buffer has come back.",
    ),
    (["isend", "wait", "isend", "wait"], "One after the other: the same buffer does for both."),
    (["isend", "isend", "isend", "wait", "wait", "wait"], "All of them are in flight before the first wait."),
)
"""Calls of a rank, each ``wait`` for the oldest message; none reuses a buffer before its wait."""


def _buffers(answer: Answer) -> str:
    for calls, thought in IN_FLIGHT:
        lent = [calls[: n + 1].count("isend") - calls[: n + 1].count("wait") for n in range(len(calls))]
        habits = {
            float(max(lent) - 1): "A message is in flight from its `isend` on, the newest one too.",
            1.0: "One buffer for two messages in flight: the second overwrites the first.",
            float(calls.count("isend")): f"Not every message needs one of its own. {thought}",
        }
        hint = compared(lambda case: answer(list(case)), (calls,), max(lent), habits)
        if hint:
            return hint
    return ""


ORDERS: tuple[tuple[list[str], list[str], str], ...] = (
    (["send", "recv"], ["recv", "send"], "Each send meets its receive."),
    (["send", "recv"], ["send", "recv"], "Both are in `send`, and nobody receives."),
    (["recv", "send"], ["recv", "send"], "Both are in `recv`, and nobody sends."),
    (["send", "send"], ["recv"], "The second send has nobody who receives it."),
    (
        ["send", "recv", "recv"],
        ["recv", "send", "recv"],
        "The first two calls of each meet; look at the third ones.",
    ),
)
"""Blocking calls of two ranks that talk to each other only, in order, and what to think of."""


def _never_returns(answer: Answer) -> str:
    for first, second, thought in ORDERS:
        right = len(first) != len(second) or any(a == b for a, b in zip(first, second, strict=True))
        found = answer(list(first), list(second))
        if found is not right:
            return f"For {first} and {second} you gave {found!r}, expected {right}. {thought}"
    return ""


MESSAGES = {"01.1": _back_early, "01.2": _first_touch, "01.3": _buffers, "01.4": _never_returns}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""
