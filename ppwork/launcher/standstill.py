"""A program whose ranks have done nothing for a while: where they stand, and when it will be stopped.

The launcher's limit ends a program that hangs, and may be minutes away. Whoever waits for it should know
before that that nothing moves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from ppwork.diagnosis.program_waits import program_waits
from ppwork.errors import UnreadableError, visible
from ppwork.launcher.view import QUIET_VARIABLE, NoView
from ppwork.records.calls import read_calls
from ppwork.timeline.meetings import Meetings

STILL_S = 15.0
"""Seconds without a call and a printed line after which this is said; a start takes less."""
EVERY_S = 0.5
"""Seconds between two looks at the files of the ranks."""
WRITTEN = ("calls-rank*.jsonl", "stdout.log", "stderr.log")
"""What ranks write as they go on, in the run's folder or in a folder of a host in it."""


class Standstill:
    """Looks whether ranks still print and call; costs the ranks nothing.

    Args:
        run_dir: Folder of the running program.
        limit_s: Its limit, which the notice names.
    """

    def __init__(self, run_dir: Path, limit_s: float) -> None:
        self._run_dir, self._limit_s = run_dir, limit_s
        self._written: dict[Path, int] = {}
        self._moved_s = time.monotonic()
        self._looked_s, self._notice = 0.0, ""

    def look(self) -> str:
        """Return the notice while no rank has done anything for ``STILL_S``; empty otherwise."""
        now = time.monotonic()
        if now - self._looked_s < EVERY_S:
            return self._notice
        self._looked_s = now
        if (written := self._times()) != self._written:
            self._written, self._moved_s, self._notice = written, now, ""
        elif not self._notice and now - self._moved_s >= STILL_S:
            self._notice = self._said()
        return self._notice

    def _times(self) -> dict[Path, int]:
        times = {}
        for path in (path for name in WRITTEN for path in self._run_dir.rglob(name)):
            with contextlib.suppress(OSError):  # somebody has removed the folder meanwhile
                times[path] = path.stat().st_mtime_ns
        return times

    def _said(self) -> str:
        end = None
        with contextlib.suppress(UnreadableError):
            ranks = read_calls(self._run_dir)
            end = program_waits(Meetings(ranks)) if ranks else None
        called = " or made a call" if end is not None else ""
        # What does not fit yet may still come: only where the ranks stand is certain before the end.
        waits = [f"  {wait}" for wait in end.waits] if end is not None else []
        return "\n".join([
            f"No rank has printed anything{called} for {STILL_S:g} s.",
            *waits,
            f"The program will be stopped {self._limit_s:g} s after its start. For another limit: "
            "`--limit SECONDS`, in Python `limit_s=`.",
        ])  # fmt: skip


class SaysStandstill(NoView):
    """Says it on the console, once for each standstill, unless ``PPWORK_NONINTERACTIVE`` is set.

    Args:
        run_dir: Folder of the running program.
        limit_s: Its limit.
    """

    def __init__(self, run_dir: Path, limit_s: float) -> None:
        self._standstill, self._said = Standstill(run_dir, limit_s), ""

    def look(self) -> None:
        """Look, and say what is new."""
        notice = self._standstill.look()
        if notice and notice != self._said and not os.environ.get(QUIET_VARIABLE):
            sys.stderr.write(f"{visible(notice)}\n")
        self._said = notice
