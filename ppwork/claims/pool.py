"""Runs programs of claims on forked ranks, each bounded, and reads what the ranks left. No torch."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from ppwork.claims.claim import Program, RankEnd, RankSeen
from ppwork.claims.jobs import BEGUN, NOTES, OUTCOME, STACK, ClaimJob, JobOutcome
from ppwork.errors import RunFailed, named_ranks
from ppwork.launcher.processes import KILL_S
from ppwork.launcher.registry import scratch_folder
from ppwork.launcher.torchrun import child_environment
from ppwork.launcher.warm import NotWarm, Started, StartProcess, WarmLauncher, inherited

POLL_S = 0.01
START_S = 60.0
"""A rank that has not come to its program by then is not waited for: its limit counts from here."""
STACK_S = 0.3
"""How long a rank that hung gets to write down where."""
LAST_WORDS = 2000
"""Characters of a rank's output that are kept."""
_FRAME = re.compile(r'File "(.+?)", line (\d+)')


class Pool:
    """Runs programs on ranks forked by a warm launcher; a context manager, and nothing is left at its end.

    Args:
        size: Programs that run at the same time.
        backend: ``gloo`` or ``nccl``: what the ranks' groups are made of.
    """

    def __init__(self, size: int, backend: str) -> None:
        self._backend = backend
        self._stack = ExitStack()
        self._scratch = self._stack.enter_context(scratch_folder())
        self._threads = ThreadPoolExecutor(size)
        self._stack.callback(self._threads.shutdown, cancel_futures=True)
        self._environment = {**child_environment(1), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
        self._starting = threading.Lock()
        self._launcher: WarmLauncher | None = None
        self._ended = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._stack, self._starting:  # all of it also after an impatient Ctrl-C
            self._ended = True
            if self._launcher is not None:
                self._launcher.close()

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:  # noqa: ANN401
        """Run ``call`` on a thread of this pool."""
        return self._threads.submit(call, *args)

    def run(self, program: Program) -> list[RankSeen]:
        """Run a program and return what each rank saw.

        Raises:
            RunFailed: The warm launcher is gone or stands still (a defect of ours, not of the program).

        Blocks:
            While torch is imported, the first time. Then until its ranks have ended: at most ``START_S``
            until all have begun, ``limit_s`` and ``STACK_S`` from there, and a few seconds where they do not
            end when they are killed.
        """
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        job = ClaimJob(program, str(folder), self._backend)
        processes: list[Started] = []
        # Before the clock starts: what it imports when it is first asked for is not the program's time.
        launcher = None if program.fresh or sys.platform != "linux" else self._warm()
        start = time.monotonic()
        try:
            for rank in range(program.ranks):
                processes.append(self._start(job, rank, launcher))  # noqa: PERF401  an error midway ends those before
            done = self._awaited(job, processes, start)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
            end = time.monotonic() + KILL_S
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
        ranks = [_seen(folder, rank, done) for rank in range(program.ranks)]
        shutil.rmtree(folder, ignore_errors=True)
        return ranks

    def _start(self, job: ClaimJob, rank: int, launcher: WarmLauncher | None) -> Started:
        """Fork a rank; without a launcher, where it shall be fresh or no fork can be had, it is exec'd."""
        words = ["-m", "ppwork.claims.rank", msgspec.json.encode(job).decode(), str(rank)]
        command = [sys.executable, *words]
        with (Path(job.folder) / f"rank{rank}.log").open("wb") as log, Path(os.devnull).open("rb") as null:
            if launcher is not None:
                start = StartProcess(command, self._environment, str(Path.cwd()), inherited())
                try:
                    return launcher.start(start, (null.fileno(), log.fileno(), log.fileno()))
                except (NotWarm, OSError) as error:
                    raise self._gone() from error
            environment = {**self._environment, **job.program.environment}
            return subprocess.Popen(command, env=environment, stdin=null, stdout=log, stderr=log)

    def _warm(self) -> WarmLauncher:
        with self._starting:
            if self._ended:
                raise RunFailed("The claims were stopped.")
            if self._launcher is None:
                try:
                    self._launcher = WarmLauncher(self._environment)
                except NotWarm as error:
                    raise self._gone() from error
            return self._launcher

    @staticmethod
    def _gone() -> RunFailed:
        return RunFailed(
            "The process that forks the ranks of claims ended, or forks none.",
            check_first="was it killed? run the claim alone: `ppwork claims ID --show`",
        )

    def _awaited(self, job: ClaimJob, processes: list[Started], start: float) -> JobOutcome:
        ranks, limit_s = range(job.program.ranks), job.program.limit_s
        took: dict[int, float] = {}
        hung: set[int] = set()
        begun = killed = 0.0
        while len(took) < len(processes):
            now = time.monotonic()
            for rank, process in enumerate(processes):
                if rank not in took and process.poll() is not None:
                    took[rank] = now - start
            if not begun and (now - start > START_S or _all_begun(job, took)):
                begun = now  # a slow machine uses up no program's limit before the program begins
            late = now - begun if begun else 0.0
            alive = {rank for rank in ranks if rank not in took}
            if late > limit_s and alive - hung:
                hung |= alive
                for rank in alive:
                    processes[rank].send_signal(signal.SIGUSR1)  # they write down where they are
            if late > limit_s + STACK_S or self._ended:
                killed = killed or now
                for rank in alive:
                    processes[rank].kill()
            if killed and alive and now - killed > KILL_S:
                if self._launcher is not None:  # whoever does not tell is of no use to the next one
                    self._launcher.close()
                untold = named_ranks(sorted(alive))
                raise RunFailed(
                    f"A claim's program was killed, and nobody told that {untold} had ended.",
                    check_first="was the process that forked them stopped (SIGSTOP)? is the machine full?",
                )
            time.sleep(POLL_S)
        if self._launcher is not None and not self._launcher.is_there():
            raise self._gone()  # what it forked was killed with it, which says nothing about the program
        codes = [process.returncode or 0 for process in processes]
        return JobOutcome(codes, [round(took[rank], 3) for rank in ranks], [rank in hung for rank in ranks])


def _all_begun(job: ClaimJob, ended: Container[int]) -> bool:
    folder = Path(job.folder)
    return all(rank in ended or (folder / BEGUN.format(rank)).exists() for rank in range(job.program.ranks))


def _seen(folder: Path, rank: int, done: JobOutcome) -> RankSeen:
    notes: dict[str, Any] = {}
    if (noted := folder / NOTES.format(rank)).exists():
        for line in noted.read_bytes().splitlines():
            notes.update(msgspec.json.decode(line, type=dict[str, Any]))
    outcome: dict[str, str] = {}
    if (told := folder / OUTCOME.format(rank)).exists():
        outcome = msgspec.json.decode(told.read_bytes(), type=dict[str, str])
    log = folder / f"rank{rank}.log"
    code = done.exit_codes[rank]
    if done.hung[rank]:
        ended = RankEnd.HUNG
    elif code != 0 or not outcome:
        ended = RankEnd.EXITED
    else:
        ended = RankEnd.RAISED if outcome["error_type"] else RankEnd.RETURNED
    return RankSeen(
        ended=ended,
        notes=notes,
        error_type=outcome.get("error_type", ""),
        error=outcome.get("error", ""),
        exit_code=code,
        seconds=done.seconds[rank],
        line=outcome.get("line", "") or _hung_at(folder, rank),
        output=log.read_text(errors="replace")[-LAST_WORDS:] if log.exists() else "",
    )


def _hung_at(folder: Path, rank: int) -> str:
    """Return the line of the program that a rank was in when its limit passed."""
    path = folder / STACK.format(rank)
    for file, number in _FRAME.findall(path.read_text(errors="replace")) if path.exists() else ():
        if "/claims/programs/" in file:
            return Path(file).read_text().splitlines()[int(number) - 1].strip()
    return ""
