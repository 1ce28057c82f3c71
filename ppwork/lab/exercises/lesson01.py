"""Exercises of the lesson on messages between two ranks (01)."""

from __future__ import annotations

from collections.abc import Iterator

from ppwork.lab.exercises.answers import Case, exercise, number_case
from ppwork.lab.exercises.attempts import Programs

BLOCKS = {("gloo", "send"): True, ("gloo", "isend"): False, ("nccl", "send"): False, ("nccl", "isend"): False}
"""Whether a call is back only when the receiver has come (claim C01; of NCCL the documentation's word)."""


@exercise
def _back_early() -> Iterator[Case]:
    thoughts = {
        ("gloo", "send"): "On gloo a send of any size waits for its receiver.",
        ("gloo", "isend"): "The i stands for immediate: it is `wait` that waits.",
        ("nccl", "send"): "NCCL puts the transfer into a CUDA stream; the CPU does not wait for it.",
        ("nccl", "isend"): "What `send` does not wait for, `isend` does not either.",
    }
    for call, thought in thoughts.items():
        yield Case(f"For {call}", call, not BLOCKS[call], thought)


Steps = list[tuple[str, str]]


def _steps(text: str) -> Steps:
    pairs = (step.split() for step in text.split(", "))
    return [(what, buffer) for what, buffer in pairs]


TOUCHED = {
    "The buffer is lent from `isend` until `wait`.": _steps("isend a, write a, wait a"),
    "After its `wait` the buffer is yours again.": _steps("isend a, wait a, write a"),
    "Another buffer than the one that is lent.": _steps("isend a, write b, wait a"),
    "Each buffer has a `wait` of its own.": _steps("isend a, isend b, wait a, write a, write b, wait b"),
    "The second `isend` lends it a second time.": _steps(
        "write a, isend a, wait a, isend a, write a, wait a"
    ),
}
"""Steps of a rank with its buffers, by what to think of."""


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


@exercise
def _first_touch() -> Iterator[Case]:
    for thought, steps in TOUCHED.items():
        yield Case(f"For {steps}", (steps,), touch_in_flight(steps), thought)


IN_FLIGHT = {
    "The third message leaves when the first one's buffer has come back.": (
        ["isend", "isend", "wait", "isend", "wait", "wait"]
    ),
    "One after the other: the same buffer does for both.": ["isend", "wait", "isend", "wait"],
    "All of them are in flight before the first wait.": ["isend"] * 3 + ["wait"] * 3,
}
"""Calls of a rank, each ``wait`` for the oldest message; none reuses a buffer before its wait."""


@exercise
def _buffers() -> Iterator[Case]:
    for thought, calls in IN_FLIGHT.items():
        lent = [calls[: n + 1].count("isend") - calls[: n + 1].count("wait") for n in range(len(calls))]
        habits = {
            float(max(lent) - 1): "A message is in flight from its `isend` on, the newest one too.",
            1.0: "One buffer for two messages in flight: the second overwrites the first.",
            float(calls.count("isend")): f"Not every message needs one of its own. {thought}",
        }
        yield number_case((calls,), max(lent), habits)


ORDERS = {
    "Each send meets its receive.": (["send", "recv"], ["recv", "send"]),
    "Both are in `send`, and nobody receives.": (["send", "recv"], ["send", "recv"]),
    "Both are in `recv`, and nobody sends.": (["recv", "send"], ["recv", "send"]),
    "The second send has nobody who receives it.": (["send", "send"], ["recv"]),
    "The first two calls of each meet; look at the third ones.": (
        ["send", "recv", "recv"],
        ["recv", "send", "recv"],
    ),
}
"""Blocking calls of two ranks that talk to each other only, in order, by what to think of."""


@exercise
def _never_returns() -> Iterator[Case]:
    for thought, (first, second) in ORDERS.items():
        right = len(first) != len(second) or any(a == b for a, b in zip(first, second, strict=True))
        yield Case(f"For {first} and {second}", (first, second), right, thought)


FUNCTIONS = {"01.1": _back_early, "01.2": _first_touch, "01.3": _buffers, "01.4": _never_returns}
PROGRAMS: Programs = {}
