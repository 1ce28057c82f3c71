"""A run on the terminal: a bar while it goes, a table of a few lines when it has ended.

Into a pipe or a file a bar cannot be drawn: there, lines say where the run's folder is and how far it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ppwork.launcher.launch import launch
from ppwork.launcher.nodes.places import Places
from ppwork.plan import Plan
from ppwork.protocol.bounds import Bounds
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.pulse import PulseState, nothing_to_encode, read_pulse
from ppwork.records.run import OPTIONS_UNASKED, REFERENCE_LOG, Run
from ppwork.records.spans import FIGURES, Entry, Instant
from ppwork.records.threads import dead_threads

if TYPE_CHECKING:
    from rich.console import Console

MOST_METRICS = 3
"""As many fit beside the bar."""
EVERY_S = 1.0
"""Between two looks at what a run goes on with."""
LINE_S = 10.0
"""Between two lines in place of the bar."""


class Shown:
    """A bar that shows chunk, period and the stage's metrics of a run; a context manager, and a view of it.

    Args:
        console: Where; if it is no terminal, there are lines, and the bar once, at the end.
        bar: Whether there is one at all; what ``say`` gets is printed all the same.
    """

    def __init__(self, console: Console, *, bar: bool = True) -> None:
        before = (TextColumn("{task.description}"), BarColumn(bar_width=24))
        after = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[figures]}"))
        self._progress = Progress(*before, *after, console=console, disable=not bar)
        self._task = self._progress.add_task("starting ranks", total=None, figures="")
        self._last_ns = 0
        self._in_lines = bar and not console.is_terminal
        self._warnings: Warnings | None = None
        self._run_dir: Path | None = None
        self._began_s = self._said_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress.live.is_started:  # one that was never shown would leave an empty line
            self._progress.stop()

    def begin(self, resolved: Plan, run_dir: Path | None = None) -> None:
        """Show the bar, and say what the run in this folder goes on with.

        Not before: bad input gets its one message and no bar.
        """
        self._progress.update(self._task, total=resolved.chunks, description="starting ranks")
        self._progress.start()
        self._began_s = self._said_s = time.monotonic()
        self._run_dir = run_dir
        if run_dir is not None:
            self._warnings = Warnings(resolved, run_dir, self.say)
            if self._in_lines:
                self.say(f"folder {run_dir}")

    def look(self) -> None:
        """Say what is new; in place of a bar, a line now and then."""
        if self._warnings is not None:
            self._warnings.look()
        is_over = self._run_dir is not None and (self._run_dir / REFERENCE_LOG).exists()
        if is_over:
            self._progress.update(self._task, description="verifying", figures="")
        now_s = time.monotonic()
        if not self._in_lines or now_s - self._said_s < LINE_S:
            return
        self._said_s, task = now_s, self._progress.tasks[0]
        of = "" if task.total is None else f" of {task.total:.0f}"
        doing = f"{task.completed:.0f}{of} chunks" if task.completed else task.description
        if is_over:
            doing += " came; one process computes them again, to verify them"
        self.say(", ".join(filter(None, [f"{now_s - self._began_s:.0f} s: {doing}", task.fields["figures"]])))

    def end(self, finished: object) -> None:
        """Show nothing more: the table comes."""

    def waits(self, words: str) -> None:
        """Say what the run waits for, until its first chunk comes."""
        if not self._last_ns:
            self._progress.update(self._task, description=words)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        """Take an entry of rank 0's spans."""
        if isinstance(entry, Instant) and entry.name == OPTIONS_UNASKED:
            self.say(f"before the first chunk: {entry.text}")
        if not isinstance(entry, Instant) or entry.name != "emit":
            return
        period = f"last period {(entry.at_ns - self._last_ns) / 1e6:.0f} ms" if self._last_ns else ""
        self._last_ns = entry.at_ns
        metrics = [f"{name} {value:.4g}" for name, value in entry.figures.items() if name not in FIGURES]
        figures = "  ".join([period, *metrics[:MOST_METRICS]])
        number = entry.chunk_index + 1
        self._progress.update(self._task, completed=number, description="chunks", figures=figures)


class Warnings:
    """Says on the console what a run goes on with: a thread that died, a source that has no chunk for long.

    Args:
        plan: Of the run.
        run_dir: Its folder.
        say: Takes each line, once.
    """

    def __init__(self, plan: Plan, run_dir: Path, say: Callable[[str], None]) -> None:
        self._ranks, self._stall_s = range(plan.world_size), Bounds.of(plan).stall_s
        self._run_dir, self._say = run_dir, say
        self._died, self._paused, self._looked_s = set[str](), False, 0.0
        self._slow_ns, self._slow_looks = -1, 0

    def look(self) -> None:
        """Look at what the ranks wrote down, once a second."""
        if (now := time.monotonic()) - self._looked_s < EVERY_S:
            return
        self._looked_s = now
        for rank in self._ranks:
            for line in (f"rank {rank}: {thread}" for thread in dead_threads(self._run_dir, rank)):
                if line not in self._died:
                    self._died.add(line)
                    self._say(f"{line}; the run goes on without it")
        pulse = read_pulse(self._run_dir, STAGE0_RANK)
        paused_s = pulse.paused_s if pulse is not None else 0.0
        paused, was_paused = paused_s > self._stall_s, self._paused
        self._paused = paused or (bool(paused_s) and was_paused)
        if paused and not was_paused:
            self._say(f"rank 0: {nothing_to_encode(paused_s)}: encode says NOT_YET")
        slow = pulse is not None and (pulse.doing, pulse.state) == ("encode", PulseState.SLOW)
        since_ns = pulse.since_ns if pulse is not None and slow else -1
        # At two looks: a pulse may have a step that has just begun beside the state of the one before it.
        self._slow_looks = self._slow_looks + 1 if slow and since_ns == self._slow_ns else 0
        self._slow_ns = since_ns
        if self._slow_looks == 1:
            over = f"after {self._stall_s:g} s it ends the run"
            self._say(f"rank 0: encode has not returned for {self._stall_s / 2:g} s; {over}")


def launch_on_terminal(
    plan: Plan,
    out_dir: Path | None,
    console: Console,
    limit_s: float,
    on: Places | None = None,
    *,
    bar: bool = True,
) -> Run:
    """Launch a plan, show it while it runs, and say what it goes on with; raises as ``launch``."""
    with Shown(console, bar=bar) as shown:

        def queued(words: str) -> None:
            shown.begin(plan)
            shown.waits(words)

        return launch(
            plan,
            out=out_dir,
            started=shown.begin,
            progress=shown.entry,
            limit_s=limit_s,
            on=on,
            queued=queued,
            view=lambda *_: shown,
        )
