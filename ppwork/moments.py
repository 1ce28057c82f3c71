"""Moments that a program of one's own prints: when a call was entered, and when it came back.

``inside`` writes in the ranks, ``calls_of`` reads in the notebook. All ranks of one machine share the clock,
so moments of different ranks can be compared; over two machines this would not do.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENTERED, RETURNED, RAISED = "enters", "returns", "raises"
_LINE = re.compile(rf"^@(\d+) ({ENTERED}|{RETURNED}|{RAISED}) (\S+) (.+)$", re.MULTILINE)
TOUCHES = ("overwrite", "read")
"""Names of what a program does itself to the memory of a message; every other name is a call of torch."""


@dataclass(frozen=True)
class Call:
    """One call of one rank, about one message.

    Attributes:
        name: Such as ``send``, ``wait``, or one of ``TOUCHES``.
        message: Which message it is about, such as ``16 MB``.
        entered_ns: On the machine's clock.
        ended_ns: When it came back or raised; ``None`` if the rank ended inside it.
        raised: Whether it ended with an exception.
    """

    name: str
    message: str
    entered_ns: int
    ended_ns: int | None = None
    raised: bool = False


@contextmanager
def inside(name: str, message: str) -> Iterator[None]:
    """Print when the body is entered and left; for the ranks of a program of one's own.

    Args:
        name: Of the call in the body, in one word, such as ``send``.
        message: Which message it is about.
    """
    _say(ENTERED, name, message)
    try:
        yield
    except BaseException:
        _say(RAISED, name, message)
        raise
    _say(RETURNED, name, message)


def _say(what: str, name: str, message: str) -> None:
    # One write: the lines of two threads must not end up in each other.
    sys.stdout.write(f"@{time.monotonic_ns()} {what} {name} {message}\n")
    sys.stdout.flush()


def calls_of(printed: Mapping[int, str]) -> dict[int, tuple[Call, ...]]:
    """Read what ranks printed back, in the order in which each of them entered its calls.

    Args:
        printed: What each rank wrote to its standard output; other lines are passed over.
    """
    return {rank: _calls(text) for rank, text in printed.items()}


def _calls(text: str) -> tuple[Call, ...]:
    calls: dict[int, Call] = {}
    for number, (at, what, name, message) in enumerate(_LINE.findall(text)):
        if what == ENTERED:
            calls[number] = Call(name, message, int(at))
            continue
        opened = [k for k, c in calls.items() if (c.name, c.message, c.ended_ns) == (name, message, None)]
        if opened:
            calls[opened[-1]] = Call(name, message, calls[opened[-1]].entered_ns, int(at), what == RAISED)
    return tuple(calls.values())


def held_ns(calls: tuple[Call, ...], message: str) -> tuple[int, int | None]:
    """Return from when to when the memory of a message was torch's: first call entered, last call ended.

    Raises:
        LookupError: No call of torch is about this message.
    """
    of_torch = [call for call in calls if call.message == message and call.name not in TOUCHES]
    if not of_torch:
        raise LookupError(f"there is no call about {message!r}")
    return of_torch[0].entered_ns, of_torch[-1].ended_ns
