"""Logs of torchrun and its ranks, read back: any program's, not only ours.

Two sources: the folder that ``--log-dir D --redirects 3`` fills (one folder per rank), and the console, where
lines of ranks begin with ``[rank0]:`` (torch's own prefix of a traceback) or ``[default0]:`` (``--tee 3``).
torchrun closes with a report of the ranks that failed; a rank that ended with code 0 is not in it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppwork.diagnosis.stacks import Stack, thread_stacks, tracebacks
from ppwork.errors import PlanError
from ppwork.records.files import read_json

MAX_BYTES = 4 << 20
"""Bytes that are read of a log: the last ones."""
CONSOLE_SUFFIXES = (".log", ".txt", ".out", ".err")
ENDED_BY_AGENT = (-signal.SIGTERM, -signal.SIGINT)
"""Exit codes of ranks that torchrun ended because another one had failed, or because of a Ctrl-C."""
LONGER = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""gloo's last words before it aborts a process that was sent more than the buffer it posted."""
_ENDED = re.compile(
    r"^\s*rank\s*:\s*(\d+)(?: \(local_rank: (\d+)\))?.*\n\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE
)
"""Two lines of the report, one below the other; either alone may be somebody's print."""
_ROOT = "Root Cause (first observed failure):"
_STOPPED = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
_LOCAL = re.compile(r"^\[[A-Za-z_]+(\d+)\]:")
_GLOBAL = re.compile(r"^\[rank(\d+)\]: ?")
_NOISE = re.compile(r"\[/\S+\.cc:\d+\] | This is typically caused by.*$", re.MULTILINE)
_ATTEMPT, _RANK_FOLDER = re.compile(r"^attempt_(\d+)$"), re.compile(r"^\d+$")
_KILLED = re.compile(r"^ppwork: rank (\d+) .* was killed$", re.MULTILINE)
_STOPPED_RANK = re.compile(
    r"^ppwork: rank (\d+) \(pid \d+, stopped\) (was there)?.* was killed$", re.MULTILINE
)


@dataclass(frozen=True)
class Report:
    """torchrun's closing report.

    Attributes:
        codes: Exit code of each rank that failed or was ended; negative is a signal.
        first: The rank that torchrun saw fail first, or ``None`` without a report.
        ranks: Global rank of each local rank, as far as the report names them.
        signal: Signal that ended torchrun itself from outside, or 0.
    """

    codes: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    ranks: dict[int, int] = field(default_factory=dict)
    signal: int = 0

    @classmethod
    def of(cls, text: str) -> Report:
        """Read the report out of what torchrun printed; empty if it printed none."""
        ended = _ENDED.findall(text)
        root = _ENDED.search(text, text.find(_ROOT)) if _ROOT in text else None
        stopped = _STOPPED.search(text)
        return cls(
            codes={int(rank): int(code) for rank, _, code in ended},
            first=int(root[1]) if root is not None else None,
            ranks={int(local): int(rank) for rank, local, _ in ended if local},
            signal=int(stopped[1]) if stopped is not None else 0,
        )


def death(code: int) -> str:
    """Say how a process ended, by its exit code.

    >>> death(7), death(-9)
    ('exited with code 7', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def killed_by_us(torchrun_log: str) -> set[int]:
    """Return the ranks that the launcher killed: their SIGKILL in torchrun's report is nobody's fault."""
    return {int(rank) for rank in _KILLED.findall(torchrun_log)}


def stopped_and_killed(torchrun_log: str) -> dict[int, bool]:
    """Return the ranks that were stopped when the launcher killed them.

    Returns:
        ``True`` for a rank that only outstayed the first death: that came before anybody saw it stopped.
        ``False`` for one that was killed because it did not go on.
    """
    return {int(rank): bool(late) for rank, late in _STOPPED_RANK.findall(torchrun_log)}


@dataclass(frozen=True)
class RankLog:
    """Output of one rank.

    Attributes:
        text: Without the prefixes of torchrun and torch.
        errors: Exceptions in the order of the log; the last one ended the process, if one did.
        threads: Stacks that faulthandler wrote.
        where: The file to look into.
    """

    rank: int
    text: str
    errors: tuple[Stack, ...]
    threads: tuple[Stack, ...]
    where: str

    @classmethod
    def of(cls, rank: int, text: str, where: str, recorded: Stack | None = None) -> RankLog:
        """Read a rank's text; ``recorded`` is the exception of its ``error.json``, if it left one."""
        errors = tracebacks(text) or ([recorded] if recorded is not None else [])
        return cls(rank, text, tuple(errors), tuple(thread_stacks(text)), where)


@dataclass(frozen=True)
class JobLogs:
    """Logs of one torchrun job.

    Attributes:
        source: The folder or file that was read.
        ranks: By global rank, all of them that left a file or a line, or are in the report.
        report: torchrun's closing report.
        console: Lines that no rank can be named for: torchrun's, and those of C++.
        complete: Every rank had a file of its own, so an empty text means that it said nothing.
    """

    source: Path
    ranks: dict[int, RankLog]
    report: Report
    console: str
    complete: bool


def read_job(path: Path) -> JobLogs:
    """Read what a torchrun job left: its ``--log-dir``, or the log of its console.

    Raises:
        PlanError: Nothing is there, it cannot be read, or no rank can be found in it.
    """
    try:
        path.stat()
        job = _folder(path) if path.is_dir() else _console(path)
    except OSError as error:
        raise PlanError(
            f"{path} cannot be read: {error.strerror}.", check_first="the path, and whose file it is"
        ) from error
    if not job.ranks and not job.report.signal:
        raise PlanError(
            f"No rank of a torchrun job was found in {path}.",
            check_first="a run of ours, torchrun's --log-dir (with --redirects 3), or the log of its console",
        )
    return job


def _console(path: Path) -> JobLogs:
    text = tail(path)
    report = Report.of(text)
    lines, rest = split_by_rank(text, report.ranks)
    ranks = sorted({*lines, *report.codes})
    logs = {rank: RankLog.of(rank, "\n".join(lines.get(rank, [])), str(path)) for rank in ranks}
    return JobLogs(path, logs, report, "\n".join(rest), complete=False)


def split_by_rank(text: str, ranks: dict[int, int]) -> tuple[dict[int, list[str]], list[str]]:
    """Sort the lines of a console by the rank that printed them.

    torchrun copies a rank's stdout and stderr in two threads, so a print may stand in the middle of a
    traceback. Torch's own prefix tells the two apart: its lines come last, in one piece.

    Args:
        text: What the console showed.
        ranks: Global rank by local rank, where they differ: ``--tee`` prefixes the local one.

    Returns:
        Lines by rank without their prefixes, and the lines that bear none.
    """
    printed: dict[int, list[str]] = {}
    last_words: dict[int, list[str]] = {}
    rest: list[str] = []
    for line in text.splitlines():
        rank, shown = None, line
        if (named := _GLOBAL.match(shown)) is None and (local := _LOCAL.match(shown)) is not None:
            number = int(local[1])
            rank, shown = ranks.get(number, number), shown[local.end() :]
            named = _GLOBAL.match(shown)
        if named is not None:
            rank, shown = int(named[1]), shown[named.end() :]
        if rank is None:
            rest.append(line)
        else:
            (printed if named is None else last_words).setdefault(rank, []).append(shown)
    return {rank: printed.get(rank, []) + last_words.get(rank, []) for rank in printed | last_words}, rest


def _folder(path: Path) -> JobLogs:
    attempt = _last_attempt(path)
    if attempt is None:
        return JobLogs(path, {}, Report(), "", complete=True)
    console = "\n".join(_consoles(path))
    report = Report.of(console)
    logs: dict[int, RankLog] = {}
    for folder in sorted(attempt.iterdir(), key=lambda folder: folder.name):
        if not _RANK_FOLDER.match(folder.name):
            continue
        lines = [line for name in ("stdout.log", "stderr.log") for line in tail(folder / name).splitlines()]
        # On a second host the folder has the local rank; torch's prefix and the report have the global one.
        named = next((int(match[1]) for match in map(_GLOBAL.match, lines) if match), int(folder.name))
        rank = report.ranks.get(int(folder.name), named)
        text = "\n".join(_GLOBAL.sub("", line) for line in lines)
        logs[rank] = RankLog.of(rank, text, str(folder / "stderr.log"), _recorded(folder / "error.json"))
    return JobLogs(path, dict(sorted(logs.items())), report, console, complete=True)


def _last_attempt(path: Path) -> Path | None:
    """Return the newest attempt's folder: given itself, in its run's folder, or one level below."""
    if _ATTEMPT.match(path.name):
        return path
    attempts = [folder for folder in (*path.glob("attempt_*"), *path.glob("*/attempt_*")) if folder.is_dir()]
    return max(attempts, key=lambda folder: (folder.parent.stat().st_mtime_ns, folder.name), default=None)


def _consoles(path: Path) -> list[str]:
    """Return the texts of console logs that somebody kept beside the folders."""
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix in CONSOLE_SUFFIXES]
    return [text for text in map(tail, files) if "torch/distributed/" in text or _ENDED.search(text)]


def _recorded(path: Path) -> Stack | None:
    """Return the exception that ``@record`` wrote down."""
    try:
        raw = read_json(path, dict[str, Any]) or {}
        stacks = tracebacks(raw["message"]["extraInfo"]["py_callstack"])
    except (KeyError, TypeError, AttributeError):
        return None  # none was written, or cut by a kill
    return stacks[-1] if stacks else None


def without_noise(text: str) -> str:
    """Return a message of gloo without its source position and its advice."""
    return _NOISE.sub("", text)


def tail(path: Path) -> str:
    """Return the end of a log as text; empty if there is none, or no regular file: a pipe would not end."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_BYTES))
        return file.read().decode(errors="replace")
