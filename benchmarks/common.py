"""What all benchmarks share: a quiet machine or a busy one, the header that says which, tables, files.

CPU time is counted, not sampled: what all processes of the machine used while we measured, less what this
process and its ended children used, is what others took.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from ppwork.launcher.torchrun import torchrun
from ppwork.records.files import write_whole
from ppwork.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
BUSY_SHARE = 0.15
"""Of all cores; when others take more, a figure is repeated, and marked if that does not help."""
LOOK_S = 0.5
WAIT_S = 60.0
"""Longest wait for a quiet machine before one measurement."""
REPEATS = 2
"""Times that a measurement is done again because others took too much."""

LOOP = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
while True: pass
"""
"""A busy process; its standard input ends when we do, however that happens: no loop outlives us."""


@dataclass
class Others:
    """What other processes use; a context manager around a measurement.

    Attributes:
        share: Of all cores, in 0..1, known at the end of the block.
    """

    share: float = 0.0
    _begun: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), init=False)

    def __enter__(self) -> Others:
        self._begun = _clocks()
        return self

    def __exit__(self, *exc_info: object) -> None:
        wall, busy, own = (now - then for now, then in zip(_clocks(), self._begun, strict=True))
        self.share = max(0.0, busy - own) / max(wall * (psutil.cpu_count() or 1), 1e-9)


def quiet_at_last(wait_s: float = WAIT_S) -> bool:
    """Wait until others are quiet; false if they never were."""
    deadline = time.monotonic() + wait_s
    while True:
        with Others() as others:
            time.sleep(LOOK_S)  # the length of a look, not a wait to be ready
        if others.share < BUSY_SHARE:
            return True
        if time.monotonic() > deadline:
            return False


def measured_quietly(measure: Callable[[int], Any], wait_s: float = WAIT_S) -> tuple[Any, float]:
    """Measure on a quiet machine.

    Args:
        measure: Gets the number of the try, from 0.
        wait_s: Longest wait before each try.

    Returns:
        The outcome of the first quiet try, else of the last; and the share that others took meanwhile.
    """
    for attempt in range(REPEATS + 1):
        quiet_at_last(wait_s)
        with Others() as others:
            outcome = measure(attempt)
        if others.share < BUSY_SHARE:
            break
    return outcome, round(others.share, 3)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[list[int]]:
    """Keep this many processes in an endless loop while the body runs.

    Args:
        processes: How many; each takes a core if there is one.

    Yields:
        Their pids.
    """
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", LOOP], stdin=subprocess.PIPE))
            for _ in range(processes)
        ]
        try:
            yield [process.pid for process in started]
        finally:
            for process in started:
                process.kill()


def machine() -> dict[str, Any]:
    """Return the versions and the machine that a figure belongs to."""
    return {
        "ppwork": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def measured_by_ranks(script: str, *arguments: str, ranks: int, limit_s: float) -> Any:  # noqa: ANN401
    """Run a benchmark's own file with ``--worker OUT`` as ranks; return what rank 0 wrote to OUT, as JSON.

    Raises:
        SystemExit: The job failed; the end of its log is the message.
    """
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        out, log = Path(scratch, "measured.json"), Path(scratch, "log")
        program = [str(Path(script).resolve()), "--worker", str(out), *arguments]
        # Ranks have a safe path, on which the folder of a script is not.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        code = torchrun(program, ranks=ranks, log=log, limit_s=limit_s)
        if code != 0:
            raise SystemExit(f"the job ended with {code}:\n{log.read_text()[-4000:]}")
        return msgspec.json.decode(out.read_bytes())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a markdown table; numbers with three digits after the point, nothing as ``-``."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def results_folder(text: str) -> Path:
    """Return the folder for results, made now: a measurement of minutes is not lost at its end.

    Raises:
        argparse.ArgumentTypeError: It is no folder and cannot become one.
    """
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} can be no folder for results: {error.strerror}") from error
    return folder


def report(name: str, title: str, parts: Sequence[str], data: dict[str, Any], folder: Path) -> str:
    """Write ``NAME.md`` and ``NAME.json`` with the machine in both; return the markdown."""
    here = machine()
    header = ", ".join(f"{key} {value}" for key, value in here.items())
    text = "\n\n".join([f"# {title}", header, *parts]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.md", text.encode())
    encoded = msgspec.json.encode({"machine": here, **data})
    write_whole(folder / f"{name}.json", msgspec.json.format(encoded, indent=1))
    return text


def described(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's own words as they stand."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def of_ranks(text: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser for a benchmark that runs its own file as ranks (``measured_by_ranks``)."""
    parser = described(text)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--results", type=results_folder, default=RESULTS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


def by(rows: list[dict[str, Any]], name: str) -> dict[Any, list[dict[str, Any]]]:
    """Group rows by one of their figures."""
    return {
        value: [row for row in rows if row[name] == value] for value in sorted({row[name] for row in rows})
    }


def percent(share: float | None) -> str | None:
    """Return a share with its sign."""
    return None if share is None else f"{share:+.1%}"


def _clocks() -> tuple[float, float, float]:
    """Return wall time, CPU time used by everybody, and by this process with its ended children."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Guests are counted in user and nice already.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    own = os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    return time.monotonic(), sum(times) - idle - guests, mine


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
