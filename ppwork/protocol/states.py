"""The states of a session and its transitions, as one table: read it as the specification.

``session`` walks this table, and diagrams are drawn from it. The table is the same for all roles: stage 0
*sends* what a mesh rank *receives*, and both take the same transition.
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
    """Final (rule R9): only the terminal notice may still pass."""


class Event(StrEnum):
    """Events that move a session."""

    JOINED = "joined"
    NOOP = "noop"
    INFER = "infer"
    RESULT = "result"
    """A result passed, and other chunks are still in flight."""
    LAST_RESULT = "last_result"
    """A result passed, and nothing is in flight any more."""
    SHUTDOWN = "shutdown"
    ACKNOWLEDGED = "acknowledged"
    NOTICE = "notice"
    """The terminal ERROR passed, in either direction."""
    FAILED = "failed"
    """This rank raised an exception."""


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.STARTING: {Event.JOINED: State.READY, Event.FAILED: State.ERROR},
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
    State.DRAINING: {Event.ACKNOWLEDGED: State.CLOSED, Event.NOTICE: State.ERROR, Event.FAILED: State.ERROR},
    State.CLOSED: {},
    State.ERROR: {Event.NOTICE: State.ERROR, Event.FAILED: State.ERROR},
}
"""State, then event, then the next state; every other event is illegal."""
