"""A class of machines: one line from each, and the lines of all as one table.

A line has facts about a machine and the doctor's verdicts. It has no name of a person, user, host or folder:
eight digits stand for the machine, so that a second line from it replaces the first.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ppwork.errors import PlanError
from ppwork.lab.doctor.doctor import DoctorReport, DoctorVerdict
from ppwork.pictures.tables import Cell, Table
from ppwork.version import __version__

HEAD = ("line", "system", "Python", "torch", "cores", "GB", "backends", "lessons", "to do")
LESSONS = "lessons"
"""The doctor's row that a class stands on."""
MACHINE_ID = Path("/etc/machine-id")
KEY_DIGITS = 8
MOST_BYTES = 1_000_000
"""Of a file with lines; one line has about 700."""


class ClassLine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, as one line of JSON."""

    at: str
    """When the doctor looked: UTC, to the second."""
    machine: str
    """Eight digits made from the host's name and number; nobody reads either from them."""
    system: str
    python: str
    ppwork: str
    torch: str
    """Empty: it cannot be imported."""
    cores: int
    memory_gb: float
    """All of it, in 1e9 bytes."""
    memory_free_gb: float
    backends: list[str]
    """Those that this machine can run on: ``gloo``, ``nccl``."""
    gpus: list[str]
    ready: bool
    """Whether the lessons can be run."""
    verdicts: dict[str, DoctorVerdict]
    """By the name of the doctor's row."""
    todo: dict[str, str]
    """What the doctor advises where a verdict is ``missing``, and for lessons that cannot be run."""


def class_line(report: DoctorReport, *, at: datetime | None = None) -> ClassLine:
    """Return a report as the one line that an instructor collects.

    Args:
        report: From ``doctor()``.
        at: When it was made; default: now.
    """
    machine = report.machine
    rows = [*report.here, *report.runs]
    fine = {row.what for row in report.here if row.verdict is DoctorVerdict.FINE}
    lessons = next(row for row in report.runs if row.what == LESSONS)
    return ClassLine(
        at=(at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine_key(platform.node(), _machine_id()),
        system=machine.system,
        python=machine.python,
        ppwork=__version__,
        torch=machine.probed.torch,
        cores=machine.cores,
        memory_gb=round(machine.memory_mb / 1e3, 1),
        memory_free_gb=round(machine.memory_free_mb / 1e3, 1),
        backends=[name for row, name in (("gloo", "gloo"), ("NCCL", "nccl")) if row in fine],
        gpus=[gpu.name for gpu in machine.probed.gpus],
        ready=lessons.verdict is DoctorVerdict.FINE,
        # NCCL has a row in both parts; the first one says whether it is there
        verdicts={row.what: row.verdict for row in (*report.here, *report.runs, *report.here)},
        todo={row.what: row.todo for row in rows if row.verdict is DoctorVerdict.MISSING}
        | ({} if lessons.verdict is DoctorVerdict.FINE else {LESSONS: lessons.todo}),
    )


def machine_key(host: str, number: str) -> str:
    """Return the digits that stand for a machine: the same for each look, and no name.

    >>> machine_key("annas-laptop", "") == machine_key("annas-laptop", "7")
    False
    """
    return hashlib.sha256(f"{host}\0{number}".encode()).hexdigest()[:KEY_DIGITS]


def collected(place: Path) -> dict[str, ClassLine]:
    """Return the newest line of each machine, by where it stands.

    Args:
        place: A file of lines, or a folder with such files.

    Raises:
        PlanError: The place is not there or cannot be read, has no line, or one that is not from the doctor.
    """
    newest: dict[str, tuple[str, ClassLine]] = {}
    for where, line in _lines(place):
        if line.machine not in newest or newest[line.machine][1].at <= line.at:
            newest[line.machine] = (where, line)
    if not newest:
        raise PlanError(
            f"There is no line of a machine in {place}.",
            check_first="each learner sends what `ppwork doctor --class` prints",
        )
    return dict(newest.values())


def class_table(lines: Mapping[str, ClassLine]) -> Table:
    """Return a row for each machine, those that are not ready first, and under them how many are."""
    order = sorted(lines.items(), key=lambda item: (item[1].ready, item[0]))
    return Table(HEAD, [_row(where, line) for where, line in order], below=_summary(list(lines.values())))


def _row(where: str, line: ClassLine) -> list[Cell]:
    lessons: Cell = ("ready", "green") if line.ready else ("not here", "red")
    todo = "; ".join(f"{what}: {text}" for what, text in line.todo.items() if not text.startswith("see "))
    size = [str(line.cores), f"{line.memory_gb:.1f}"]
    facts = [line.system.partition(" ")[0], line.python, line.torch or "none", *size]
    return [where, *facts, " ".join(line.backends) or "none", lessons, todo]


def _summary(lines: Sequence[ClassLine]) -> str:
    ready = sum(line.ready for line in lines)
    versions = Counter(line.torch or "none" for line in lines)
    torch = ", ".join(f"{version} on {number}" for version, number in versions.most_common())
    cores = min(line.cores for line in lines)
    return f"{ready} of {len(lines)} machines are ready; fewest cores {cores}; torch {torch}"


def _lines(place: Path) -> Iterator[tuple[str, ClassLine]]:
    """Read every line, with the name of its file and its number there."""
    try:
        files = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
        for file in files:
            with file.open("rb") as opened:
                data = opened.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                text = f"The file {file} has more than {MOST_BYTES} bytes."
                raise PlanError(text, check_first="is it the file of lines?")
            for number, line in enumerate(data.splitlines(), start=1):
                if line.strip():
                    yield f"{file.name}:{number}", _read(line, f"Line {number} of {file}")
    except OSError as error:
        raise PlanError(
            f"The lines in {place} cannot be read: {error.strerror}.",
            check_first="--join: a file or a folder",
        ) from error


def _read(line: bytes, where: str) -> ClassLine:
    try:
        return msgspec.json.decode(line, type=ClassLine)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{where} is not a line of `ppwork doctor --class`: {error}.",
            check_first="one line for each machine, as it was printed; a mail program may have broken it",
        ) from error


def _machine_id() -> str:
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""
