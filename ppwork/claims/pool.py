"""Runs programs of claims in a few warm processes, each bounded, and reads what the ranks left. No torch."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.claims.claim import Ended, Program, RankSeen
from ppwork.claims.files import notes_file, outcome_file, stack_file
from ppwork.claims.jobs import Done, Job
from ppwork.errors import RunFailed
from ppwork.torchrun import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

START_S = 60.0
LAST_WORDS = 2000
"""Characters of a rank's output that are kept."""
_FRAME = re.compile(r'File "(.+?)", line (\d+)')


class Pool:
    """Warm processes that run programs; a context manager, and nothing is left at its end.

    Args:
        size: Programs that run at the same time.
        backend: ``gloo`` or ``nccl``: what the ranks' groups are made of.
    """

    def __init__(self, size: int, backend: str) -> None:
        self._backend = backend
        self._scratch = Path(tempfile.mkdtemp(prefix="ppwork-claims-"))
        self._idle: SimpleQueue[_Zygote] = SimpleQueue()
        self._zygotes = [_Zygote() for _ in range(size)]
        for zygote in self._zygotes:
            self._idle.put(zygote)
        self._threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for zygote in self._zygotes:
            zygote.close()
        self._threads.shutdown(cancel_futures=True)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:  # noqa: ANN401
        """Run ``call`` on a thread of this pool: as many at a time as there are warm processes."""
        return self._threads.submit(call, *args)

    def run(self, program: Program) -> list[RankSeen]:
        """Run a program and return what each rank saw.

        Raises:
            RunFailed: The warm process itself is gone (a defect of ours, not of the program).

        Blocks:
            Until its ranks have ended; at most ``limit_s`` and a second.
        """
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        job = Job(
            folder=str(folder),
            path=program.path,
            ranks=program.ranks,
            limit_s=program.limit_s,
            timeout_s=program.timeout_s,
            backend=self._backend,
            environment=dict(program.environment),
            fresh=program.fresh,
        )
        zygote = self._idle.get()
        try:
            done = zygote.run(job)
        finally:
            self._idle.put(zygote)
        seen = [_seen(folder, rank, done) for rank in range(program.ranks)]
        shutil.rmtree(folder, ignore_errors=True)
        return seen


class _Zygote:
    """One warm process, started when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job) -> Done:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  PT018 both are pipes
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            return msgspec.json.decode(process.stdout.readline(), type=Done)
        except (OSError, msgspec.DecodeError) as error:
            raise RunFailed(
                f"The process that runs claims ended (exit {process.poll()}).",
                check_first="was it killed? run the claim alone: `ppwork claims ID --show`",
            ) from error

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ppwork.claims.zygote"]
        environment = {**child_environment(1), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        self._process = process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None  # noqa: S101  a pipe
        process.stdout.readline()  # "ready", or nothing if it could not start: the job then says so
        return process

    def close(self) -> None:
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()  # the end of its input ends it and what it started
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _seen(folder: Path, rank: int, done: Done) -> RankSeen:
    notes: dict[str, Any] = {}
    if notes_file(folder, rank).exists():
        for line in notes_file(folder, rank).read_bytes().splitlines():
            notes.update(msgspec.json.decode(line, type=dict[str, Any]))
    said: dict[str, str] = {}
    if outcome_file(folder, rank).exists():
        said = msgspec.json.decode(outcome_file(folder, rank).read_bytes(), type=dict[str, str])
    log = folder / f"rank{rank}.log"
    code = done.exit_codes[rank]
    if done.hung[rank]:
        ended = Ended.HUNG
    elif code != 0 or not said:
        ended = Ended.EXITED
    else:
        ended = Ended.RAISED if said["error_type"] else Ended.RETURNED
    return RankSeen(
        ended=ended,
        notes=notes,
        error_type=said.get("error_type", ""),
        error=said.get("error", ""),
        exit_code=code,
        seconds=done.seconds[rank],
        line=said.get("line", "") or _hung_at(folder, rank),
        output=log.read_text(errors="replace")[-LAST_WORDS:] if log.exists() else "",
    )


def _hung_at(folder: Path, rank: int) -> str:
    """Return the line of the program that a rank was in when its limit passed."""
    path = stack_file(folder, rank)
    for file, number in _FRAME.findall(path.read_text(errors="replace")) if path.exists() else ():
        if "/claims/programs/" in file:
            return Path(file).read_text().splitlines()[int(number) - 1].strip()
    return ""
