"""A job that stands still now: the stacks of its ranks, which py-spy reads from outside.

Nothing has to be prepared, and nothing is ended: py-spy reads a process's memory, and holds it for some
milliseconds meanwhile. Each rank is looked at twice, because a job that goes on looks like one that stands.
"""

from __future__ import annotations

import contextlib
import linecache
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from ppwork.diagnosis.findings import Diagnosis
from ppwork.diagnosis.job_evidence import JobEvidence
from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import JobLogs, RankLog
from ppwork.diagnosis.report import Report
from ppwork.diagnosis.runs import diagnose
from ppwork.diagnosis.stacks import Frame, Stack, half_of
from ppwork.errors import PlanError, UnavailableError, listed, named_ranks, ranks_by_value
from ppwork.launcher.processes import environment_of, state_of
from ppwork.process import command_of, is_torchrun
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.calls import awaited_by
from ppwork.records.failure import FailureRecord, is_users

LOOK_S, APART_S = 10.0, 1.0
"""Longest time that py-spy may take for a process, and the time between two looks."""
FEW_WAKES = 3
"""Wakes of a main thread between two looks, up to which it stands."""
IMPORTLIB = "<frozen importlib"
"""So begin the files of Python's own frames of an import."""
JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
"""Variables that all ranks of a job have alike."""
MAIN = "MainThread"
MESH = ("MeshPlane", "LeaderPlane", "FollowerPlane", "CudaMeshPlane", "CudaLeaderPlane", "CudaFollowerPlane")

PLANES = ("runtime/plane.py", "runtime/stage0.py", "runtime/mesh.py")
"""Files whose public methods a loop calls; ``JOINS`` have the functions that start a rank."""
JOINS = ("worker/user_job.py", "runtime/groups.py")
OURS = f"{Path(__file__).parent.parent}/"

Ranks = Mapping[int, psutil.Process]
Stacks = dict[int, tuple[Stack, ...]]
"""By rank, those of its threads, the main thread's last; none if its program has ended."""


class _Frame(msgspec.Struct):
    """A call, as py-spy writes it."""

    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    """A thread with its calls, the innermost first."""

    frames: list[_Frame]
    thread_name: str | None = None


def diagnose_any(paths: Sequence[Path]) -> Diagnosis:
    """Diagnose what these paths have; a number that is no path, or none, is a job that stands still now.

    Raises:
        PlanError, UnavailableError: As ``runs.diagnose`` and ``diagnose_standing``.
    """
    first = paths[0] if paths else None
    if first is None or (len(paths) == 1 and str(first).isdecimal() and not first.exists()):
        return diagnose_standing(None if first is None else int(str(first)))
    return diagnose(paths)


def diagnose_standing(pid: int | None = None) -> Diagnosis:
    """Say where the ranks of a job that stands still are, and which of them the others wait for.

    Args:
        pid: Process of a rank, or one above it, such as torchrun's; ``None``: the one job of this machine.

    Raises:
        PlanError: No rank runs here, or none below that process; or several jobs run and none was named.
        UnavailableError: py-spy is not installed, or may look into none of the processes.
    """
    ranks = _ranks_of(pid)
    of_one = next(iter(ranks.values()))
    name = f"pid {pid or _parent(ranks)}"
    frozen = [rank for rank, process in ranks.items() if state_of(process) == psutil.STATUS_STOPPED]
    # py-spy would wait for one that is stopped.
    awake = {rank: process for rank, process in ranks.items() if rank not in frozen}
    stacks, moved = _look_twice(awake) if awake else ({}, [])
    if awake and not frozen and {*stacks} == {*awake} and all(map(_imports, stacks.values())):
        return _of_importing(Path(name), stacks)
    stacks = _with_peers(stacks)
    environment = environment_of(of_one)
    size = _number(environment, "WORLD_SIZE", len(ranks))
    # torchrun ends a job whose rank fails: one that is not there any more came to its end.
    first = min(ranks) - _number(environment_of(ranks[min(ranks)]), "LOCAL_RANK", 0)
    here = range(first, first + _number(environment, "LOCAL_WORLD_SIZE", len(ranks)))
    ended = [rank for rank in here if rank not in ranks or stacks.get(rank) == ()]
    places = [each[-1] for each in stacks.values() if each]
    in_messages = any(half_of(place.call, place.users) for place in places)
    logs = {
        rank: RankLog(rank, "", (), stacks.get(rank, ()), f"pid {ranks[rank].pid}" if rank in ranks else "")
        for rank in sorted({*here, *ranks})
        if not (in_messages and rank in ended)  # it may have sent and taken all that it had to
    }
    report = Report(codes=dict.fromkeys(ended, 0))
    whole = len({*here, *ranks}) == size
    job = JobLogs(Path(name), logs, report, "", whole, has_console=True, standing=True)
    if frozen:
        return _of_frozen(JobEvidence(job), {rank: ranks[rank].pid for rank in frozen}, ended)
    found = diagnose_job(job)
    seen, unknown = list(found.seen), list(found.unknown)
    if ended:
        seen.append(f"{named_ranks(ended)} came to the end of the program")
    if moved:
        seen.append(f"{named_ranks(moved)} moved within {APART_S:g} s: the job may go on")
    if blind := [rank for rank in ranks if rank not in stacks]:
        unknown.append(f"where {named_ranks(blind)} stood: py-spy could not look into its process")
    if not whole:
        unknown.append(f"where ranks of other hosts stand, as the job has {size}: ask there, too")
    return replace(found, seen=tuple(seen), unknown=tuple(unknown))


def _of_frozen(evidence: JobEvidence, pids: Mapping[int, int], gone: Sequence[int]) -> Diagnosis:
    """Say which ranks are stopped, and where the others are: what these wait for, over others, is that."""
    names = listed(f"rank {rank} (pid {pid})" for rank, pid in pids.items())
    verb, it = ("is", "it runs") if len(pids) == 1 else ("are", "they run")
    what = f"{names[0].upper()}{names[1:]} {verb} stopped (SIGSTOP, Ctrl-Z or a debugger): {it} no code."
    check = f"who stopped it? `kill -CONT {' '.join(map(str, pids.values()))}` lets it go on"
    rank = next(iter(pids))
    record = FailureRecord(
        rank=rank, error_type="Stopped", what=what, where={"rank": rank}, check_first=check, symptom=False,
        at_ns=0, traceback="",
    )  # fmt: skip
    places = {rank: evidence.line(rank) for rank in evidence.job.ranks if rank not in (*pids, *gone)}
    seen = (f"{named_ranks(gone)} left meanwhile; torchrun waits for the rest",) if gone else ()
    return Diagnosis(evidence.job.source, record, seen=seen, places=places, headline=what)


def _imports(of_rank: tuple[Stack, ...]) -> bool:
    """Say whether a rank's main thread is in an import."""
    return any(frame.file.startswith(IMPORTLIB) for stack in of_rank[-1:] for frame in stack.frames)


def _of_importing(source: Path, stacks: Stacks) -> Diagnosis:
    """Say that the job still starts: an import of torch takes a second, and on a busy machine more."""
    users = {rank: of_rank[-1].users for rank, of_rank in stacks.items()}
    places = {rank: f"at {each.file}:{each.line}" for rank, each in users.items() if each is not None}
    verb = "imports" if len(stacks) == 1 else "import"
    what = f"No hang is seen: {named_ranks([*stacks])} still {verb} modules."
    seen = tuple(f"{named_ranks(ranks)} {place}" for place, ranks in ranks_by_value(places).items())
    return Diagnosis(source, seen=seen, headline=what, advice="ask again in some seconds")


def _ranks_of(pid: int | None) -> Ranks:
    jobs: defaultdict[tuple[str, ...], dict[int, psutil.Process]] = defaultdict(dict)
    asked: set[tuple[str, ...]] = set()
    for process in psutil.process_iter():
        environment = environment_of(process)
        if not environment.get("RANK", "").isdecimal() or "WORLD_SIZE" not in environment:
            continue
        try:
            above = process.parents()
        except psutil.Error:
            continue
        if above and environment_of(above[0]).get("RANK") == environment["RANK"]:
            continue  # a worker of a rank: a loader of data, a compiler
        job = tuple(environment.get(name, "") for name in JOB)
        jobs[job][int(environment["RANK"])] = process
        if pid in (None, process.pid, *(each.pid for each in above)):
            asked.add(job)
    if not asked:
        where = "here" if pid is None else f"in process {pid} or below it"
        if pid is not None and is_torchrun(command_of(pid)):
            where += ": it is a torchrun that has no ranks yet, or none any more"
        raise PlanError(
            f"No rank of a job runs {where}.",
            check_first="`pgrep -af torchrun`, on the host where it runs and as its user",
        )
    found = [ranks for job, ranks in jobs.items() if job in asked]
    if len(found) > 1:
        shown = listed(f"{_parent(ranks)} ({_program(ranks)})" for ranks in found)
        raise PlanError(
            f"{len(found)} jobs run here: {shown}.", check_first="`ppwork diagnose PID` with one of these"
        )
    return found[0]


def _parent(ranks: Ranks) -> int:
    process = next(iter(ranks.values()))
    try:
        return int(process.ppid())
    except psutil.Error:  # it ended meanwhile
        return int(process.pid)


def _program(ranks: Ranks) -> str:
    try:
        return " ".join(next(iter(ranks.values())).cmdline()[1:])[:80]
    except psutil.Error:
        return "gone"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    return int(value) if (value := environment.get(name, "")).isdecimal() else default


def _look_twice(ranks: Ranks) -> tuple[Stacks, list[int]]:
    """Return the stacks of the ranks, and the ranks that did not stand still between two looks."""
    before, wakes_before = _look_at(ranks), _wakes(ranks)
    time.sleep(APART_S)
    wakes = _wakes(ranks)
    stacks = _look_at(ranks)
    moved = [
        rank
        for rank, of_rank in stacks.items()
        if before.get(rank) != of_rank or wakes.get(rank, 0) - wakes_before.get(rank, 0) > FEW_WAKES
    ]
    return stacks, moved


def _wakes(ranks: Ranks) -> dict[int, int]:
    """Return how often the main thread of each rank gave the processor up: who stands in a wait does not."""
    counts = {}
    for rank, process in ranks.items():
        with contextlib.suppress(psutil.Error):
            counts[rank] = process.num_ctx_switches().voluntary
    return counts


def _look_at(ranks: Ranks) -> Stacks:
    """Return the stacks of the ranks; a rank is left out if py-spy could not look into it."""
    tool = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if tool is None:
        raise UnavailableError(
            "py-spy, which looks into a running process, is not installed.", check_first="pip install py-spy"
        )
    looks = {
        rank: subprocess.Popen(
            [tool, "dump", "--json", "--pid", str(process.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, process in ranks.items()
    }
    stacks, words = {}, ""
    for rank, look in looks.items():
        try:
            out, said = look.communicate(timeout=LOOK_S)
            stacks[rank] = _stacks(out)
        except subprocess.TimeoutExpired:
            look.kill()
            look.communicate()
        except msgspec.DecodeError:
            words = words or said.decode(errors="replace").strip()
    if not stacks:
        raise UnavailableError(
            f"py-spy could look into no rank: {words.partition(chr(10))[0] or 'no answer in time'}.",
            check_first="did the ranks just start? then ask again in some seconds; else the right to trace "
            "processes: as root, or in a container with SYS_PTRACE",
        )
    return stacks


def _text(frame: _Frame) -> str:
    return linecache.getline(frame.filename, frame.line).strip()  # of what is installed on this machine


def _stacks(json: bytes) -> tuple[Stack, ...]:
    threads = msgspec.json.decode(json, type=list[_Thread])
    threads.sort(key=lambda thread: thread.thread_name == MAIN)
    return tuple(_stack(thread) for thread in threads if thread.frames)


def _stack(thread: _Thread) -> Stack:
    """Return a thread's stack; if it is in a plane, it ends there, because how that waits is our business."""
    calls = thread.frames[::-1]
    number = _call_of_plane(calls)
    frames = tuple(
        Frame(each.filename, each.line, each.name.rpartition(".")[2], _text(each))
        for each in calls[: None if number is None else number + 1]
    )
    plane = "" if number is None else calls[number].name
    return Stack(frames, "", blind=True, current=thread.thread_name == MAIN, plane=plane)


def _call_of_plane(calls: Sequence[_Frame]) -> int | None:
    """Return the number of the call of a plane below all code of the user's, outermost first."""
    users = max((number for number, each in enumerate(calls) if is_users(each.filename)), default=-1)
    for number, each in enumerate(calls[users + 1 :], start=users + 1):
        file, method = each.filename.removeprefix(OURS), each.name.rpartition(".")[2]
        if (file in PLANES and "." in each.name and method[0] != "_") or (file in JOINS and method == "join"):
            return number
    return None


def _with_peers(stacks: Stacks) -> Stacks:
    """Say for whom each rank in a call of a plane waits, if all ranks are of one pipeline."""
    main = {rank: of_rank[-1] for rank, of_rank in stacks.items() if of_rank and of_rank[-1].plane}
    senders = [rank for rank, stack in main.items() if stack.plane.startswith("Stage0Plane.")]
    takers = [rank for rank, stack in main.items() if stack.plane.partition(".")[0] in MESH]
    is_one = not set(senders) - {STAGE0_RANK} and STAGE0_RANK not in takers
    known = dict(stacks)
    for rank, stack in main.items():
        peer = None
        if is_one and rank in (*senders, *takers):
            peer = awaited_by(rank)
        called = replace(stack, plane=stack.plane.rpartition(".")[2], peer=peer)
        known[rank] = (*stacks[rank][:-1], called)
    return known
