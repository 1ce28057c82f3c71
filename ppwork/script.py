"""A program of one's own on N ranks of this machine: started by torchrun, watched, cleaned up, explained.

The program is plain ``torch.distributed``. It is found by its file, because ranks are processes of their own:
what a cell defines is not there for them.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from ppwork.checks import new_run_dir
from ppwork.errors import PlanError, RunFailed
from ppwork.exit_codes import PAST_LIMIT, STOPPED
from ppwork.live import StopAsked, view_of
from ppwork.live_facts import RankNow
from ppwork.logs_diagnosis import diagnose_job
from ppwork.processes import registry
from ppwork.run import TORCHRUN_LOG
from ppwork.tail import last_lines
from ppwork.torchrun import torchrun
from ppwork.torchrun_logs import read_job

LIMIT_S = 120.0
LINES = 40
"""Of each rank's output at the end; all of it is in the run folder."""


@dataclass(frozen=True)
class ScriptRun:
    """One finished program.

    Attributes:
        run_dir: Its folder.
        nproc: Ranks.
        exit_code: torchrun's; 0 is well.
        failure: What went wrong first, or ``None``.
    """

    run_dir: Path
    nproc: int
    exit_code: int
    failure: RunFailed | None = None

    def printed(self, rank: int) -> str:
        """Return what a rank printed to its standard output."""
        path = rank_log(self.run_dir, rank, "stdout")
        return path.read_text(errors="replace") if path is not None else ""

    def __repr__(self) -> str:
        lines = [
            f"rank {rank}: {line}"
            for rank in range(self.nproc)
            for line in self.printed(rank).splitlines()[-LINES:]
        ]
        return "\n".join(lines) or f"ScriptRun({str(self.run_dir)!r}, exit_code={self.exit_code})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


class ScriptFacts:
    """What can be seen of a program while it goes: the ends of its ranks' output."""

    def __init__(self, run_dir: Path, nproc: int) -> None:
        self._run_dir, self._nproc = run_dir, nproc
        self.name, self.total = run_dir.name, 0
        self.done: dict[str, int] = {}

    def look(self) -> list[RankNow]:
        """Return every rank as it is now."""
        return [self._rank(rank) for rank in range(self._nproc)]

    def _rank(self, rank: int) -> RankNow:
        paths = [rank_log(self._run_dir, rank, stream) for stream in ("stdout", "stderr")]
        log = [line for path in paths if path is not None for line in last_lines(path, 2)]
        return RankNow(rank, "", "started" if any(paths) else "not started", "", tuple(log))


def rank_log(run_dir: Path, rank: int, stream: str) -> Path | None:
    """Return the file of a rank's ``stdout`` or ``stderr``; ``None`` while there is none."""
    return next(iter(run_dir.glob(f"*/attempt_0/{rank}/{stream}.log")), None)


def launch_script(
    script: Path | str,
    *,
    nproc: int,
    arguments: tuple[str, ...] = (),
    out: Path | str | None = None,
    check: bool = True,
    limit_s: float = LIMIT_S,
    live: bool | None = None,
) -> ScriptRun:
    """Run a program on ``nproc`` ranks of this machine and wait for the end.

    Args:
        script: A Python file that calls ``torch.distributed`` as it would under torchrun.
        nproc: Number of ranks.
        arguments: The program's own.
        out: Run folder, new or empty; ``None`` makes one under ``runs/``.
        check: Raise if the program fails; else the failure is in ``ScriptRun.failure``.
        limit_s: Hard limit on the whole program, in seconds.
        live: Show it in the cell while it goes; ``None``: in a notebook, unless told to be quiet.

    Returns:
        The finished program, which shows what its ranks printed, in the order of the ranks.

    Raises:
        PlanError: There is no such file, or ``nproc`` is not positive; nothing was started.
        RunFailed: A rank failed, or the program was stopped (only with ``check``); says the cause first.
        KeyboardInterrupt: As pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    path = Path(script)
    if not path.is_file():
        raise PlanError(f"There is no program {path}.", check_first=f"is it in {Path.cwd()}?")
    if nproc < 1:
        raise PlanError(f"A program was to run on {nproc} ranks.", check_first="nproc: one or more")
    registry()
    run_dir = new_run_dir(Path(out) if out is not None else None)
    view = view_of(ScriptFacts(run_dir, nproc), live=live)
    code = STOPPED
    try:
        code = torchrun(
            ["--log-dir", str(run_dir), "--redirects", "3", "-m", "ppwork", "rank", str(path), *arguments],
            ranks=nproc,
            log=run_dir / TORCHRUN_LOG,
            limit_s=limit_s,
            watch=view.look,
        )
    except StopAsked:
        pass
    finally:
        finished = ScriptRun(run_dir, nproc, code, _failure(run_dir, code))
        view.end(finished)
    if finished.failure is not None and check:
        raise finished.failure
    return finished


def _failure(run_dir: Path, code: int) -> RunFailed | None:
    if code == 0:
        return None
    if code == STOPPED:
        return RunFailed(f"The program was stopped; no rank is left.\n  folder: {run_dir}")
    try:
        failure = diagnose_job(read_job(run_dir)).failed()
    except PlanError:  # it was over before a rank had a log
        log = run_dir / TORCHRUN_LOG
        return RunFailed(f"torchrun ended with code {code}, and no rank left a log.\n  log: {log}")
    if code != PAST_LIMIT:
        return failure
    return failure.below("The program passed its limit and was stopped.")
