"""Feed damaged files to the readers of run folders and logs: each answers or refuses, nothing else.

``python scripts/fuzz_runs.py --mutations 1000000 --seed 0``. A mutation is one file, of a run folder, of a
torchrun ``--log-dir``, a console, or the calls of a traced program, with one to three damages; it is read by
what ``ppwork diagnose`` and ``ppwork timeline`` read it with. To hold:

- the outcome is an answer or an error of ppwork's own: no other exception;
- no mutation takes longer than ``READ_S`` of CPU;
- the memory of the process stays flat.

Every find is told with its number, and ``--only NUMBER`` reads that one again, with the whole traceback. The
program ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
from damaged_folders import File, consoles, damaged, make_calls, make_log_dir, make_run

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.program_waits import program_waits
from ppwork.diagnosis.runs import diagnose
from ppwork.diagnosis.story import failure_story
from ppwork.errors import PPWorkError, RunFailed
from ppwork.launcher.launch import mesh_figures
from ppwork.pictures.run_table import rows_of
from ppwork.pictures.timelines import timeline
from ppwork.records.calls import read_calls
from ppwork.records.pulse import read_pulse
from ppwork.records.run import Run
from ppwork.timeline.meetings import Meetings
from ppwork.timeline.trace import chrome_trace

if TYPE_CHECKING:
    from collections.abc import Callable

READ_S = 2.0
"""CPU time that one mutation may take."""
FLAT_MB = 64.0
"""Growth of the process allowed after the first tenth."""
WEIGHTS = {"run": 3, "console": 4, "job": 1, "calls": 4}
"""How often each folder is the one that is damaged."""


@dataclass
class Findings:
    """What came of it.

    Attributes:
        outcomes: By kind of file: ``answered``, or the type of our own error.
        finds: Number of the mutation and last lines of the traceback, by place.
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    damages: Counter[str] = field(default_factory=Counter)
    finds: dict[str, tuple[int, str]] = field(default_factory=dict)
    mutations: int = 0
    slowest_s: float = 0.0
    slowest: int = -1


class Folders:
    """The undamaged folders, in memory if the machine has such a file system."""

    def __init__(self, scratch: Path) -> None:
        self.roots = {name: scratch / name for name in WEIGHTS}
        for root in self.roots.values():
            root.mkdir()
        self.files = {
            "run": make_run(self.roots["run"]), "job": make_log_dir(self.roots["job"]),
            "calls": make_calls(self.roots["calls"]), "console": consoles(),
        }  # fmt: skip
        self.readers: dict[str, Callable[[Path], None]] = {
            "run": read_run, "job": read_logs, "calls": read_traced, "console": read_logs,
        }  # fmt: skip

    def drawn(self, draw: random.Random) -> tuple[str, File]:
        """Draw a folder and one of its files; each kind of file as often as any other."""
        name = draw.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        kind = draw.choice(sorted({file.kind for file in self.files[name]}))
        return name, draw.choice([file for file in self.files[name] if file.kind == kind])

    def read(self, name: str, file: File, data: bytes) -> None:
        """Read a folder with this file damaged, and make it whole again."""
        path = self.roots[name] / ("console.log" if name == "console" else file.name)
        path.write_bytes(data)
        try:
            self.readers[name](path if name == "console" else self.roots[name])
            if file.kind in OF_A_TIMELINE:
                read_timeline(self.roots[name])
        finally:
            path.write_bytes(file.data)


OF_A_TIMELINE = ("plan", "summary", "record", "spans", "pulse")
"""Kinds of files that more than ``diagnose`` reads."""


def read_run(folder: Path) -> None:
    """Read a run folder as ``ppwork diagnose`` does."""
    found = diagnose(folder)
    msgspec.json.encode((found.text, found.to_dict()))


def read_timeline(folder: Path) -> None:
    """Read a run folder as ``ppwork ps``, ``ppwork timeline`` and a notebook do."""
    run = Run.load(folder)
    for rank in run.entries_by_rank:
        if (pulse := read_pulse(folder, rank)) is not None:
            pulse.process()
    rows_of(run)
    mesh_figures(run)
    failure_story(Run(folder, 1, RunFailed("It failed.", where={"rank": 2})))
    chrome_trace(run.entries_by_rank, run.plan)
    str(timeline(run.entries_by_rank).table)


def read_logs(path: Path) -> None:
    """Read a job's logs as ``diagnose`` does."""
    found = diagnose_job(read_job(path))
    msgspec.json.encode((found.text, found.to_dict()))


def read_traced(folder: Path) -> None:
    """Read the calls of a program as ``%%ranks`` does."""
    met = Meetings(read_calls(folder))
    stood = program_waits(met)
    if stood is not None:
        msgspec.json.encode((stood.sentence, stood.lines))


def fuzz(findings: Findings, folders: Folders, seed: int, numbers: range) -> None:
    """Read these mutations."""
    for number in numbers:
        draw = random.Random(f"{seed} {number}")  # noqa: S311  to be repeated, not to be secret
        name, file = folders.drawn(draw)
        data, done = damaged(file, draw)
        began = time.process_time()
        try:
            folders.read(name, file, data)
            outcome = "answered"
        except PPWorkError as error:
            outcome = type(error).__name__
        except Exception as error:  # noqa: BLE001  what this program looks for
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "/ppwork/" in frame.filename] or frames[-1:]
            place = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
            findings.finds.setdefault(place, (number, f"{file.kind}: {place}: {str(error)[:200]}"))
            outcome = place
        took = time.process_time() - began
        findings.mutations += 1
        findings.damages.update(done)
        findings.outcomes.setdefault(file.kind, Counter())[outcome] += 1
        if took > findings.slowest_s:
            findings.slowest_s, findings.slowest = took, number
        if took > READ_S:
            findings.finds.setdefault("slow", (number, f"{file.kind}: took {took:.1f} s of CPU"))


def memory_mb() -> float:
    """Return the memory of this process now."""
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def table(findings: Findings, wall_s: float, warm_mb: float, most_mb: float) -> str:
    """Return what came of it as lines."""
    rows = [
        f"  {kind:9} {sum(of_kind.values()):8}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in of_kind.most_common())
        for kind, of_kind in sorted(findings.outcomes.items())
    ]
    did = ", ".join(f"{name} {count}" for name, count in sorted(findings.damages.items()))
    head = (
        f"{findings.mutations} damaged files, {wall_s:.0f} s; slowest {1000 * findings.slowest_s:.0f} ms "
        f"of CPU (number {findings.slowest}); process {warm_mb:.0f} MB after a tenth, {most_mb:.0f} MB at "
        f"most; {len(findings.finds)} finds"
    )
    finds = [f"FIND {number}: {what}" for number, what in findings.finds.values()]
    return "\n".join([head, *rows, f"  damages: {did}", *finds]) + "\n"


def main() -> int:
    """Fuzz as asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--only", type=int, help="read this one again, and show its traceback")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    memory = Path("/dev/shm")  # noqa: S108  only a folder of ours in it
    scratch = Path(tempfile.mkdtemp(prefix="ppwork-", dir=memory if memory.is_dir() else None))
    findings, began = Findings(), time.monotonic()
    try:
        folders = Folders(scratch)
        if asked.only is not None:
            draw = random.Random(f"{asked.seed} {asked.only}")  # noqa: S311  to be repeated
            name, file = folders.drawn(draw)
            data, done = damaged(file, draw)
            sys.stdout.write(f"{name} {file.name}: {done}\n{data[:4000]!r}\n")
            folders.read(name, file, data)
            return 0
        tenth = max(1, asked.mutations // 10)
        warm = most = 0.0
        for start in range(asked.first, asked.first + asked.mutations, tenth):
            fuzz(
                findings, folders, asked.seed, range(start, min(start + tenth, asked.first + asked.mutations))
            )
            warm, most = warm or memory_mb(), max(most, memory_mb())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if most > warm + FLAT_MB:
        findings.finds["memory"] = (-1, f"the process grew from {warm:.0f} to {most:.0f} MB")
    if asked.json:
        finds = [what for _, what in findings.finds.values()]
        facts = {"mutations": findings.mutations, "outcomes": findings.outcomes, "damages": findings.damages}
        facts |= {"finds": finds, "peak_mb": peak, "slowest_s": findings.slowest_s}
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    else:
        sys.stdout.write(table(findings, time.monotonic() - began, warm, max(most, peak)))
    return 1 if findings.finds else 0


if __name__ == "__main__":
    sys.exit(main())
