"""A process that has torch warm and forks the ranks of one program after another.

Importing torch takes a second, forking from a process that has it a few milliseconds. The zygote itself never
touches a process group or a device, so what it forks starts clean. Jobs come as JSON lines on standard input,
whose end means that whoever asked is gone: then it kills what it started and leaves.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ppwork import collector
from ppwork.claims.files import begun_file
from ppwork.claims.jobs import Done, Job

if TYPE_CHECKING:
    from collections.abc import Container

PR_SET_PDEATHSIG = 1
POLL_S = 0.01
START_S = 60.0
"""A rank that has not come to its program by then is not waited for: its limit counts from here."""
STACK_S = 0.3
"""How long a rank that hung gets to write down where."""


def main() -> int:
    """Serve jobs until standard input ends."""
    with collector.importing():  # what a fork shares with us stays shared, too
        import torch  # the reason for this process
        import torch.distributed

        import ppwork.claims.rank  # noqa: F401  warm as well: each fork would read and compile it again

    torch.set_num_threads(1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    pending = b""
    while True:
        data = os.read(0, 65536)
        if not data:
            return 0
        pending += data
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            done = _run(msgspec.json.decode(line, type=Job))
            sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
            sys.stdout.flush()


def _run(job: Job) -> Done:
    start = time.monotonic()
    pids = [_fresh(job, rank) if job.fresh else _forked(job, rank) for rank in range(job.ranks)]
    codes: dict[int, int] = {}
    took: dict[int, float] = {}
    hung: set[int] = set()
    begun = 0.0
    while len(codes) < len(pids):
        for rank, pid in enumerate(pids):
            if rank not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(ended[1])
                took[rank] = time.monotonic() - start
        now = time.monotonic()
        if not begun and (now - start > START_S or _all_begun(job, codes)):
            begun = now  # a slow machine uses up no program's limit before the program begins
        late = now - begun if begun else 0.0
        alive = {rank for rank in range(job.ranks) if rank not in codes}
        if late > job.limit_s and alive - hung:
            hung |= alive
            _signal([pids[rank] for rank in alive], signal.SIGUSR1)  # they write down where they are
        if late > job.limit_s + STACK_S or _abandoned():
            _signal([pids[rank] for rank in alive], signal.SIGKILL)
        time.sleep(POLL_S)
    ranks = range(job.ranks)
    return Done([codes[r] for r in ranks], [round(took[r], 3) for r in ranks], [r in hung for r in ranks])


def _all_begun(job: Job, ended: Container[int]) -> bool:
    folder = Path(job.folder)
    return all(rank in ended or begun_file(folder, rank).exists() for rank in range(job.ranks))


def _abandoned() -> bool:
    """Say whether standard input has ended; a job that is waiting there is no end."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable)  # nobody sends a job before the last one was answered: this is the end


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)  # our own child, and not yet waited for: the pid is still its


def _forked(job: Job, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent()
        _own_streams(Path(job.folder), rank)
        from ppwork.claims.rank import run_rank

        code = run_rank(job, rank)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _fresh(job: Job, rank: int) -> int:
    command = [sys.executable, "-m", "ppwork.claims.rank", msgspec.json.encode(job).decode(), str(rank)]
    with (Path(job.folder) / f"rank{rank}.log").open("wb") as log:
        environment = {**os.environ, **job.environment}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    process.returncode = 0  # we wait for it ourselves
    return process.pid


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _own_streams(folder: Path, rank: int) -> None:
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    sys.exit(main())
