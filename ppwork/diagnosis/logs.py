"""Logs of torchrun and its ranks, read back: any program's, not only ours.

Two sources: the folder that ``--log-dir D --redirects 3`` fills (one folder per rank, one tree per host and
attempt), and the console, where a rank's lines have ``[rank0]:`` in them (torch's own prefix of an exception
that ended the program) or begin with ``[default0]:`` (``--tee 3``). torchrun closes with a report of the
ranks that failed.

Of a long log the end is read, and what stands at the last tracebacks before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppwork.diagnosis.report import Report, attempts_of, recorded
from ppwork.diagnosis.stacks import HEAD, Stack, fragments, thread_stacks, tracebacks
from ppwork.errors import PlanError
from ppwork.records.files import read_json
from ppwork.records.hosts import HostRecord, HostsRecord, host_logs

MAX_BYTES = 1 << 20
"""Bytes that are read of a log: the last ones."""
AROUND_BYTES = 1 << 14
"""Bytes that are read at a traceback before those."""
EARLIER = 8
"""Tracebacks before those, the last ones."""
SEARCHED_BYTES = 1 << 28
"""Bytes before those that are searched for tracebacks."""
CONSOLE_SUFFIXES = (".log", ".txt", ".out", ".err")
PROGRAMS = (".py", ".ipynb")
LONGER = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""gloo's last words before it aborts a process that was sent more than the buffer it posted."""
_LOCAL = re.compile(r"^\[[A-Za-z_]+(\d+)\]:")
_GLOBAL = re.compile(r"\[rank(\d+)\]: ?")
_OTHERS = re.compile(
    r"^\[.{0,60}\[rank=(\d+)\] \|\| |^\(\w+ rank=(\d+) pid=\d+\) |^\(Worker_TP(\d+) pid=\d+\) "
    r"|^\[\d+,(\d+)\]<std(?:out|err)>: ?"
)
"""Prefixes of other launchers, of vLLM and of mpirun, which prefix all that a rank prints."""
_LABELLED = re.compile(r'^ *\d+: (?:Traceback \(|  File ")', re.MULTILINE)
_LABEL = re.compile(r"^ *(\d+): ?")
"""The prefix of ``srun --label``, taken for one only where tracebacks have it."""
_PROCESS = re.compile(r"^\(\w+ pid=\d+(?:, ip=[\d.]+)?\) ")
"""Ray's prefix: of a process, and not of a rank."""
_QUOTE = re.compile(r"^> ?", re.MULTILINE)
_LINE_BEGINS = re.compile(r"^\[rank(\d+)\]: ?", re.MULTILINE)
_BESIDE = re.compile(r"\[rank\d+\]: ?(?=(?:  \+ Exception Group )?Traceback \()")
"""torch's prefix in mid-line: something before it had left its line open, such as a progress bar."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
_ESCAPED = f"{HEAD}:\\n"
"""A traceback that stands in JSON, as torchrun's logger has it."""
_BLANKS = re.compile(r"\n{3,}")
_TOO_MANY_DIGITS = 1000
_DIGITS = re.compile(rf"(?<!\d)\d{{{_TOO_MANY_DIGITS},}}")
"""No number: Python refuses to read thousands of digits as one."""
_ATTEMPT, _RANK_FOLDER = re.compile(r"^attempt_(\d+)$"), re.compile(r"^\d+$")


@dataclass(frozen=True)
class RankLog:
    """Output of one rank.

    Attributes:
        text: Without the prefixes of torchrun and torch.
        errors: Exceptions in the order of the log.
        threads: Stacks that faulthandler wrote.
        where: The file to look into.
        printed: The part of the text above what ended it.
    """

    rank: int
    text: str
    errors: tuple[Stack, ...]
    threads: tuple[Stack, ...]
    where: str
    printed: str = ""

    @classmethod
    def of(
        cls, rank: int, printed: str, last_words: str, where: str, recorded: Stack | None = None
    ) -> RankLog:
        """Read a rank's output.

        Args:
            rank: Its global number.
            printed: Lines without torch's prefix.
            last_words: Lines that had it.
            where: The file to look into.
            recorded: Exception of its ``error.json``, if it left one.
        """
        # torch writes its prefix only before what ended the program, also where the beginning was cut off.
        ended = [replace(e, uncaught=True) for e in tracebacks(last_words) or fragments(last_words)[-1:]]
        errors = [*tracebacks(printed), *ended] or ([recorded] if recorded is not None else [])
        return cls(
            rank,
            f"{printed}\n{last_words}".strip("\n"),
            tuple(errors),
            tuple(thread_stacks(printed)),
            where,
            printed if last_words else printed.partition(HEAD)[0].rpartition("\n")[0],
        )

    def last_lines(self, count: int) -> list[str]:
        """Return its last lines that are not blank, and no frames of C++."""
        lines = (line for line in self.text[-_END_BYTES:].splitlines() if line.strip())
        return [line[:LINE] for line in lines if not _OF_CPP.match(line)][-count:]


_OF_CPP = re.compile(r"frame #\d+: |<omitting python frames>$|Exception raised from \w+ at ")
_ENDS = 5
"""So many lines are compared."""
_END_BYTES = 16384
LINE = 160
"""Characters of a line that is shown."""


@dataclass(frozen=True)
class JobLogs:
    """Logs of one attempt of a torchrun job.

    Attributes:
        source: The folder or file that was read.
        ranks: By global rank, all of them that left a file or a line, or are in the report.
        report: torchrun's closing report.
        console: Lines that no rank can be named for: torchrun's, those of C++, and those without any prefix.
        complete: Every rank had a file of its own, so an empty text means that it said nothing.
        earlier: The attempts before this one, which is the last.
        has_console: What torchrun shows was read, too: a job that it says nothing of ended well.
        standing: It runs now, and its stacks were read from outside: who is in a call waits there.
    """

    source: Path
    ranks: dict[int, RankLog]
    report: Report
    console: str
    complete: bool
    earlier: tuple[JobLogs, ...] = ()
    has_console: bool = False
    standing: bool = False


def read_job(path: Path, *others: Path) -> JobLogs:
    """Read what a torchrun job left: its ``--log-dir``, or the log of its console.

    Args:
        path: One of these.
        others: The same of the other hosts, in the order of their ranks.

    Raises:
        PlanError: Nothing is there, it cannot be read, or it is a program.
    """
    known = None if others else HostsRecord.load(path)
    hosts = [_read(each) for each in (path, *others)] if known is None else _of_hosts(path, known.hosts)
    return hosts[0] if len(hosts) == 1 else _as_one(hosts)


def _read(path: Path, ranks: Sequence[int] = ()) -> JobLogs:
    """Read what one host left; its ranks by local rank, where they are known."""
    if path.suffix in PROGRAMS and path.is_file():
        raise PlanError(
            f"{path} is a program, and no log.",
            check_first="what it left: a run's folder, torchrun's --log-dir, or the log of its console",
        )
    try:
        path.stat()
        return _folder(path, ranks) if path.is_dir() else _console(path)
    except OSError as error:
        raise PlanError(
            f"{path} cannot be read: {error.strerror}.", check_first="the path, and whose file it is"
        ) from error


def _of_hosts(path: Path, hosts: Iterable[HostRecord]) -> list[JobLogs]:
    """Read what each host of a launch of ours left, under the numbers that its ranks have in the job."""
    folders = {host_logs(path, number): host.ranks for number, host in enumerate(hosts)} or {path: ()}
    return [_read(folder, ranks) for folder, ranks in folders.items() if folder == path or folder.is_dir()]


def _as_one(hosts: list[JobLogs]) -> JobLogs:
    """Return the logs of several hosts as those of one job, attempt by attempt, the last ones together."""
    attempts = [[*host.earlier, host] for host in hosts]
    whole = [
        _side_by_side([of_host[-back] for of_host in attempts if len(of_host) >= back])
        for back in range(max(map(len, attempts)), 0, -1)
    ]
    return replace(whole[-1], earlier=tuple(whole[:-1]))


def _side_by_side(hosts: list[JobLogs]) -> JobLogs:
    ranks: dict[int, RankLog] = {}
    reports: list[Report] = []
    in_files: set[int] = set()
    for host in hosts:
        # Folders of --log-dir have local ranks: where all of them are there already, the hosts count on.
        named = {rank: log for rank, log in host.ranks.items() if log.text}
        spoke = {rank for rank, log in ranks.items() if log.text}
        is_same = in_files.isdisjoint(named) and all(
            _have_one_end(log, ranks.get(log.rank)) for log in named.values()
        )
        on = len(ranks) if host.complete and named and spoke.issuperset(named) and not is_same else 0
        for rank, log in host.ranks.items():
            if rank + on not in ranks or not ranks[rank + on].text or (host.complete and is_same):
                ranks[rank + on] = replace(log, rank=rank + on)
        in_files |= {rank + on for rank in host.ranks} if host.complete else set()
        reports.append(host.report.numbered({rank: rank + on for rank in host.ranks}))
    return JobLogs(
        hosts[0].source,
        dict(sorted(ranks.items())),
        Report.together(reports),
        "\n".join(filter(None, (host.console for host in hosts))),
        complete=in_files.issuperset(ranks),
        has_console=any(host.has_console for host in hosts),
    )


def _have_one_end(log: RankLog, other: RankLog | None) -> bool:
    """Say whether a rank's console has the last lines of its file: they are of one host."""
    lines = other.text.splitlines() if other is not None else []
    return {*log.last_lines(_ENDS)} <= {line[:LINE] for line in lines}


def _console(path: Path, text: str | None = None) -> JobLogs:
    attempts = [_attempt(path, part) for part in attempts_of(_unquoted(tail(path) if text is None else text))]
    return replace(attempts[-1], earlier=tuple(attempts[:-1]))


def _unquoted(text: str) -> str:
    """Return a text without the marks of a quotation, if all of its lines have one, and without JSON's."""
    if _ESCAPED in text:
        text = "\n".join(
            line.replace("\\n", "\n").replace('\\"', '"') if _ESCAPED in line else line
            for line in text.splitlines()
        )
    if not text.startswith(">"):
        return text
    lines = [line for line in text.splitlines() if line.strip()]
    return _QUOTE.sub("", text) if all(line.startswith(">") for line in lines) else text


def _attempt(path: Path, text: str) -> JobLogs:
    report = Report.of(text)
    lines, rest = split_by_rank(text, report.ranks)
    ranks = sorted({*lines, *report.codes})
    texts = {rank: ["\n".join(part) for part in lines.get(rank, ([], []))] for rank in ranks}
    shown = recorded(text)
    logs = {
        rank: RankLog.of(rank, printed, last or shown.get(rank, ""), str(path))
        for rank, (printed, last) in texts.items()
    }
    return JobLogs(path, logs, report, "\n".join(rest), complete=False, has_console=True)


def split_by_rank(
    text: str, ranks: dict[int, int]
) -> tuple[dict[int, tuple[list[str], list[str]]], list[str]]:
    """Sort the lines of a console by the rank that printed them.

    torchrun copies a rank's stdout and stderr in two threads, so a print may stand in the middle of a
    traceback. Torch's own prefix tells the two apart.

    Args:
        text: What the console showed.
        ranks: Global rank by local rank, where they differ: ``--tee`` prefixes the local one.

    Returns:
        Lines by rank without their prefixes, those without torch's prefix first; and the lines of no rank.
    """
    split: dict[int, tuple[list[str], list[str]]] = {}
    of_process: dict[str, list[str]] = {"": []}
    is_labelled = _LABELLED.search(text) is not None
    for line in text.splitlines():
        rank, shown = None, line
        if (local := _LOCAL.match(line)) is not None and not line.startswith("[rank"):
            rank, shown = ranks.get(int(local[1]), int(local[1])), line[local.end() :]
        elif line[:1] in ("[", "(") and (other := _OTHERS.match(line)) is not None:
            rank, shown = int(other[other.lastindex or 1]), line[other.end() :]
        elif is_labelled and (label := _LABEL.match(line)) is not None:
            rank, shown = int(label[1]), line[label.end() :]
        if (named := _GLOBAL.search(shown)) is not None:
            split.setdefault(int(named[1]), ([], []))[1].append(shown[named.end() :])
            shown = shown[: named.start()]
            if not shown.strip():
                continue
        if rank is not None:
            split.setdefault(rank, ([], []))[0].append(shown)
        elif shown.startswith("(") and (process := _PROCESS.match(shown)) is not None:
            of_process.setdefault(process[0], []).append(shown[process.end() :])
        else:
            of_process[""].append(shown)
    return split, [line for lines in of_process.values() for line in lines]


def _folder(path: Path, ranks: Sequence[int]) -> JobLogs:
    consoles = [_console(path, text) for text in _consoles(path)]
    last = [console for console in consoles if console.report.codes or console.report.signal] or consoles
    report = Report(
        {rank: code for console in last for rank, code in console.report.codes.items()},
        next((console.report.first for console in last if console.report.first is not None), None),
        last[0].report.ranks if len(last) == 1 else {},
        next((console.report.signal for console in last if console.report.signal), 0),
        pids={rank: pid for console in last for rank, pid in console.report.pids.items()},
        closed=frozenset(rank for console in last for rank in console.report.closed),
        local=len(last) == 1 and last[0].report.local,
    )
    said = "\n".join(console.console for console in consoles)
    by_number = _attempts(path)
    if not by_number:
        if len(consoles) == 1:
            return consoles[0]  # --log-dir without --redirects: the ranks spoke on the console
        spoke = {rank: log for console in consoles for rank, log in console.ranks.items()}
        return JobLogs(path, spoke, report, said, complete=False, has_console=bool(consoles))
    jobs: list[JobLogs] = []
    for number, folders in sorted(by_number.items()):
        is_last = number == max(by_number)
        of_attempt = report if is_last else _report_of(number, consoles)
        logs, numbers = _rank_logs(folders, dict(enumerate(ranks)) or of_attempt.ranks)
        if len(folders) == 1:  # the ranks of one host follow each other, also one that left no folder
            first = next((rank - local for local, rank in numbers.items()), 0)
            numbers = {local: local + first for local in of_attempt.codes} | numbers
        of_attempt = of_attempt.numbered(numbers)
        # Whoever left no file is known by the console.
        logs = {
            rank: logs.get(rank) or RankLog.of(rank, "", "", str(path)) for rank in {*logs, *of_attempt.codes}
        }
        has_files = any(next(folder.glob("*/*.log"), None) for folder in folders)  # --redirects or --tee
        whole = dict(sorted(logs.items()))
        words = said if is_last else ""
        jobs.append(JobLogs(path, whole, of_attempt, words, complete=has_files, has_console=bool(consoles)))
    return replace(jobs[-1], earlier=tuple(jobs[:-1]))


def _report_of(number: int, consoles: list[JobLogs]) -> Report:
    of_number = [console.earlier[number] for console in consoles if number < len(console.earlier)]
    return of_number[0].report if len(of_number) == 1 else Report()


def _attempts(path: Path) -> dict[int, list[Path]]:
    """Return the folders of each attempt, one of each host, of the newest job below a path.

    Each host's agent makes a folder of its own, named after the job. Those of one job were written at one
    time.
    """
    if _ATTEMPT.match(path.resolve().name):
        return {0: [path]}
    folders = [folder for folder in (*path.glob("attempt_*"), *path.glob("*/attempt_*")) if folder.is_dir()]
    runs: dict[Path, list[Path]] = {}
    for folder in folders:
        if _ATTEMPT.match(folder.name):
            runs.setdefault(folder.parent, []).append(folder)
    if not runs:
        return {}
    newest = max(runs, key=lambda run: run.stat().st_mtime_ns)
    began = min(folder.stat().st_mtime_ns for folder in runs[newest])
    job = newest.name.rpartition("_")[0]
    of_job = [
        run for run in runs
        if run == newest or (run.name.rpartition("_")[0] == job and _last_written(runs[run]) >= began)
    ]  # fmt: skip
    by_number: dict[int, list[Path]] = {}
    for run in sorted(of_job):
        for folder in runs[run]:
            by_number.setdefault(int(folder.name.removeprefix("attempt_")), []).append(folder)
    return by_number


def _last_written(attempts: list[Path]) -> int:
    logs = [log.stat().st_mtime_ns for attempt in attempts for log in attempt.glob("*/*.log")]
    return max(logs, default=0)


def _rank_logs(folders: list[Path], ranks: dict[int, int]) -> tuple[dict[int, RankLog], dict[int, int]]:
    """Read the ranks of one attempt.

    On a second host a folder has the local rank; torch's prefix and the report have the global one, and the
    ranks of one host follow each other.

    Args:
        folders: Of the attempt, one of each agent.
        ranks: Global rank by local rank, as far as it is known.

    Returns:
        Logs by global rank, and that rank by the local one; of several agents a local rank is no rank.
    """
    logs: dict[int, RankLog] = {}
    numbers: dict[int, int] = {}
    for attempt in folders:
        texts: dict[int, str] = {}
        for folder in attempt.iterdir():
            if _RANK_FOLDER.match(folder.name):
                texts[int(folder.name)] = "\n".join(
                    tail(folder / f"{name}.log") for name in ("stdout", "stderr")
                )
        named = {
            local: int(m[1])
            for local, text in texts.items()
            if "[rank" in text and (m := _LINE_BEGINS.search(text))
        }
        first = next((rank - local for local, rank in named.items()), 0)
        # Of several hosts, what the console of one tells is not true of another.
        is_theirs = len(folders) == 1 or all(ranks.get(local, rank) == rank for local, rank in named.items())
        known = ranks if is_theirs else {}
        for local, text in sorted(texts.items()):
            rank = known.get(local, named.get(local, first + local))
            numbers[local] = rank
            if rank in logs:
                continue  # another job's, of the same name
            folder = attempt / str(local)
            printed, last_words = _told_apart(text)
            recorded = _recorded(folder / "error.json")
            logs[rank] = RankLog.of(rank, printed, last_words, str(folder / "stderr.log"), recorded)
    return logs, numbers if len(folders) == 1 else {}


def _told_apart(text: str) -> tuple[str, str]:
    """Return a rank's lines without torch's prefix, and those that have it."""
    text = _BESIDE.sub(lambda prefix: f"\n{prefix[0]}", text)
    if "[rank" not in text:
        return text, ""
    lines = text.splitlines()
    printed = [line for line in lines if not line.startswith("[rank")]
    set_apart = [line for line in lines if line.startswith("[rank")]
    return "\n".join(printed), _LINE_BEGINS.sub("", "\n".join(set_apart))


def _consoles(path: Path) -> list[str]:
    """Return the texts of console logs that somebody kept beside the folders."""
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.suffix in CONSOLE_SUFFIXES]
    return [text for text in map(tail, files) if "torch/distributed/" in text or "exitcode" in text]


def _recorded(path: Path) -> Stack | None:
    """Return the exception that ``@record`` wrote down."""
    try:
        raw = read_json(path, dict[str, Any]) or {}
        stacks = tracebacks(raw["message"]["extraInfo"]["py_callstack"])
    except (KeyError, TypeError, AttributeError):
        return None  # none was written, or cut by a kill
    return replace(stacks[-1], uncaught=True) if stacks else None


def tail(path: Path) -> str:
    """Return the end of a log, below what stands at the last tracebacks before it; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_BYTES))
        end = file.read(MAX_BYTES)
        if size > MAX_BYTES:
            start = max(0, size - MAX_BYTES - SEARCHED_BYTES)
            file.seek(start)
            end = b"".join([*_earlier(file.read(size - MAX_BYTES - start)), end])
    text = end.decode(errors="replace")
    if max(map(len, end.split(b"\n"))) >= _TOO_MANY_DIGITS:
        text = _DIGITS.sub("0", text)
    if "\n\n\n" in text:
        text = _BLANKS.sub("\n\n", text)
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _earlier(log: bytes) -> Iterable[bytes]:
    """Return what stands at the last tracebacks of a log."""
    parts: list[tuple[int, int]] = []
    stop = len(log)
    while len(parts) < EARLIER and (head := log.rfind(HEAD.encode(), 0, stop)) >= 0:
        start = log.rfind(b"\n", 0, head) + 1
        parts.append((start, min(start + AROUND_BYTES, stop)))
        stop = start
    return [log[start:end] + b"\n" for start, end in reversed(parts)]
