"""A run in a notebook cell while it goes: progress, what the ranks did last as moving lanes, a Stop button.

What is shown is read from the files that the ranks write anyway; nothing is asked of them, so that a look
costs them nothing. All of it is the value of a widget, set from the cell's own thread: no output is captured
or cleared. When the run has ended a table and a timeline take the widgets' place, so that the page still
teaches when it is opened without a kernel. Outside a notebook, and where ``PPWORK_NONINTERACTIVE`` is set,
nothing is shown.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ppwork.errors import PlanError
from ppwork.lab.run import Run
from ppwork.launcher.launch import DEFAULT_LIMIT_S, Progress
from ppwork.launcher.launch import launch as launch_plan
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.script import LIMIT_S, ScriptRun, rank_log
from ppwork.launcher.script import launch_script as launch_program
from ppwork.launcher.view import NoView, StopAsked, View
from ppwork.pictures.lanes import Bar, moving_lanes
from ppwork.pictures.programs import program
from ppwork.pictures.style import STATE_COLOURS, call_colour, chunk_style
from ppwork.pictures.tables import APART, Table
from ppwork.pictures.timelines import timeline
from ppwork.plan import Plan
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records import run as records
from ppwork.records.calls import Call
from ppwork.records.clocks import CLOCK, HOST, clock_offsets
from ppwork.records.hosts import HostsRecord
from ppwork.records.pulse import PulseState, read_pulse
from ppwork.records.run import log_file, rows_of
from ppwork.records.spans import Instant, Span, span_file
from ppwork.records.tail import CallTail, SpanTail, last_lines
from ppwork.timeline.chunks import WORK

QUIET_VARIABLE = "PPWORK_NONINTERACTIVE"
EVERY_S = 0.25
"""A rank's pulse is as coarse."""
SPANS = 40
"""Of each rank, for the moving lanes."""
LOG_LINES = 2
"""Of each rank; all of it is in the run folder."""
STEPS = {
    ("encode", STAGE0_RANK): "stage 0, encode",
    ("generate", LEADER_RANK): "stage 1, generate",
    ("decode", STAGE0_RANK): "stage 0, decode",
}
"""Titles of what a chunk goes through, by the spans that say that it has, and their rank."""


@dataclass(frozen=True)
class RankState:
    """One rank at one moment.

    Attributes:
        state: A ``PulseState``, ``not started``, or ``gone``: its process is, and it did not say so.
        doing: The step of the stage it is in and its chunk, or nothing.
        log: The last lines of its log.
    """

    rank: int
    role: str
    state: str
    doing: str
    log: tuple[str, ...]


class Facts(Protocol):
    """Facts that a view can show: of a run, or of a program of one's own."""

    name: str
    total: int
    done: dict[str, int]
    """Number out of ``total`` that have passed each step, by its title; empty: there is nothing to count."""
    bars: list[Bar]
    """What the ranks did last, as of the last look,"""
    now_ns: int
    """and its moment, by the clock of their times."""

    def look(self) -> list[RankState]:
        """Read what is new, and return every rank as it is now."""
        ...


def in_notebook() -> bool:
    """Say whether a live view can be shown here: in a kernel with ipywidgets, and not asked to be quiet."""
    if os.environ.get(QUIET_VARIABLE) or "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


class LiveView:
    """The view of one run; made, looked after and ended by the thread of the cell.

    The button's message comes while that thread is busy. JupyterLab hands it to the kernel in a thread of its
    own (a subshell); a front end that does not has the kernel's interrupt button for it.

    Args:
        facts: Where to look.
        drawn: Draw the calls of a program when it has ended.
    """

    def __init__(self, facts: Facts, *, drawn: bool = True) -> None:
        import ipywidgets as widgets
        from IPython.display import display

        self._facts, self._start, self._drawn = facts, time.monotonic(), drawn
        self._looked = 0.0
        self._stop = threading.Event()
        self._head, self._lanes, self._ranks, self._logs = (widgets.HTML() for _ in range(4))
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
            [widgets.HBox([button, self._head]), *bars, self._lanes, self._ranks, self._logs],
            _dom_classes=["ppwork-live"],
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

    def end(self, finished: object) -> None:
        """Put what stays in the place of the widgets: of a run ``Ended``, of a program its calls as well."""
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


def launch(
    plan: Plan,
    *,
    out: Path | str | None = None,
    check: bool = True,
    started: Callable[[Plan, Path], None] | None = None,
    progress: Progress | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    live: bool | None = None,
    on: Places | None = None,
) -> Run:
    """Run a plan on ``plan.world_size`` processes of this machine, or of others, in view of the cell.

    With ``on=pp.Hosts("gpu-a", "gpu-b")`` the ranks are on other hosts; docs/machines.md has what that needs.

    The arguments are those of ``launcher.launch.launch``, with ``live`` in place of ``view``: show the run in
    the cell while it goes, with a Stop button; ``None``: in a notebook, unless ``PPWORK_NONINTERACTIVE`` is
    set.

    Returns:
        The finished run; its summary, logs and spans are in ``run_dir``.

    Raises:
        PlanError: The input cannot work; no rank was started and nothing overwritten.
        RunFailed: A rank failed, or the Stop button was pressed (only with ``check``).
        KeyboardInterrupt: As pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """

    def view(resolved: Plan, run_dir: Path) -> View:
        return view_of(RunProgress(resolved, run_dir), live=live)

    run = launch_plan(
        plan, out=out, check=check, started=started, progress=progress, limit_s=limit_s, view=view, on=on
    )
    return Run(run.run_dir, run.exit_code, run.failure)


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
    """Run a program in plain ``torch.distributed`` on ``nproc`` ranks of this machine, or of others, in view.

    The arguments are those of ``launcher.script.launch_script``; ``live`` is that of ``launch``, and
    ``picture=False`` leaves the picture of the calls out; with ``record=False`` no calls are recorded.

    Returns:
        The finished program, which shows what its ranks printed, in the order of the ranks, and in a notebook
        the picture of their calls.

    Raises:
        PlanError: There is no such file, or ``nproc`` is not positive; nothing was started.
        RunFailed: A rank failed, or the program was stopped (only with ``check``).
        KeyboardInterrupt: As pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    picture = picture and record

    def view(run_dir: Path, ranks: int) -> View:
        return view_of(ScriptProgress(run_dir, ranks), live=live, drawn=picture)

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
    )
    shown = in_notebook() if live is None else live
    return ShownRun.of(run, drawn=picture, cell=_cell() if shown else None)


@dataclass(frozen=True, repr=False)
class ShownRun(ScriptRun):
    """A finished program as a notebook shows it.

    Attributes:
        drawn: Whether the calls of torch.distributed that its ranks made are shown, too.
        cell: Number of the cell in which a live view has shown it; as its value it is not shown again.
    """

    drawn: bool = True
    cell: int | None = None

    @classmethod
    def of(cls, run: ScriptRun, *, drawn: bool, cell: int | None = None) -> ShownRun:
        """Return a finished program as it is to be shown."""
        return cls(run.run_dir, run.exit_code, run.failure, nproc=run.nproc, drawn=drawn, cell=cell)

    def _ipython_display_(self) -> None:
        if self.cell is None or self.cell != _cell():
            raise NotImplementedError  # so IPython is told to show it as everything else

    def _repr_html_(self) -> str:
        if self.drawn:
            with contextlib.suppress(PlanError):  # it made none
                return super()._repr_html_() + program(self)._repr_html_()
        return super()._repr_html_()


def _cell() -> int | None:
    """Return the number of the cell that runs; ``None`` outside IPython."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "execution_count", None)


def _shown_at_the_end(finished: object, *, drawn: bool) -> object:
    if isinstance(finished, records.Run):
        return Ended(finished)
    return ShownRun.of(finished, drawn=drawn) if isinstance(finished, ScriptRun) else finished


def view_of(facts: Facts, *, live: bool | None, drawn: bool = True) -> View:
    """Return the view of what begins: a real one in a notebook, unless ``live`` says otherwise."""
    return LiveView(facts, drawn=drawn) if (in_notebook() if live is None else live) else NoView()


@dataclass(frozen=True)
class Ended:
    """Rest of a run's view: its figures, its timeline, and the last of each rank."""

    run: records.Run

    def _repr_html_(self) -> str:
        parts = [Table((), rows_of(self.run)).html()] if self.run.summary else []
        with contextlib.suppress(PlanError):  # it ended before there was anything to draw
            parts.append(timeline(self.run, title=self.run.run_dir.name)._repr_html_())
        parts.append(rank_table(RunProgress(self.run.plan, self.run.run_dir).look()))
        return "".join(parts)

    def __repr__(self) -> str:
        if not self.run.summary:
            return f"the run in {self.run.run_dir} did not finish"
        return str(Table((), rows_of(self.run)))


def rank_table(ranks: list[RankState]) -> str:
    """Return one line of state for each rank, as HTML."""
    rows = [(str(r.rank), r.role, (r.state, STATE_COLOURS.get(r.state, "")), r.doing) for r in ranks]
    return Table(("rank", "role", "state", "in"), rows).html(APART)


def log_lines(ranks: list[RankState]) -> str:
    """Return the last lines of each rank's log, as HTML; nothing while there are none."""
    lines = [f"rank {rank.rank}: {html.escape(line[:160])}" for rank in ranks for line in rank.log]
    return f"<pre>{chr(10).join(lines)}</pre>" if lines else ""


def _close(widget: Any) -> None:  # noqa: ANN401  ipywidgets has no types
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()


class RunProgress(Facts):
    """Follows the files of one run.

    Args:
        plan: The resolved plan.
        run_dir: The run's folder.
    """

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan, self._run_dir = plan, run_dir
        self._tails = {rank: SpanTail(span_file(run_dir, rank)) for rank in range(plan.world_size)}
        self._spans: dict[int, deque[Span]] = {rank: deque(maxlen=SPANS) for rank in self._tails}
        self.bars: list[Bar] = []
        self.name, self.total = run_dir.name, plan.chunks or 0
        self.done = dict.fromkeys(STEPS.values(), 0)
        self._clocks: dict[int, list[Instant]] = {rank: [] for rank in self._tails}
        self._ahead: dict[int, int] | None = None

    def look(self) -> list[RankState]:
        """Read what is new, count chunks into ``done``, and return every rank as it is now."""
        for rank, tail in self._tails.items():
            for entry in tail.read():
                if title := STEPS.get((entry.name, rank)):
                    self.done[title] = max(self.done[title], entry.chunk_index + 1)
                if isinstance(entry, Span) and entry.name in WORK and entry.chunk_index >= 0:
                    self._spans[rank].append(entry)
                elif isinstance(entry, Instant) and entry.name.startswith((CLOCK, HOST)):
                    self._clocks[rank].append(entry)
        ahead, self.now_ns = self._ahead_of_us(), time.monotonic_ns()
        self.bars = [_bar(rank, s, ahead.get(rank, 0)) for rank, spans in self._spans.items() for s in spans]
        return [self._rank(rank) for rank in range(self._plan.world_size)]

    def _ahead_of_us(self) -> dict[int, int]:
        """Return how far each rank's clock is ahead: by the beats, and finer where the ranks have met."""
        if self._ahead is None and (hosts := HostsRecord.load(self._run_dir)) is not None:
            self._ahead = hosts.ahead_of_us()
        if not self._ahead or STAGE0_RANK not in self._ahead:
            return self._ahead or {}
        rank0 = self._ahead[STAGE0_RANK]
        met = clock_offsets({rank: said for rank, said in self._clocks.items() if said})
        return self._ahead | {rank: rank0 + offset for rank, offset in met.items()}

    def _rank(self, rank: int) -> RankState:
        role = self._plan.topology.role(rank).value
        log = tuple(last_lines(log_file(self._run_dir, rank), LOG_LINES))
        pulse = read_pulse(self._run_dir, rank)
        if pulse is None:
            return RankState(rank, role, "not started", "", log)
        doing, chunk = pulse.doing, pulse.ids.get("chunk_index", -1)
        newest = self._spans[rank][-1] if self._spans[rank] else None
        if doing and newest is not None and newest.chunk_index > chunk >= 0:
            # A pulse beats a few times a second: what the rank has written meanwhile is newer.
            doing, chunk = newest.name, newest.chunk_index
        elif doing and pulse.here and pulse.since_ns and chunk >= 0:
            self.bars.append(Bar(rank, pulse.since_ns, None, f"{doing} {chunk}", chunk_style(chunk)[0]))
        if doing and "chunk_index" in pulse.ids:
            doing += f", chunk {chunk}"
        if pulse.state is PulseState.LEFT:
            doing = f"code {pulse.exit_code}"
        elif pulse.here and pulse.process() is None:
            return RankState(rank, role, "gone", f"was in {doing}" if doing else "", log)
        elif pulse.state in (PulseState.SLOW, PulseState.STUCK) and pulse.here:
            doing += f", for {(time.monotonic_ns() - pulse.since_ns) / 1e9:.0f} s"
        return RankState(rank, role, pulse.state.value, doing, log)


def _bar(rank: int, span: Span, ahead_ns: int) -> Bar:
    colour, _ = chunk_style(span.chunk_index)
    return Bar(
        rank, span.start_ns - ahead_ns, span.end_ns - ahead_ns, f"{span.name} {span.chunk_index}", colour
    )


def _bar_of_call(rank: int, call: Call, ahead_ns: int) -> Bar:
    end_ns = None if call.end_ns is None else call.end_ns - ahead_ns
    return Bar(rank, call.start_ns - ahead_ns, end_ns, call.name, call_colour(call.name))


class ScriptProgress(Facts):
    """Follows a program: the ends of its ranks' output, and the calls that they make."""

    def __init__(self, run_dir: Path, nproc: int) -> None:
        self._run_dir, self._nproc = run_dir, nproc
        self._tails = {rank: CallTail(run_dir, rank) for rank in range(nproc)}
        self._ahead: dict[int, int] | None = None
        self.bars: list[Bar] = []
        self.name, self.total = run_dir.name, 0
        self.done: dict[str, int] = {}

    def look(self) -> list[RankState]:
        """Return every rank as it is now."""
        calls, self.now_ns = {rank: tail.read() for rank, tail in self._tails.items()}, time.monotonic_ns()
        if self._ahead is None and (hosts := HostsRecord.load(self._run_dir)) is not None:
            self._ahead = hosts.ahead_of_us()
        self.bars = [
            _bar_of_call(rank, call, (self._ahead or {}).get(rank, 0))
            for rank, of_rank in calls.items()
            for call in of_rank
        ]
        return [self._rank(rank, calls[rank]) for rank in range(self._nproc)]

    def _rank(self, rank: int, calls: list[Call]) -> RankState:
        paths = [rank_log(self._run_dir, rank, stream) for stream in ("stdout", "stderr")]
        log = [line for path in paths if path is not None for line in last_lines(path, LOG_LINES)]
        stands = next((call for call in reversed(calls) if call.end_ns is None), None)
        doing = f"{stands.text} ({stands.line})" if stands is not None else ""
        return RankState(rank, "", "started" if any(paths) else "not started", doing, tuple(log))
