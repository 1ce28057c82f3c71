"""Run the stages of a GPU run, each under its hard limit, and pack what they left (docs/gpu.md).

Results lie in ``--work`` and are written after every step; ``gpu.json``, ``gpu.md`` and ``gpu.tar.gz`` go to
``--out`` after every stage, from all results that lie there: a stage can be run again, or by a later call.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec.structs import replace
from stages import FOLDER, ROOT, RUN, Stage, Step, stages

from ppwork.launcher.checks import count_gpus
from ppwork.launcher.processes import end
from ppwork.pictures.tables import Table
from ppwork.process import die_with_parent, held
from ppwork.records.files import write_whole

OK, FAILED, TOO_LONG, NOT_RUN = "ok", "failed", "past its limit", "not run"
PROGRAM = "import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])"
PR_SET_CHILD_SUBREAPER = 36
CORES = 16
"""The limits are for so many; with fewer, ranks take turns, and the limits grow."""
LEAVE_S = 2.0
"""Seconds that a step's processes get to leave, after its end or after its limit."""
RESULTS = "results.json"
MOST_BYTES = 12_000_000
"""Of ``gpu.tar.gz``."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One step that was run, or the reason why not."""

    step: str
    outcome: str
    seconds: float = 0.0
    text: str = ""
    """What it showed, or why it failed or was not run."""
    figures: dict[str, Any] = {}
    left: list[str] = []
    """Processes that were still there after it had ended by itself, and were ended."""
    at: str = ""
    commit: str = ""
    """Of the code that was run: stages may have been run by several calls."""


def main() -> int:
    """Run what was asked for; 1 if any of it failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="gets gpu.json, gpu.md and gpu.tar.gz")
    parser.add_argument("--work", type=Path, help="gets everything; default: runs/gpu/BACKEND")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--stages", default="", help="such as doctor,overlap; default: all of them")
    asked = parser.parse_args()
    work = (asked.work or ROOT / "runs" / "gpu" / asked.backend).absolute()
    about = {
        "backend": asked.backend,
        "GPUs": count_gpus(),
        "cores": len(os.sched_getaffinity(0)),
        "ppwork": version("ppwork"),
        "torch": version("torch"),
        "Python": platform.python_version(),
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    table = stages(asked.backend, about["GPUs"])
    chosen = asked.stages.split(",") if asked.stages else list(table)
    if unknown := [name for name in chosen if name not in table]:
        parser.error(f"there is no stage {unknown[0]!r}; check first: {', '.join(table)}")
    # What loses its parent becomes our child: nothing that a step has started can hide from its end.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    good = True
    for name in [name for name in table if name in chosen]:
        print(name, flush=True)
        results = run_stage(table[name], work / name, max(1.0, CORES / about["cores"]))
        good = good and all(result.outcome in (OK, NOT_RUN) for result in results)
        pack({name: work / name for name in table}, asked.out, about)
    return 0 if good else 1


def commit() -> str:
    """Return which code this is; empty where there is no git or no repository."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def run_stage(stage: Stage, folder: Path, slower: float = 1.0) -> list[Result]:
    """Run the steps of a stage in a fresh folder, one after another; one that fails stops no other.

    Blocks:
        At most the stage's limit, times ``slower``, and a few seconds of clean-up.
    """
    shutil.rmtree(folder, ignore_errors=True)
    deadline = time.monotonic() + stage.limit_s * slower
    results: list[Result] = []
    for step in stage.steps:
        place = folder / re.sub(r"[^\w.=-]+", "-", step.name)
        place.mkdir(parents=True)
        result = run_step(step, place, min(step.limit_s * slower, deadline - time.monotonic()))
        print(f"  {step.name}: {result.outcome}, {result.seconds:.0f} s; {result.text}", flush=True)
        results.append(result)
        write_whole(folder / RESULTS, msgspec.json.encode(results))
    return results


def run_step(step: Step, folder: Path, limit_s: float) -> Result:
    """Run a step and read what it showed; never raises for what the step did."""
    begun = time.monotonic()
    result = Result(step=step.name, outcome=NOT_RUN, at=time.strftime("%Y-%m-%d %H:%M:%S"), commit=commit())
    if step.lacks or limit_s <= 0:
        return replace(result, text=step.lacks or "the stage's limit had passed")
    code: int | None = None
    left: list[str] = []
    for command in step.commands:
        words = [word.replace(RUN, str(folder / "run")).replace(FOLDER, str(folder)) for word in command]
        code, more = run_command(words, step.environment, folder, begun + limit_s - time.monotonic())
        left += more
        if code not in step.codes:
            break
    seconds = round(time.monotonic() - begun, 1)
    outcome = TOO_LONG if code is None else OK if code in step.codes else FAILED
    text, figures = f"no end within {limit_s:.0f} s" if code is None else said(folder, code), {}
    try:
        text, figures = step.read(folder)
    except Exception as error:  # noqa: BLE001  whatever a broken result does to its reader, the next step runs
        if outcome == OK:
            outcome, text = FAILED, f"its result does not read: {type(error).__name__}: {error}"
    return replace(result, outcome=outcome, seconds=seconds, text=text, figures=figures, left=left)


def run_command(
    command: Sequence[str], environment: dict[str, str], folder: Path, limit_s: float
) -> tuple[int | None, list[str]]:
    """Run a command to its end or to its limit, and end everything that it has started.

    Returns:
        Its exit code, ``None`` past the limit; and what did not leave after an end of its own.
    """
    with (folder / "out.txt").open("ab") as out, (folder / "log.txt").open("ab") as log:
        held_command = [*held(PROGRAM, tie=die_with_parent), *command]
        files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": log}
        process = subprocess.Popen(held_command, cwd=ROOT, env=environment, **files)
        try:
            return process.wait(max(limit_s, 0.0)), end_family()
        except subprocess.TimeoutExpired:
            process.terminate()
            return None, []
        finally:
            end_family()


def end_family() -> list[str]:
    """End all our children and theirs; return the commands of those that did not leave by themselves."""
    remained: list[str] = []
    for polite_s in (LEAVE_S, 0.0):  # one that is being killed may still start another
        family = psutil.Process().children(recursive=True)
        commands = {process.pid: command_of(process) for process in family}
        remained += [commands[process.pid] for process in end(family, polite_s)]
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # orphans that became ours
            pass
    return remained


def command_of(process: psutil.Process) -> str:
    """Return the beginning of a process's command line; empty when it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:200]
    return ""


def said(folder: Path, code: int) -> str:
    """Return the line of a log that says why: the last of a traceback, else the first, as in our errors."""
    lines = (folder / "log.txt").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    line = lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]
    return f"exit code {code}: {line[:300]}"


def pack(folders: dict[str, Path], out: Path, about: dict[str, Any]) -> None:
    """Write the table, the figures and the archive of the stages whose results lie in their folders."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / RESULTS for name, folder in folders.items()}
    read = msgspec.json.Decoder(list[Result])
    results = {name: read.decode(path.read_bytes()) for name, path in paths.items() if path.exists()}
    files = [file for name in results for file in folders[name].rglob("*") if file.is_file()]
    chosen, left_out = fitting(files, MOST_BYTES)
    commits = {result.commit for steps in results.values() for result in steps}
    about = {**about, "commit": " and ".join(sorted(commits))}
    whole = {"about": about, "stages": results, "left_out": [str(file) for file in left_out]}
    write_whole(out / "gpu.json", msgspec.json.format(msgspec.json.encode(whole), indent=1))
    write_whole(out / "gpu.md", page(about, results).encode())
    temporary = out / ".gpu.tar.gz"
    with tarfile.open(temporary, "w:gz", compresslevel=6) as archive:
        for file in (out / "gpu.json", out / "gpu.md"):
            archive.add(file, file.name)
        for file in chosen:
            archive.add(file, file.relative_to(next(iter(folders.values())).parent))
    temporary.replace(out / "gpu.tar.gz")


def fitting(files: Sequence[Path], most_bytes: int) -> tuple[list[Path], list[Path]]:
    """Return the files that fit into an archive of this size, small ones first, and those that do not."""
    room = most_bytes * 0.9  # for the table, and for the head of each file
    chosen: list[Path] = []
    for file in (by_size := sorted(files, key=lambda file: file.stat().st_size)):
        room -= len(zlib.compress(file.read_bytes()))
        if room < 0:
            break
        chosen.append(file)
    return chosen, by_size[len(chosen) :]


def page(about: dict[str, Any], results: dict[str, list[Result]]) -> str:
    """Return the table as Markdown, with what it was made on above it."""
    rows = []
    for name, steps in results.items():
        for result in steps:
            left = f"; left behind: {', '.join(result.left)}" if result.left else ""
            seconds = f"{result.seconds:.0f}" if result.seconds else ""
            rows.append((name, result.step, result.outcome, seconds, result.text[:300] + left))
    header = ", ".join(f"{name} {value}" for name, value in about.items() if value)
    return f"{header}\n\n{Table(('stage', 'step', 'outcome', 's', 'what it showed'), rows).markdown()}"


if __name__ == "__main__":
    sys.exit(main())
