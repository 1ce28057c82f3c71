"""A run in a notebook cell while it goes: progress of the stages, a line for each rank, and a Stop button.

Everything shown is the value of a widget, set from the cell's own thread: no output is captured or cleared.
When the run has ended a table and a timeline take the widgets' place, so that the page still teaches when it
is opened without a kernel. Outside a notebook, and where ``PPWORK_NONINTERACTIVE`` is set, nothing is shown.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from ppwork.errors import PlanError
from ppwork.html_table import APART, html_table
from ppwork.live_facts import LiveFacts, RankNow
from ppwork.show import Picture, show
from ppwork.summary_rows import rows_of

if TYPE_CHECKING:
    from ppwork.run import Run

QUIET_VARIABLE = "PPWORK_NONINTERACTIVE"
EVERY_S = 0.25
"""A rank's pulse is as coarse."""
STATE_COLOURS = {"busy": "#009E73", "slow": "#E69F00", "stuck": "#D55E00"}
"""Besides the word, never instead of it."""


class StopAsked(Exception):
    """The Stop button was pressed."""


def in_notebook() -> bool:
    """Say whether a live view can be shown here: in a kernel with ipywidgets, and not asked to be quiet."""
    if os.environ.get(QUIET_VARIABLE) or "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


class Facts(Protocol):
    """What a view shows: of a run, or of a program of one's own."""

    name: str
    total: int
    done: dict[str, int]
    """How many of ``total`` have passed each step, by its title; empty: there is nothing to count."""

    def look(self) -> list[RankNow]:
        """Read what is new, and return every rank as it is now."""
        ...


class NoView:
    """What stands for a view where there is none to show."""

    def look(self) -> None:
        """Do nothing."""

    def end(self, kept: object) -> None:
        """Do nothing."""


class LiveView:
    """The view of one run; made, looked after and ended by the thread of the cell.

    The button's message comes while that thread is busy. JupyterLab hands it to the kernel in a thread of its
    own (a subshell); a front end that does not has the kernel's interrupt button for it.

    Args:
        facts: Where to look.
    """

    def __init__(self, facts: Facts) -> None:
        import ipywidgets as widgets
        from IPython.display import display

        self._facts, self._start = facts, time.monotonic()
        self._looked = 0.0
        self._stop = threading.Event()
        self._head, self._ranks, self._logs = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._bars = {
            step: widgets.IntProgress(max=facts.total, description=step, style={"description_width": "9em"})
            for step in facts.done
        }
        self._counts = {step: widgets.Label() for step in facts.done}
        button = widgets.Button(description="Stop", tooltip="End this run; no rank stays", icon="stop")
        button.on_click(lambda _: self._stop.set())
        button.add_class("ppwork-stop")
        bars = [widgets.HBox([bar, self._counts[step]]) for step, bar in self._bars.items()]
        self._box = widgets.VBox(
            [widgets.HBox([button, self._head]), *bars, self._ranks, self._logs], _dom_classes=["ppwork-live"]
        )
        self._show()
        self._shown = display(self._box, display_id=True)
        # ipykernel 7.4 sends a widget's messages to the thread that last published it: the cell's, which is
        # busy until the run has ended. Without this mark they go where the front end sends them.
        with contextlib.suppress(AttributeError):
            del button.comm._reply_subshell_id

    def look(self) -> None:
        """Show what is new, a few times a second.

        Raises:
            StopAsked: The button was pressed.
        """
        if self._stop.is_set():
            raise StopAsked
        if time.monotonic() - self._looked >= EVERY_S:
            self._show()

    def end(self, kept: object) -> None:
        """Put what stays, such as ``Ended``, in the place of the widgets."""
        self._shown.update(kept)
        _close(self._box)

    def _show(self) -> None:
        ranks = self._facts.look()
        self._looked = time.monotonic()
        self._head.value = f"{html.escape(self._facts.name)}, {self._looked - self._start:.0f} s"
        for step, bar in self._bars.items():
            bar.value = self._facts.done[step]
            self._counts[step].value = f"{bar.value} of {bar.max} chunks"
        self._ranks.value = rank_table(ranks)
        self._logs.value = log_lines(ranks)


def view_of(facts: Facts, *, live: bool | None) -> LiveView | NoView:
    """Return the view of what begins: a real one in a notebook, unless ``live`` says otherwise."""
    return LiveView(facts) if (in_notebook() if live is None else live) else NoView()


@dataclass(frozen=True)
class Ended:
    """What stays of a run's view: its figures, its timeline, and the last of each rank."""

    run: Run

    def _repr_html_(self) -> str:
        parts = [_pairs(rows_of(self.run))] if self.run.summary else []
        picture = self._timeline()
        if picture is not None:
            parts.append(picture._repr_html_())
        parts.append(rank_table(LiveFacts(self.run.plan, self.run.run_dir).look()))
        return "".join(parts)

    def __repr__(self) -> str:
        if not self.run.summary:
            return f"the run in {self.run.run_dir} did not finish"
        return "\n".join(f"{name:10} {text}" for name, text in rows_of(self.run))

    def _timeline(self) -> Picture | None:
        from ppwork.plot import plot_timeline
        from ppwork.text_timeline import alt_text

        entries = {rank: self.run.entries(rank) for rank in range(self.run.plan.world_size)}
        with contextlib.suppress(PlanError):  # it ended before there was anything to draw
            return show(plot_timeline(entries, title=self.run.run_dir.name), alt=alt_text(entries))
        return None


def rank_table(ranks: list[RankNow]) -> str:
    """Return one line of state for each rank, as HTML."""
    rows = [
        (str(now.rank), now.role, (now.state, STATE_COLOURS.get(now.state, "")), now.doing) for now in ranks
    ]
    return html_table(("rank", "role", "state", "in"), rows, APART)


def log_lines(ranks: list[RankNow]) -> str:
    """Return the last lines of each rank's log, as HTML; nothing while there are none."""
    lines = [f"rank {now.rank}: {html.escape(line[:160])}" for now in ranks for line in now.log]
    return f"<pre>{chr(10).join(lines)}</pre>" if lines else ""


def _pairs(rows: list[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{lines}</table>"


def _close(widget: Any) -> None:  # noqa: ANN401  ipywidgets has no types
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()
