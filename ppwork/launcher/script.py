"""A program of one's own on N ranks of this machine: started by torchrun, watched, cleaned up, explained.

The program is plain ``torch.distributed``. It is found by its file, because ranks are processes of their own:
what a cell defines is not there for them.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.standing import standing
from ppwork.errors import PlanError, RunFailed
from ppwork.launcher.checks import new_run_dir
from ppwork.launcher.registry import registry
from ppwork.launcher.torchrun import torchrun
from ppwork.launcher.view import NoView, StopAsked, View
from ppwork.process import PAST_LIMIT, STOPPED
from ppwork.records.calls import read_calls
from ppwork.records.run import TORCHRUN_LOG, FinishedProgram
from ppwork.timeline.meetings import Meetings

LIMIT_S = 120.0
FROM_PLACES = ("CollectiveMismatch", "LeftEarly", "NeverCame", "OnlySymptoms", "Timeout", "Unmatched")
"""What the logs are read to say where nothing but the places of the ranks is known: their calls tell more."""
OF_SIZES = "SizeMismatch"
BOTH_SIDES = "which of the two calls above has the shape and dtype that is meant"
LINES = 40
"""Last lines of each rank's output that are shown; all of it is in the run folder."""


@dataclass(frozen=True, repr=False)
class ScriptRun(FinishedProgram):
    """One finished program of one's own.

    Attributes:
        nproc: Ranks.
    """

    nproc: int = field(kw_only=True)

    def printed(self, rank: int) -> str:
        """Return what a rank printed to its standard output."""
        path = rank_log(self.run_dir, rank, "stdout")
        return path.read_text(errors="replace") if path is not None else ""

    def __repr__(self) -> str:
        ends = {rank: self.printed(rank).splitlines()[-LINES:] for rank in range(self.nproc)}
        lines = [f"rank {rank}: {line}" for rank, end in ends.items() for line in end]
        nobody = "neither rank" if self.nproc == 2 else "no rank"
        return "\n".join(lines) or f"{nobody} printed anything; exit code {self.exit_code}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


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
    ops: bool = False,
    view: Callable[[Path, int], View] = NoView,
) -> ScriptRun:
    """Run a program on ``nproc`` ranks of this machine and wait for the end.

    Args:
        script: A Python file that calls ``torch.distributed`` as it would under torchrun.
        nproc: Number of ranks.
        arguments: The program's own.
        out: Run folder, new or empty; ``None`` makes one under ``runs/``.
        check: Raise if the program fails; else the failure is in ``ScriptRun.failure``.
        limit_s: Hard limit on the whole program, in seconds.
        ops: Record operators of torch, too: what DDP, compiled code and methods of ``ProcessGroup`` call.
        view: Makes what shows the program while it goes, of the run folder and the number of ranks.

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
    run_dir = new_run_dir(out)
    shown = view(run_dir, nproc)
    code = STOPPED
    try:
        program = [
            "-m",
            "ppwork",
            "rank-ops" if ops else "rank",
            str(run_dir.absolute()),
            str(path),
            *arguments,
        ]
        code = torchrun(
            ["--log-dir", str(run_dir), "--redirects", "3", *program],
            ranks=nproc,
            log=run_dir / TORCHRUN_LOG,
            limit_s=limit_s,
            watch=shown.look,
        )
    except StopAsked:
        pass
    finally:
        finished = ScriptRun(run_dir, code, _failure(run_dir, code), nproc=nproc)
        shown.end(finished)
    if finished.failure is not None and check:
        raise finished.failure
    return finished


def _failure(run_dir: Path, code: int) -> RunFailed | None:
    if code == 0:
        return None
    if code == STOPPED:
        return RunFailed(f"The program was stopped; no rank is left.\n  folder: {run_dir}")
    try:
        found = diagnose_job(read_job(run_dir))
        failure = found.as_error()
    except PlanError:  # it was over before a rank had a log
        log = run_dir / TORCHRUN_LOG
        return RunFailed(f"torchrun ended with code {code}, and no rank left a log.\n  log: {log}")
    end = None
    with contextlib.suppress(PlanError):  # the calls do not read
        end = standing(Meetings(read_calls(run_dir)))
    if code == PAST_LIMIT:
        lines = end.lines if end is not None else []
        return failure.below("\n  ".join(["The program passed its limit and was stopped.", *lines]))
    if end is not None and found.cause is not None and found.cause.error_type in FROM_PLACES:
        known = end.rank is not None and end.rank == found.cause.rank
        lines = [*(found.lines if known else ()), "\n  ".join([end.sentence, *map(str, end.waits)])]
        where = {} if end.rank is None else {"rank": end.rank}
        return RunFailed("\n".join(lines), where=where, check_first=end.check_first, headline=end.sentence)
    if end is not None and end.mismatches and found.cause is not None and found.cause.error_type == OF_SIZES:
        # gloo's words know the receiver alone; the calls have both sides, and no other run is needed.
        cause = msgspec.structs.replace(found.cause, check_first=BOTH_SIDES)
        failure = replace(found, cause=cause, unknown=()).as_error()
    what = "\n  ".join([failure.what, *(end.mismatches if end is not None else [])])
    return RunFailed(what, where=failure.where, check_first=failure.check_first, headline=failure.headline)
