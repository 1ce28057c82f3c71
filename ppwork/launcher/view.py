"""The view of a run while it goes: what the launcher asks of one, and the one that shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Queued = Callable[[str], None]
"""Takes what a queue says of a run that waits for its hosts; may raise ``StopAsked``."""
QUIET_VARIABLE = "PPWORK_NONINTERACTIVE"
"""Set: a notebook shows no run while it goes."""


class StopAsked(Exception):
    """The user asked the view to end the run."""


class View(Protocol):
    """Shows a run; made before its ranks start, and used by the thread that launched them."""

    def look(self) -> None:
        """Show what is new; called about every 50 ms.

        Raises:
            StopAsked: The run shall end now.
        """
        ...

    def end(self, finished: object) -> None:
        """Show what stays of a ``Run`` or a ``ScriptRun`` that has ended."""
        ...


class NoView:
    """Shows nothing; it can be made of whatever a view is made of."""

    def __init__(self, *_: object) -> None:
        pass

    def look(self) -> None:
        """Do nothing."""

    def end(self, finished: object) -> None:
        """Do nothing."""
