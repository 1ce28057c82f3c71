"""Runs a user's own program on N ranks, here or on hosts: starts, watches, cleans up, explains failures.

The program is plain ``torch.distributed``. It must be a file, because ranks are separate processes: they do
not have what a notebook cell defines.
"""

from __future__ import annotations

import contextlib
import html
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import msgspec

from ppwork.diagnosis.findings import CUT_OFF, RANK_DIED, Diagnosis
from ppwork.diagnosis.job_evidence import JobEvidence
from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.program_waits import ProgramWaits, program_waits
from ppwork.diagnosis.recorded_calls import FROM_PLACES
from ppwork.errors import PlanError, RunFailed, UnreadableError
from ppwork.launcher.checks import check_limit
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.host_session import HostSession
from ppwork.launcher.nodes.node import FOLDER, LOGS
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.registry import registered, registry
from ppwork.launcher.torchrun import torchrun
from ppwork.launcher.view import NoView, Queued, StopAsked, View
from ppwork.process import HOST_LOST, PAST_LIMIT, STOPPED
from ppwork.records.calls import read_calls
from ppwork.records.folder import run_folder
from ppwork.records.hosts import HostsRecord, host_logs
from ppwork.records.run import TORCHRUN_LOG, FinishedProgram
from ppwork.timeline.meetings import Meetings

LIMIT_S = 120.0
FREEZE_S = 5.0
"""Seconds that a host may be silent: the default of a plan."""
OF_SIZES = "SizeMismatch"
KEYBOARD = "EOF when reading a line"
"""Python's message when ``input`` has no keyboard."""
BOTH_SIDES = "which of the two calls above has the shape and dtype that is meant"
START_LATE = "is the machine busy? then a longer limit: `limit_s`, or `--limit` of a cell"
LINES, LONGEST = 40, 400
"""Last lines of each rank's output that are shown, and most characters of a line; the run folder has all."""
SHOWN_BYTES = 1 << 16
"""Bytes at the end of each rank's output in which those lines are searched."""
PRINTED_BYTES = 4 << 20
"""Most bytes that ``ScriptRun.printed`` returns of a rank."""
MOST_PRINTED = 1 << 30
"""Most bytes of one stream of a rank; past this the program is stopped, because it would fill the disk."""
PRINTED_EVERY_S = 0.25
"""Seconds between two checks of this size."""
NOT_TEXT = (b"PK\x03\x04", b"\x7fELF")
"""First bytes of files that are not Python source: archives, which Python runs, and foreign binaries."""


@dataclass(frozen=True, repr=False)
class ScriptRun(FinishedProgram):
    """One finished run of a user's own program.

    Attributes:
        nproc: Number of ranks.
    """

    nproc: int = field(kw_only=True)

    def printed(self, rank: int) -> str:
        """Return what a rank printed to its standard output; if that is very long, its end with a note."""
        text, left_out = self._end_of(rank, PRINTED_BYTES)
        return f"{left_out}\n{text}" if left_out else text

    @property
    def has_printed(self) -> bool:
        """Whether any rank printed anything."""
        return any(self._end_of(rank, 1)[0] for rank in range(self.nproc))

    def _end_of(self, rank: int, most: int) -> tuple[str, str]:
        """Return the end of what a rank printed, and a note on what comes before it, if anything does."""
        path = rank_log(self.run_dir, rank, "stdout")
        if path is None:
            return "", ""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            text = file.read(most).decode(errors="replace")
        return text, f"({(size - most) / 1e6:.1f} MB before this are in {path})" if size > most else ""

    def _shown_of(self, rank: int) -> list[str]:
        text, left_out = self._end_of(rank, SHOWN_BYTES)
        lines = [
            line if len(line) <= LONGEST else f"{line[:LONGEST]}... ({len(line)} characters)"
            for line in text.splitlines()[-LINES:]
        ]
        return [left_out, *lines] if left_out else lines

    def __repr__(self) -> str:
        ends = {rank: self._shown_of(rank) for rank in range(self.nproc)}
        lines = [f"rank {rank}: {line}" for rank, end in ends.items() for line in end]
        nobody = "neither rank" if self.nproc == 2 else "no rank"
        return "\n".join(lines) or f"{nobody} printed anything; exit code {self.exit_code}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def rank_log(run_dir: Path, rank: int, stream: str) -> Path | None:
    """Return the file of a rank's ``stdout`` or ``stderr``; ``None`` while it does not exist."""
    hosts = HostsRecord.load(run_dir)
    host, number = (0, rank) if hosts is None else hosts.place_of(rank)  # torchrun numbers ranks per host
    return next(iter(host_logs(run_dir, host).glob(f"*/attempt_0/{number}/{stream}.log")), None)


def launch_script(
    script: Path | str,
    *,
    nproc: int,
    arguments: tuple[str, ...] = (),
    out: Path | str | None = None,
    check: bool = True,
    limit_s: float = LIMIT_S,
    ops: bool = False,
    record: bool = True,
    view: Callable[[Path, int], View] = NoView,
    on: Places | None = None,
    queued: Queued | None = None,
) -> ScriptRun:
    """Run a program on ``nproc`` ranks of this machine, or of others, and wait for the end.

    Args:
        script: A Python file that calls ``torch.distributed`` as it would under torchrun.
        nproc: Number of ranks.
        arguments: The program's arguments.
        out: Run folder, new or empty; ``None`` makes one under ``runs/``.
        check: Raise if the program fails; else the failure is in ``ScriptRun.failure``.
        limit_s: Hard limit on the whole program, in seconds.
        ops: Record operators of torch, too: calls by DDP, compiled code and methods of ``ProcessGroup``.
        record: Record the calls of torch.distributed: 10 to 25 microseconds for each. Without them a failure
            is explained from the logs alone.
        view: Makes the view of the running program, given the run folder and the number of ranks.
        on: Hosts that run the ranks; they see the run folder and the program at the same paths.
        queued: Gets a queue's reports while the program waits for its hosts.

    Returns:
        The finished program, which shows what its ranks printed, in the order of the ranks.

    Raises:
        PlanError: The file does not exist or is not Python, ``nproc`` or ``limit_s`` is not positive, or the
            arguments are too long to send to a host; nothing was started.
        RunFailed: A rank or a host failed, or the program was stopped (only with ``check``); names the cause.
        KeyboardInterrupt: The user pressed Ctrl-C; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    check_limit(limit_s)
    path = Path(script)
    check_program(path)
    if nproc < 1:
        raise PlanError(f"A program was to run on {nproc} ranks.", check_first="nproc: one or more")
    if ops and not record:
        raise PlanError("Operators were to be recorded, and no calls.", check_first="leave out one of both")
    registry()
    if on is not None:
        _check_hosts(on, arguments)
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(run_folder(out))
        hosts = stack.enter_context(HostSession(on, nproc, FREEZE_S)) if on is not None else None
        if hosts is not None:
            hosts.greet(queued, run_dir)
            hosts.look(run_dir.name, run_dir, [str(path.absolute())], everywhere=True)
            hosts.meet()
        finished = _run(
            path, nproc, arguments, run_dir, limit_s, view(run_dir, nproc), hosts, ops=ops, record=record
        )
    if finished.failure is not None and check:
        raise finished.failure
    return finished


def _run(
    path: Path,
    nproc: int,
    arguments: tuple[str, ...],
    run_dir: Path,
    limit_s: float,
    shown: View,
    hosts: HostSession | None,
    *,
    ops: bool,
    record: bool,
) -> ScriptRun:
    code, printed = STOPPED, _Printed(run_dir, nproc)

    def look() -> None:
        printed.look()
        shown.look()

    try:
        entry = "rank-ops" if ops else "rank" if record else "rank-plain"
        logs, folder, script = (str(run_dir), str(run_dir.absolute()), str(path)) if hosts is None else (
            LOGS, FOLDER, str(path.absolute())
        )  # fmt: skip
        program = ["--log-dir", logs, "--redirects", "3", "-m", "ppwork", entry, folder, script]
        if hosts is not None:
            with registered(run_dir, hosts.pid):
                code = hosts.run(None, program, run_dir, limit_s, look, arguments=arguments)
        else:
            log = run_dir / TORCHRUN_LOG
            code = torchrun([*program, *arguments], ranks=nproc, log=log, limit_s=limit_s, watch=look)
    except (StopAsked, _PrintsTooMuch):
        pass
    finally:
        failure = printed.failure or _failure(run_dir, code, limit_s)
        finished = ScriptRun(run_dir, code, failure, nproc=nproc)
        shown.end(finished)
    return finished


def check_program(path: Path) -> None:
    """Refuse a file that Python would not run.

    Raises:
        PlanError: The file does not exist, cannot be read, or does not compile: says where and why.
    """
    if path.is_dir():
        raise PlanError(f"{path} is a folder and no program.", check_first="which file of it is the program?")
    if not path.is_file():
        raise PlanError(f"There is no program {path}.", check_first=f"is it in {Path.cwd()}?")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise PlanError(
            f"The program {path} cannot be read: {error.strerror}.", check_first=f"`ls -l {path}`"
        ) from error
    if source.startswith((*NOT_TEXT, MAGIC_NUMBER)):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show them
            compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(path)
        text = error.msg if isinstance(error, SyntaxError) else str(error) or "it nests too deeply"
        line = (getattr(error, "text", "") or "").strip()[:LONGEST]
        is_text = bool(line) and not ("codec" in text or "encoding" in text)
        check_first = "that line" if is_text else "is it Python, saved as UTF-8?"
        if line.startswith(("!", "%")):
            check_first = "ranks run plain Python: no `!` and no `%` of notebooks"
        shown = f"\n    {line}" if line else ""
        raise PlanError(f"{at} is not Python: {text}.{shown}", check_first=check_first) from error


def _check_hosts(on: Places, arguments: tuple[str, ...]) -> None:
    """Refuse options and arguments that a program over hosts cannot have.

    Raises:
        PlanError: An option of the hosts is wrong, or the message that starts the ranks cannot hold the
            arguments.
    """
    if not on.use_shared:
        raise PlanError(
            "use_shared=False is for runs of a plan: what ranks of a program print is written to a folder "
            "that all hosts share.",
            check_first="leave it out",
        )
    try:
        sizes = [len(argument.encode()) for argument in arguments]
        whole = len(msgspec.json.encode(arguments))
    except UnicodeEncodeError as error:
        raise PlanError(f"An argument is not UTF-8: {error.object!r}.", check_first="arguments") from error
    most = wire.MOST // 2
    if len(sizes) > wire.ARGUMENTS or max(sizes, default=0) > wire.ARGUMENT or whole > most:
        raise PlanError(
            f"The program's {len(sizes)} arguments of {sum(sizes)} bytes, the longest of {max(sizes)}, do "
            f"not go to other hosts: {wire.ARGUMENTS}, each of {wire.ARGUMENT} bytes at most, all of {most}.",
            check_first="a file that the program reads, in the folder that the hosts share",
        )


class _PrintsTooMuch(Exception):
    """The program prints more than a disk should hold."""


class _Printed:
    """Checks now and then how much the ranks print.

    Attributes:
        failure: The failure, if a rank printed too much.
    """

    def __init__(self, run_dir: Path, nproc: int) -> None:
        self._run_dir, self._nproc, self._looked = run_dir, nproc, 0.0
        self.failure: RunFailed | None = None

    def look(self) -> None:
        """Check, a few times a second.

        Raises:
            _PrintsTooMuch: A stream of a rank is past ``MOST_PRINTED``.
        """
        if time.monotonic() - self._looked < PRINTED_EVERY_S:
            return
        self._looked = time.monotonic()
        for rank in range(self._nproc):
            for stream in ("stdout", "stderr"):
                with contextlib.suppress(FileNotFoundError):  # somebody has removed the folder meanwhile
                    self._check(rank, rank_log(self._run_dir, rank, stream))

    def _check(self, rank: int, path: Path | None) -> None:
        if path is None or path.stat().st_size <= MOST_PRINTED:
            return
        most = f"{MOST_PRINTED >> 20} MiB"
        what = f"Rank {rank} printed more than {most}, and the program was stopped."
        self.failure = RunFailed(
            f"{what}\n  log: {path}",
            where={"rank": rank},
            check_first="a print in a loop without end?",
            headline=what,
        )
        raise _PrintsTooMuch


@dataclass(frozen=True)
class _Evidence:
    """The evidence that a failed program has left.

    Attributes:
        found: What its logs say.
        met: Its calls; empty if it recorded none, or if they do not read.
        end: Where its ranks stood, according to the calls.
    """

    found: Diagnosis
    met: Meetings
    end: ProgramWaits | None

    @classmethod
    def of(cls, run_dir: Path) -> _Evidence:
        """Read the evidence.

        Raises:
            PlanError: No rank left a log.
        """
        job, met = read_job(run_dir), Meetings({})
        with contextlib.suppress(UnreadableError):
            met = Meetings(read_calls(run_dir))
        end = program_waits(met) if met.ranks else None
        return cls(diagnose_job(job), met, end and end.at_lines(JobEvidence(job).place))

    def is_of(self, *error_types: str) -> bool:
        """Say whether the logs name a cause of one of these types."""
        return self.found.cause is not None and self.found.cause.error_type in error_types

    @property
    def agrees(self) -> bool:
        """Whether calls and logs name the same rank."""
        cause, end = self.found.cause, self.end
        return cause is not None and end is not None and end.rank is not None and end.rank == cause.rank


def _failure(run_dir: Path, code: int, limit_s: float) -> RunFailed | None:
    if code == 0:
        return None
    if code == STOPPED:
        return RunFailed(f"The program was stopped; no rank is left.\n  folder: {run_dir}")
    hosts = HostsRecord.load(run_dir)
    if code == HOST_LOST and hosts is not None and (lost := hosts.end) is not None:
        return RunFailed(lost.what, check_first=lost.check_first, headline=lost.what)
    try:
        evidence = _Evidence.of(run_dir)
    except PlanError:
        return _not_begun(run_dir / TORCHRUN_LOG, code, limit_s)
    if code == PAST_LIMIT:
        return _too_late(evidence, limit_s)
    for rule in RULES:
        if (failure := rule(evidence)) is not None:
            return failure
    return _as_logged(evidence)


def _not_begun(log: Path, code: int, limit_s: float) -> RunFailed:
    """Return how a program ended that was over before any rank had a log."""
    if code == PAST_LIMIT:
        late = f"No rank had begun when the program passed its limit of {limit_s:g} s."
        return RunFailed(f"{late}\n  log: {log}", check_first=START_LATE)
    return RunFailed(f"torchrun ended with code {code}, and no rank left a log.\n  log: {log}")


def _too_late(evidence: _Evidence, limit_s: float) -> RunFailed:
    """Return what the ranks were doing when the program's limit passed."""
    cause, end = evidence.found.cause, evidence.end
    lines = end.lines if end is not None else []
    passed = "\n  ".join([f"The program passed its limit of {limit_s:g} s and was stopped.", *lines])
    # The logs may say nothing but that we sent a signal, or not where the rank stood for which the others
    # wait: the calls do.
    knows = cause is not None and (
        not evidence.is_of(*FROM_PLACES, "Stopped") or (cause.source and evidence.agrees)
    )
    if evidence.is_of(RANK_DIED) and cause is not None and " by SIGKILL" in cause.what:
        knows = False  # an earlier death would have ended the program: it was our own kill, of a slow SIGTERM
    if evidence.is_of(CUT_OFF):
        knows = False  # that kill came while the rank wrote its traceback
    return evidence.found.as_error().below(passed) if end is None or knows else _of_standing(end, passed)


def _of_standing(end: ProgramWaits, text: str) -> RunFailed:
    where = {} if end.rank is None else {"rank": end.rank}
    return RunFailed(text, where=where, check_first=end.check_first, headline=end.sentence)


def _showed_nothing(evidence: _Evidence) -> RunFailed | None:
    ranks = {*evidence.found.as_error().where.values()}
    return _unsaid(evidence.met, ranks) if evidence.is_of(RANK_DIED) else None


def _asked_the_keyboard(evidence: _Evidence) -> RunFailed | None:
    failure = evidence.found.as_error()
    if not evidence.is_of(EOFError.__name__) or KEYBOARD not in failure.what:
        return None
    return RunFailed(
        failure.what,
        where=failure.where,
        check_first="a rank has no keyboard: give it what it asks for as an argument",
        headline=failure.headline,
    )


def _stood_apart(evidence: _Evidence) -> RunFailed | None:
    """Return where the ranks stood, if the logs know only their places."""
    if (end := evidence.end) is None or not evidence.is_of(*FROM_PLACES):
        return None
    known = evidence.found.lines if evidence.agrees else ()
    return _of_standing(end, "\n".join([*known, "\n  ".join([end.sentence, *map(str, end.waits)])]))


def _as_logged(evidence: _Evidence) -> RunFailed:
    """Return what the logs say, and below it the calls that do not match."""
    found = evidence.found
    mismatches = evidence.end.mismatches if evidence.end is not None else ()
    if mismatches and found.cause is not None and found.cause.error_type == OF_SIZES:
        # gloo's message knows only the receiver; the calls have both sides, so no second run is needed.
        cause = msgspec.structs.replace(found.cause, check_first=BOTH_SIDES)
        found = replace(found, cause=cause, unknown=())
    failure = found.as_error()
    what = "\n  ".join([failure.what, *mismatches])
    return RunFailed(what, where=failure.where, check_first=failure.check_first, headline=failure.headline)


RULES = (_showed_nothing, _asked_the_keyboard, _stood_apart)
"""Rules for which the calls, or Python's messages, say more than the logs; the first answer counts."""


def _unsaid(met: Meetings, ranks: set[int]) -> RunFailed | None:
    """Return the error that ended one of these ranks, by its calls: a hook may have hidden the traceback."""
    ends = [
        (of_rank.left, rank)
        for rank, of_rank in met.ranks.items()
        if rank in ranks
        if of_rank.left is not None and of_rank.left.error and of_rank.left.site
        # Else the error is the reaction to another rank.
        if not of_rank.calls or of_rank.calls[-1].error != of_rank.left.error
    ]
    if not ends:
        return None
    left, rank = min(ends, key=lambda end: end[0].at_ns)
    return RunFailed(
        f"{left.site}\nRank {rank} raised {left.error}, and showed nothing of it.",
        where={"rank": rank},
        check_first="sys.excepthook: the program has put another one there, or closed its output",
        headline=f"Rank {rank} raised {left.error}.",
    )
