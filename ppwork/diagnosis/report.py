"""torchrun's closing report, and what our launcher writes beside it: how each rank's process ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

ENDED_BY_AGENT = (-signal.SIGTERM, -signal.SIGINT)
"""Exit codes of ranks that torchrun ended because another one had failed, or because of a Ctrl-C."""
ROOT = re.compile(r"Root Cause \(first observed failure\) ?:")
_NEAR, _MOST_ROOTS = 4096, 256
"""Characters below those words in which the rank is named, and so many of them are read, the last ones."""
_ENDED = re.compile(
    r"^.{0,80}?\brank[ \t]*:[ \t]*(\d+)(?: \(local_rank: (\d+)\))?.*\n.{0,80}?\bexitcode[ \t]*:[ \t]*(-?\d+)",
    re.MULTILINE,
)
"""Two lines of the report, one below the other; either alone may be somebody's print."""
_PID = re.compile(
    r"^.{0,80}?\brank[ \t]*:[ \t]*(\d+).*\n.{0,80}?\bexitcode[ \t]*:[ \t]*-?\d+ \(pid: (\d+)\)", re.MULTILINE
)
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
"""torchrun says so of each rank that it ends."""
_ON_ONE_LINE = re.compile(
    r"\brank ?:? ?(\d+) ?\(local[_ ]rank: ?(\d+)\)[ \t]{0,4}\n?[ \t]{0,4}(?:[\w\[\]]{1,20}: )?"
    r"exitcode ?: ?(-?\d+)"
)
"""The same two lines of a picture's text, or of a web page that lost space or line ends."""
_FIRST = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid")
"""torchrun says so of each attempt, as soon as a rank has failed; the report is of the last attempt only."""
_CHILD = re.compile(r"\(local_rank (\d+)\) FAILED \(exitcode (-?\d+)\)")
"""The same in the words of torch 1.9."""
_LOCAL_RANK = re.compile(r"--local[_-]rank=(\d+)'")
_LAUNCHERS = re.compile(
    r" exits with return code = (?P<deepspeeds>-?\d+)|' returned non-zero exit status (?P<torchs>\d+)"
    r"|' died with <Signals\.(?P<signal>SIG\w+)"
)
"""How the first process ended, of DeepSpeed's own launcher and of the first ``torch.distributed.launch``. The
command beside it is that of the process which was started last, whichever one it was that ended: it tells the
rank only where there is one process."""
_OF_LIGHTNING = re.compile(r"Child process with PID \d+ terminated with code (-?\d+)\. Forcefully")
"""Lightning's own launcher says so, behind the number of the rank that launches and not of its own."""
_SPAWNED = re.compile(r"\bprocess (\d+) terminated with (?:exit code (\d+)|signal (SIG\w+))")
"""And of ``torch.multiprocessing.spawn``."""
_SRUN = re.compile(
    r"^srun: error: \S+: tasks? ([\d,-]{1,200}): ([A-Z][\w ]*?)(?: \(core dumped\))?$", re.MULTILINE
)
"""And srun, of tasks that are ranks and that a signal ended: where each task is a torchrun, that one has a
report, and of an exit code an exception above it says more."""
_MOST_TASKS = 4096
_RECORDED = re.compile(
    r"^[ \t]*rank[ \t]*: (\d+) .*\n(?:[ \t]*(?:exitcode|error_file).*\n){1,2}[ \t]*traceback : "
    r"(Traceback .*\n(?:[ \t]+.*\n|[ \t]*\n)*)", re.MULTILINE)  # fmt: skip
"""The exception that ``@record`` handed over stands in the report itself, two columns further in."""
_OF_OURS = re.compile(
    r"^[ \t]*rank[ \t]*: (\d+) .*\n(?:[ \t]*(?:exitcode|error_file).*\n){1,2}[ \t]*traceback : "
    r"rank \d+ (.*)\n[ \t]*all of it: (ppwork diagnose .*)$", re.MULTILINE)  # fmt: skip
"""What a rank of ours handed over there, and where its records are."""
_INDENT = re.compile(r"^  ", re.MULTILINE)
_OWN = re.compile(
    r"torch[/.\\]distributed[/.\\](?:elastic|launcher|run\.py(?!:\d+\])|launch\.py)"
    r"|Sending process \d+ closing signal"
)
_AT_START = re.compile(r"^W\d{4} .*torch/distributed/run\.py:\d+\].*\n?", re.MULTILINE)
"""torchrun's warning about threads, which comes before any rank."""
_STOPPED = re.compile(
    r"SignalException: Process \d+ got signal: (\d+)|\bReceived (\d+) death signal, shutting down"
)
"""torchrun's last words, and those before it ends the ranks: it may be killed between them."""
_PAUSE = re.compile(r"^ppwork: the launcher did not run for (\d+(?:\.\d+)?) s$", re.MULTILINE)
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
        pids: Process of each rank, as far as the report names it.
        closed: Ranks that torchrun says it sent a signal to, which is only those that were still there.
        is_cut: The report ends before it says which rank was the first.
        of_one: Exit code of one of several processes, by a launcher that does not say of which; or ``None``.
        local: The console has local ranks alone, so these are numbers of one host.
    """

    codes: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    ranks: dict[int, int] = field(default_factory=dict)
    signal: int = 0
    of_one: int | None = None
    is_cut: bool = False
    pids: dict[int, int] = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    local: bool = False

    @classmethod
    def of(cls, text: str) -> Report:
        """Read the report out of what torchrun printed; empty if it printed none."""
        ended = _ENDED.findall(text) or _ON_ONE_LINE.findall(text)
        of_launchers = [*_of_launchers(text)] if not ended else []
        codes = {int(rank): int(code) for rank, _, code in ended}
        ranks = {int(local): int(rank) for rank, local, _ in ended if local}
        roots = [
            int(root[1])
            for start in [match.end() for match in ROOT.finditer(text)][-_MOST_ROOTS:]
            if (
                root := _ENDED.search(text, start, start + _NEAR)
                or _ON_ONE_LINE.search(text, start, start + _NEAR)
            )
        ]
        of_tasks: dict[int, int] = {}
        if not ended:
            # An earlier attempt, or a report that was cut off: local ranks are all that is known.
            codes = {int(local): int(code) for code, local in _FIRST.findall(text)}
            codes |= {int(local): int(code) for local, code in _CHILD.findall(text)}
            codes |= {rank: code for rank, code in of_launchers if rank == 0}
            codes |= {
                int(n): int(code) if code else -signal.Signals[name]
                for n, code, name in _SPAWNED.findall(text)
                if code or name in signal.Signals.__members__
            }
            if not codes and not _OWN.search(text):
                codes = of_tasks = dict(_of_srun(text))
            roots = list(codes)
        # Of several hosts each has a report of its own; a host that only followed had its ranks ended.
        first = next(
            (rank for rank in roots if codes.get(rank) not in ENDED_BY_AGENT), next(iter(roots), None)
        )
        stopped = _STOPPED.search(text)
        of_some = [code for rank, code in of_launchers if rank > 0]
        of_some += map(int, _OF_LIGHTNING.findall(text))
        of_one = next(iter(of_some), None) if not codes else None
        is_cut = bool(ended) and first is None
        pids = {int(rank): int(pid) for rank, pid in _PID.findall(text)}
        told = set(map(int, _CLOSED.findall(text)))
        closed = frozenset(rank for rank, pid in pids.items() if pid in told)
        number = int(stopped[1] or stopped[2]) if stopped is not None else 0
        is_local = bool(codes) and not (ended or of_tasks)
        return cls(codes, first, ranks, number, of_one, is_cut, pids, closed, is_local)

    def numbered(self, numbers: Mapping[int, int]) -> Report:
        """Return the report with the ranks that its local ones are; without those that are not known."""
        if not self.local:
            return self
        codes = {numbers[local]: code for local, code in self.codes.items() if local in numbers}
        return replace(self, codes=codes, first=numbers.get(self.first) if self.first is not None else None)

    @classmethod
    def together(cls, reports: Sequence[Report]) -> Report:
        """Return the reports of several hosts as one; a host that only followed had its ranks ended."""
        codes = {rank: code for report in reports for rank, code in report.codes.items()}
        firsts = [report.first for report in reports if report.first is not None]
        own = (rank for rank in firsts if codes.get(rank) not in ENDED_BY_AGENT)
        stopped = next((report.signal for report in reports if report.signal), 0)
        of_one = next((report.of_one for report in reports if report.of_one is not None), None)
        pids = {rank: pid for report in reports for rank, pid in report.pids.items()}
        closed = frozenset(rank for report in reports for rank in report.closed)
        first = next(own, next(iter(firsts), None))
        return cls(codes, first, {}, stopped, of_one, pids=pids, closed=closed)


def _of_launchers(text: str) -> Iterator[tuple[int, int]]:
    """Yield local rank of the command and exit code from the closing lines of other launchers."""
    for line in text.splitlines():
        if "--local" not in line or (end := _LAUNCHERS.search(line)) is None:
            continue
        rank = _LOCAL_RANK.search(line)
        if rank is not None and end["signal"] is None:
            yield int(rank[1]), int(end["deepspeeds"] or end["torchs"])
        elif rank is not None and end["signal"] in signal.Signals.__members__:
            yield int(rank[1]), -signal.Signals[end["signal"]]


def _of_srun(text: str) -> Iterator[tuple[int, int]]:
    """Yield task and exit code of srun's lines about tasks that a signal ended; it has signals in words."""
    signals = {signal.strsignal(number): -number for number in signal.Signals}
    for tasks, name in _SRUN.findall(text):
        if (ended := signals.get(name)) is None:
            continue
        for part in tasks.split(","):
            first, _, last = part.partition("-")
            if first.isdecimal() and (last or first).isdecimal():
                yield from ((task, ended) for task in range(int(first), int(last or first) + 1)[:_MOST_TASKS])


def recorded(text: str) -> dict[int, str]:
    """Return the traceback of each rank as the report shows it, of those whose program has ``@record``."""
    return {int(rank): _INDENT.sub("", shown) for rank, shown in _RECORDED.findall(text)}


def words_of_ours(text: str) -> dict[int, tuple[str, str]]:
    """Return, by rank, what ranks of ours said in the report, and the command that tells the rest."""
    return {int(rank): (said, command) for rank, said, command in _OF_OURS.findall(text)}


def attempts_of(text: str) -> list[str]:
    """Cut a console at torchrun's words that an attempt failed; several hosts in one file are not cut."""
    ends = [match.end() for match in _FIRST.finditer(text)]
    if len(ends) <= max(1, len(ROOT.findall(text))):
        return [text]
    starts = [0, *ends[:-1]]
    return [text[start:end] for start, end in zip(starts, [*ends[:-1], len(text)], strict=True)]


def words_before(text: str) -> str:
    """Return what stands on a console before torchrun's own words about a failure."""
    text = _AT_START.sub("", text)
    own = _OWN.search(text)
    return text[: text.rfind("\n", 0, own.start()) + 1] if own is not None else text


def death(code: int) -> str:
    """Say how a process ended, by its exit code.

    >>> death(7), death(-9)
    ('exited with code 7', 'was killed by SIGKILL')
    """
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return the name of a signal; of one that this system does not know, its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def killed_by_us(torchrun_log: str) -> set[int]:
    """Return the ranks that the launcher killed: their SIGKILL in torchrun's report is nobody's fault."""
    return {int(rank) for rank in _KILLED.findall(torchrun_log)}


def longest_pause_s(torchrun_log: str) -> float:
    """Return the longest time for which the launcher did not run, in seconds; 0 if it always did."""
    return max((float(pause) for pause in _PAUSE.findall(torchrun_log)), default=0.0)


def stopped_and_killed(torchrun_log: str) -> dict[int, bool]:
    """Return the ranks that were stopped when the launcher killed them.

    Returns:
        ``True`` for a rank that only outstayed the first death: that came before anybody saw it stopped.
        ``False`` for one that was killed because it did not go on.
    """
    return {int(rank): bool(late) for rank, late in _STOPPED_RANK.findall(torchrun_log)}
