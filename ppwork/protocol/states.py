"""The states of a session and what moves it, as one table: read it as the specification.

``session`` walks this table; diagrams are drawn from it. It does not know which role a rank plays: stage 0
*sends* what a mesh rank *receives*, and both walk the same way.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """States of a session."""

    STARTING = "starting"
    """Groups, parity and warm-up are not done."""
    READY = "ready"
    """Nothing is in flight."""
    BUSY = "busy"
    """One or more chunks are in flight."""
    DRAINING = "draining"
    """SHUTDOWN has passed; the acknowledgement has not."""
    CLOSED = "closed"
    ERROR = "error"
    """For ever (rule R9): only the terminal notice may still pass."""


class Event(StrEnum):
    """Events that move a session."""

    JOINED = "joined"
    NOOP = "noop"
    INFER = "infer"
    RESULT = "result"
    """A result passed and others are still in flight."""
    LAST_RESULT = "last_result"
    """A result passed and nothing is in flight any more."""
    SHUTDOWN = "shutdown"
    ACKNOWLEDGED = "acknowledged"
    NOTICE = "notice"
    """The terminal ERROR passed, in either direction."""
    FAILED = "failed"
    """An exception on this rank."""


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.STARTING: {
        Event.JOINED: State.READY,
        Event.FAILED: State.ERROR,
    },
    State.READY: {
        Event.NOOP: State.READY,
        Event.INFER: State.BUSY,
        Event.SHUTDOWN: State.DRAINING,
        Event.NOTICE: State.ERROR,
        Event.FAILED: State.ERROR,
    },
    State.BUSY: {
        Event.NOOP: State.BUSY,
        Event.INFER: State.BUSY,
        Event.RESULT: State.BUSY,
        Event.LAST_RESULT: State.READY,
        Event.NOTICE: State.ERROR,
        Event.FAILED: State.ERROR,
    },
    State.DRAINING: {
        Event.ACKNOWLEDGED: State.CLOSED,
        Event.NOTICE: State.ERROR,
        Event.FAILED: State.ERROR,
    },
    State.CLOSED: {},
    State.ERROR: {
        Event.NOTICE: State.ERROR,
        Event.FAILED: State.ERROR,
    },
}
"""State, then event, then the next state; what is not here is illegal."""
