"""The view of a running run: what the launcher calls on a view, and a view that shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Queued = Callable[[str], None]
"""Takes a queue's report on a run that waits for its hosts; may raise ``StopAsked``."""
QUIET_VARIABLE = "PPWORK_NONINTERACTIVE"
"""If set, a notebook shows no running run, and nothing says that a program stands still."""


class StopAsked(Exception):
    """The user asked the view to end the run."""


class View(Protocol):
    """Shows a run; made before its ranks start, and used by the thread that launched them."""

    def look(self) -> None:
        """Show news; called about every 50 ms.

        Raises:
            StopAsked: The run must end now.
        """
        ...

    def end(self, finished: object) -> None:
        """Show what remains of a ``Run`` or a ``ScriptRun`` that has ended."""
        ...


class NoView:
    """Shows nothing; its constructor takes any view's arguments."""

    def __init__(self, *_: object) -> None:
        pass

    def look(self) -> None:
        """Do nothing."""

    def end(self, finished: object) -> None:
        """Do nothing."""
