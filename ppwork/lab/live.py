"""The live view of a run in a notebook cell: progress, the ranks' steps as moving lanes, a Stop button.

The view reads files that the ranks write anyway, so it costs the ranks nothing. Everything shown is the value
of a widget, set from the cell's own thread: no output is captured or cleared. When the run has ended, a table
and a timeline replace the widgets, so that the page is still useful when it is opened without a kernel.
If ``PPWORK_NONINTERACTIVE`` is set, nothing is shown; outside a notebook only that a program stands still.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ppwork.errors import PlanError, UnreadableError
from ppwork.lab.progress import Facts, RankState, RunProgress, ScriptProgress
from ppwork.lab.run import Run
from ppwork.launcher.launch import DEFAULT_LIMIT_S, Progress
from ppwork.launcher.launch import launch as launch_plan
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.script import LIMIT_S, ScriptRun
from ppwork.launcher.script import launch_script as launch_program
from ppwork.launcher.standstill import SaysStandstill
from ppwork.launcher.view import QUIET_VARIABLE, NoView, StopAsked, View
from ppwork.pictures.lanes import moving_lanes
from ppwork.pictures.picture import Picture
from ppwork.pictures.programs import program
from ppwork.pictures.run_table import table_of
from ppwork.pictures.style import STATE_COLOURS
from ppwork.pictures.tables import APART, Table
from ppwork.pictures.timelines import timeline
from ppwork.plan import Plan
from ppwork.records import run as records
from ppwork.timeline.chunks import CHUNKS_SHOWN, aligned, spans_by_chunk

EVERY_S = 0.25
"""A rank's pulse is no finer."""


def in_notebook() -> bool:
    """Say whether a live view can be shown: in a kernel with ipywidgets, unless the user turned it off."""
    if os.environ.get(QUIET_VARIABLE) or "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


class LiveView:
    """The view of one run; the cell's thread creates, updates and ends it.

    The button's message arrives while that thread is busy. JupyterLab delivers it to the kernel in a separate
    thread (a subshell). In a front end without subshells, use the kernel's interrupt button.

    Args:
        facts: Where to read the state of the run.
        drawn: Draw the calls of a program when it has ended.
    """

    def __init__(self, facts: Facts, *, drawn: bool = True) -> None:
        import ipywidgets as widgets
        from IPython.display import display

        self._facts, self._start, self._drawn = facts, time.monotonic(), drawn
        self._looked = 0.0
        self._stop = threading.Event()
        self._head, self._notice, self._lanes, self._ranks, self._logs = (widgets.HTML() for _ in range(5))
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
            [widgets.HBox([button, self._head]), self._notice, *bars, self._lanes, self._ranks, self._logs],
            _dom_classes=["ppwork-live"],
        )
        self._said = ""
        self._shown = display(self._box, display_id=True)
        self._show()
        # ipykernel 7.4 sends a widget's messages to the thread that last published it: the cell's, which is
        # busy until the run has ended. Without this mark they go where the front end sends them.
        with contextlib.suppress(AttributeError):
            del button.comm._reply_subshell_id

    def look(self) -> None:
        """Update the view, a few times a second.

        Raises:
            StopAsked: The button was pressed.
        """
        if self._stop.is_set():
            raise StopAsked
        if time.monotonic() - self._looked >= EVERY_S:
            self._show()

    def end(self, finished: object) -> None:
        """Put what stays in place of the widgets: for a run ``EndedView``, for a program also its calls."""
        self._shown.update(_shown_at_the_end(finished, drawn=self._drawn))
        _close(self._box)

    def _show(self) -> None:
        ranks = self._facts.look()
        self._looked = time.monotonic()
        self._head.value = f"{html.escape(self._facts.name)}, {self._looked - self._start:.0f} s"
        for step, bar in self._bars.items():
            if not self._facts.total:  # the source says when it has ended: nothing says how far it is
                bar.max = max(bar.max, self._facts.done[step])
            bar.value = self._facts.done[step]
            total = f" of {bar.max}" if self._facts.total else ""
            self._counts[step].value = f"{bar.value}{total} chunks"
        self._lanes.value = moving_lanes(self._facts.bars, len(ranks), self._facts.now_ns)
        self._ranks.value = rank_table(ranks)
        self._logs.value = log_lines(ranks)
        if (notice := self._facts.notice) != self._said:
            self._said = notice
            self._notice.value = f"<pre>{html.escape(notice)}</pre>" if notice else ""
            # A front end that has no widgets shows the text in their place.
            self._shown.update({**self._box._repr_mimebundle_(), "text/plain": notice}, raw=True)


def launch(
    plan: Plan,
    out: Path | str | None = None,
    *,
    check: bool = True,
    started: Callable[[Plan, Path], None] | None = None,
    progress: Progress | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    live: bool | None = None,
    on: Places | None = None,
) -> Run:
    """Run a plan on ``plan.world_size`` processes of this or other machines, with a live view.

    With ``on=pp.Hosts("gpu-a", "gpu-b")`` the ranks are on other hosts; docs/machines.md has what that needs.

    The arguments are those of ``launcher.launch.launch``, with ``live`` in place of ``view``: show the run in
    the cell while it goes, with a Stop button; ``None``: in a notebook, unless ``PPWORK_NONINTERACTIVE`` is
    set.

    Returns:
        The finished run; its summary, logs and spans are in ``run_dir``.

    Raises:
        PlanError: The input cannot work; no rank was started and nothing overwritten.
        RunFailed: A rank failed, or the Stop button was pressed (only with ``check``).
        KeyboardInterrupt: Ctrl-C was pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """

    def view(resolved: Plan, run_dir: Path) -> View:
        queue.close()
        return view_of(RunProgress(resolved, run_dir), live=live)

    with contextlib.closing(InQueue(live=live)) as queue:
        run = launch_plan(
            plan,
            out=out,
            check=check,
            started=started,
            progress=progress,
            limit_s=limit_s,
            view=view,
            on=on,
            queued=queue.say,
        )
    return Run.of(run)


def launch_script(
    script: Path | str,
    *,
    nproc: int,
    arguments: tuple[str, ...] = (),
    out: Path | str | None = None,
    check: bool = True,
    limit_s: float = LIMIT_S,
    ops: bool = False,
    live: bool | None = None,
    picture: bool = True,
    on: Places | None = None,
    record: bool = True,
) -> ScriptRun:
    """Run a plain ``torch.distributed`` program on ``nproc`` ranks, here or on other hosts, in a live view.

    The arguments are those of ``launcher.script.launch_script``; ``live`` is that of ``launch``, and
    ``picture=False`` leaves the picture of the calls out; with ``record=False`` no calls are recorded.
    If no rank prints or calls anything for 15 s, the view says where each stands; outside a notebook standard
    error does.

    Returns:
        The finished program, which shows what its ranks printed, in the order of the ranks, and in a notebook
        the picture of their calls.

    Raises:
        PlanError: There is no such file, or ``nproc`` is not positive; nothing was started.
        RunFailed: A rank failed, or the program was stopped (only with ``check``).
        KeyboardInterrupt: Ctrl-C was pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    picture = picture and record

    def view(run_dir: Path, ranks: int) -> View:
        queue.close()
        if live is None and not in_notebook():
            return SaysStandstill(run_dir, limit_s)
        return view_of(ScriptProgress(run_dir, ranks, limit_s), live=live, drawn=picture)

    with contextlib.closing(InQueue(live=live)) as queue:
        run = launch_program(
            script,
            nproc=nproc,
            arguments=arguments,
            out=out,
            check=check,
            limit_s=limit_s,
            ops=ops,
            record=record,
            view=view,
            on=on,
            queued=queue.say,
        )
    shown = in_notebook() if live is None else live
    return ShownRun.of(run, drawn=picture, cell=_cell() if shown else None)


@dataclass(frozen=True, repr=False)
class ShownRun(ScriptRun):
    """A finished program as a notebook shows it.

    Attributes:
        drawn: Whether the ranks' calls of torch.distributed are shown, too.
        cell: Number of the cell whose live view has shown the program; that cell does not show it again.
    """

    drawn: bool = True
    cell: int | None = None

    @classmethod
    def of(cls, run: ScriptRun, *, drawn: bool, cell: int | None = None) -> ShownRun:
        """Return a finished program in the form in which a notebook shows it."""
        return cls(run.run_dir, run.exit_code, run.failure, nproc=run.nproc, drawn=drawn, cell=cell)

    def _ipython_display_(self) -> None:
        if self.cell is None or self.cell != _cell():
            raise NotImplementedError  # so IPython is told to show it as everything else

    def _repr_html_(self) -> str:
        if self.drawn:
            with contextlib.suppress(PlanError, UnreadableError):  # it made none, or they do not read
                return super()._repr_html_() + program(self)._repr_html_()
        return super()._repr_html_()


def _cell() -> int | None:
    """Return the number of the cell that runs; ``None`` outside IPython."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "execution_count", None)


def _shown_at_the_end(finished: object, *, drawn: bool) -> object:
    if isinstance(finished, records.Run):
        return EndedView(finished)
    return ShownRun.of(finished, drawn=drawn) if isinstance(finished, ScriptRun) else finished


def view_of(facts: Facts, *, live: bool | None, drawn: bool = True) -> View:
    """Return a view for a run that begins: a real one in a notebook, unless ``live`` says otherwise."""
    return LiveView(facts, drawn=drawn) if (in_notebook() if live is None else live) else NoView()


class InQueue(Facts):
    """A run that waits for its hosts, shown in the cell until the run has its own view.

    Args:
        live: As of ``launch``.
    """

    total = 0

    def __init__(self, *, live: bool | None) -> None:
        self.name, self.done, self.bars, self.now_ns = "", {}, [], 0
        self._live, self._since_s = live, 0.0
        self._view: View | None = None

    def say(self, words: str) -> None:
        """Show the queue's message.

        Raises:
            StopAsked: The button was pressed.
        """
        self.name = words
        if self._view is None:
            self._view, self._since_s = view_of(self, live=self._live), time.monotonic()
        self._view.look()

    def look(self) -> list[RankState]:
        """Return no ranks: there are none yet."""
        return []

    def close(self) -> None:
        """Replace the view by a sentence, if there was one."""
        if self._view is not None:
            waited_s = time.monotonic() - self._since_s
            self._view.end(Sentence(f"{self.name.partition(':')[0]} waited {waited_s:.0f} s in the queue"))
            self._view = None


class Sentence(str):
    """A text that a cell shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class EndedView:
    """Rest of a run's view: its figures, its timeline, and the last of each rank."""

    run: records.Run

    def _repr_html_(self) -> str:
        parts = [table_of(self.run).html()] if self.run.summary else []
        with contextlib.suppress(PlanError):  # it ended before there was anything to draw
            parts.append(last_timeline(self.run)._repr_html_())
        parts.append(rank_table(RunProgress(self.run.plan, self.run.run_dir, over=True).look()))
        return "".join(parts)

    def __repr__(self) -> str:
        if not self.run.summary:
            return f"the run in {self.run.run_dir} did not finish"
        return str(table_of(self.run))


def last_timeline(run: records.Run) -> Picture:
    """Draw an ordinary stretch of a run; of one that failed its last chunks, with the end of each rank.

    Raises:
        PlanError: There is nothing to draw.
    """
    whole = timeline(run, title=run.run_dir.name)
    if run.failure is None:
        return whole
    chunks = list(spans_by_chunk(aligned(run.entries_by_rank)))[-CHUNKS_SHOWN:]
    end = timeline(run, title=run.run_dir.name, first_chunk=chunks[0], last_chunk=chunks[-1])
    return Picture(whole.finding, end.draw, end.table)


def rank_table(ranks: list[RankState]) -> str:
    """Return one line of state for each rank, as HTML."""
    rows = [(str(r.rank), r.role, (r.state, STATE_COLOURS.get(r.state, "")), r.doing) for r in ranks]
    return Table(("rank", "role", "state", "in"), rows).html(APART)


def log_lines(ranks: list[RankState]) -> str:
    """Return the last lines of each rank's log, as HTML; empty while there are none."""
    lines = [f"rank {rank.rank}: {html.escape(line[:160])}" for rank in ranks for line in rank.log]
    return f"<pre>{chr(10).join(lines)}</pre>" if lines else ""


def _close(widget: Any) -> None:  # noqa: ANN401  ipywidgets has no types
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()
