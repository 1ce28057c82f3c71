"""Starts Python programs without importing torch again: it forks a process that has imported torch.

A launch of N ranks imports torch N + 1 times, 2 to 3 s of CPU time each. The warm launcher (``warm_server``)
is a process that has imported it and begun nothing: no thread, no group, no device. Its forks show the
command line and the environment that were asked for, and have the working folder, standard streams and exit
code of a process started by exec. A program is started cold if it asks for what a fork cannot have: other
variables that are read at import (``AT_IMPORT``), or a launcher with other limits, CPUs or namespaces
(``inherited``). These differences remain:

- what torch, numpy and our own modules do, print or warn about at import has happened once, earlier;
- all ranks iterate over sets of texts in one order, because their hashes have one seed;
- at its end a process does not take its modules apart (``warm_server``).

Everything dies with its owner: the warm launcher ends with the process that started it, and its forks end
with the warm launcher, and with the process that asked for them. No torch here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from ppwork.process import LIFELINE_VARIABLE, SAFE_PATH_VARIABLE, WARM_VARIABLE
from ppwork.protocol.plan import SECRET_VARIABLE, STORE_VARIABLE

AT_IMPORT = (
    "CUDA_", "DYLD_", "GLIBC_", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "LOGLEVEL", "MALLOC_", "MKL_",
    "NUMEXPR_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH",
)  # fmt: skip
"""Prefixes of variables that take effect when Python, numpy or torch is imported."""
AT_USE = frozenset({
    "PYTHONFAULTHANDLER", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_DISTRIBUTED_DEBUG", SAFE_PATH_VARIABLE,
})  # fmt: skip
"""Variables with such a prefix that are read when needed, or read again in a fork (``warm_server``)."""
LARGEST = 1 << 20
"""Most bytes of one message: a command and its environment."""
START_S = 60.0
"""Longest time for the imports of a warm launcher."""
ANSWER_S = 10.0
"""Longest time for a fork by a warm launcher: it takes some 20 ms."""
END_S = 3.0


class StartProcess(msgspec.Struct, frozen=True):
    """One process to fork; its three standard streams come along as descriptors.

    Attributes:
        command: As for ``exec``; the first word is Python.
        environment: The whole environment.
        folder: Working folder.
        inherited: What the requester inherited; the server must have inherited the same.
        seats: For torchrun: number of ranks that it will start, forked before it has a thread. Else 0.
    """

    command: list[str]
    environment: dict[str, str]
    folder: str
    inherited: dict[str, str]
    seats: int = 0


class Began(msgspec.Struct, frozen=True, tag=True):
    """The forked process exists, with its own command line; its pid descriptor comes along."""

    pid: int


class ProcessEnded(msgspec.Struct, frozen=True, tag=True):
    """The forked process has ended, or never existed.

    Attributes:
        code: Exit code; negative: the signal that ended it.
        refused: Why no process was forked.
    """

    code: int = 0
    refused: str = ""


class NotWarm(Exception):
    """A program cannot be started warm; the text says why."""


class WarmProcess:
    """A process that the warm launcher forked for us; it is used like a ``subprocess.Popen``.

    Attributes:
        pid: Its pid.
        returncode: As ``Popen``'s; ``None`` while it runs or was not waited for.
        stdin: Write end of its standard input.
    """

    def __init__(
        self,
        pid: int,
        pid_descriptor: int,
        channel: socket.socket,
        stdin: BinaryIO | None,
        command: Sequence[str],
    ) -> None:
        self.pid, self.stdin, self.args = pid, stdin, list(command)
        self.returncode: int | None = None
        self._pid_descriptor, self._channel = pid_descriptor, channel
        self._waiting = threading.Lock()
        """Held by the thread that reads the channel: until the process ends, if the thread waits for that."""
        self._lock = threading.Lock()
        """Guards the exit code and the two descriptors that are closed with it; no thread waits with it."""

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: The process still runs.

        Blocks:
            Until it has ended; at most ``timeout`` seconds.
        """
        begun = time.monotonic()
        if not self._waiting.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        try:
            if self.returncode is None:
                waiting = select.poll()
                waiting.register(self._channel, select.POLLIN)
                left_s = None if timeout is None else max(0.0, begun + timeout - time.monotonic())
                if not waiting.poll(None if left_s is None else left_s * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                code = self._code()
                with self._lock:
                    self.returncode = code
                    self._channel.close()
                    os.close(self._pid_descriptor)
        finally:
            self._waiting.release()
        return self.returncode

    def _code(self) -> int:
        try:
            message = self._channel.recv(LARGEST)
        except OSError:
            message = b""
        # No message: the warm launcher was killed, and its forks have a death signal to it.
        return msgspec.json.decode(message, type=ProcessEnded).code if message else -signal.SIGKILL

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has not ended; never to another process that got the same pid."""
        with self._lock:
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pid_descriptor, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Started = subprocess.Popen[bytes] | WarmProcess
"""A process of ours, however it was started."""


class WarmLauncher:
    """This process's own warm launcher; it ends when this process does, however that ends.

    Args:
        environment: Environment of the process that will start programs; variables that take effect at import
            are fixed here.

    Raises:
        NotWarm: The warm launcher did not start.

    Blocks:
        While torch is imported: 2 to 3 s; at most ``START_S``.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="ppwork-warm-"))
        self.address = self._folder / "socket"
        log = self._folder / "log"
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            try:
                with log.open("wb") as file:
                    self._process = subprocess.Popen(
                        [sys.executable, "-u", "-P", "-m", "ppwork.worker.warm_server", str(self.address)],
                        env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                    )  # fmt: skip
            except OSError as error:
                raise NotWarm(f"the warm launcher did not start: {error.strerror}") from error
            undo.callback(self.close)
            assert self._process.stdout is not None  # noqa: S101  a pipe
            readable, _, _ = select.select([self._process.stdout], [], [], START_S)
            if not (readable and self._process.stdout.readline()):
                words = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
                why = words[-1] if words else f"it was not ready within {START_S:g} s"
                raise NotWarm(f"the warm launcher did not start: {why}")
            undo.pop_all()

    def start(
        self, start: StartProcess, streams: tuple[int, int, int], stdin: BinaryIO | None = None
    ) -> WarmProcess:
        """Fork one process; see ``start_warm``.

        Raises:
            NotWarm: The process cannot be forked.
            ConnectionError: The warm launcher is gone.
        """
        return _ask(self.address, start, streams, stdin)

    def is_there(self) -> bool:
        """Say whether the warm launcher runs and is this process's (a forked copy of its owner has none)."""
        return self.owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the warm launcher and its forks.

        Blocks:
            Until it is gone; at most ``END_S``, and as long again if it had to be killed.
        """
        if self.owner != os.getpid():
            return
        try:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()  # the end of its input ends it and its forks
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        finally:  # even after an impatient Ctrl-C
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            shutil.rmtree(self._folder, ignore_errors=True)


_own: WarmLauncher | None = None
_starting = threading.Lock()


def start_if_warm(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: BinaryIO,
    errors: BinaryIO | None = None,
    *,
    seats: int = 0,
) -> WarmProcess | None:
    """Start a program warm; its standard input is a pipe from here and its output goes to a file.

    Args:
        command: As for ``exec``; the first word is Python.
        environment: The whole environment.
        log: Gets its output.
        errors: Gets its standard error; without it, ``log`` does.
        seats: Number of ranks that it will start, if it is torchrun.

    Returns:
        The process, or ``None`` if warm launches are not asked for (``PPWORK_WARM``).

    Raises:
        NotWarm: A warm launch was asked for and is impossible; the program has to be started cold.

    Blocks:
        Some 20 ms; with the first program also while torch is imported.
    """
    if os.environ.get(WARM_VARIABLE, "") in ("", "0"):
        return None
    if sys.platform != "linux":
        raise NotWarm(f"there is no warm launcher on {sys.platform}")
    start = StartProcess(list(command), dict(environment), str(Path.cwd()), inherited(), seats)
    reading, writing = os.pipe()
    lifeline = os.fdopen(writing, "wb", buffering=0)
    try:
        return start_warm(start, (reading, log.fileno(), (errors or log).fileno()), lifeline)
    except BaseException:
        lifeline.close()
        raise
    finally:
        os.close(reading)


def start_warm(
    start: StartProcess, streams: tuple[int, int, int], stdin: BinaryIO | None = None
) -> WarmProcess:
    """Fork one process, by this process's own warm launcher or the one that ``PPWORK_WARM`` names.

    Args:
        start: The process to start.
        streams: Descriptors of its standard input, output and error.
        stdin: The other end of its standard input; kept with the process.

    Raises:
        NotWarm: The process cannot be forked.

    Blocks:
        Some 20 ms; with the first process also while torch is imported.
    """
    shared = os.environ.get(WARM_VARIABLE, "")
    if shared not in ("", "0", "1"):
        with contextlib.suppress(FileNotFoundError, ConnectionError):  # it is gone: use our own
            return _ask(Path(shared), start, streams, stdin)
    launcher = own_launcher(start.environment)
    try:
        return launcher.start(start, streams, stdin)
    except (FileNotFoundError, ConnectionError):  # it ended since we looked
        launcher.close()
        return own_launcher(start.environment).start(start, streams, stdin)


def own_launcher(environment: Mapping[str, str]) -> WarmLauncher:
    """Return this process's warm launcher; start one if there is none or if it is gone.

    Raises:
        NotWarm: The warm launcher did not start.

    Blocks:
        While torch is imported, the first time.
    """
    global _own  # noqa: PLW0603  one for each process: it takes a hundred MB of memory
    with _starting:
        if _own is None or not _own.is_there():
            if _own is not None:
                _own.close()
            kept = {name: value for name, value in environment.items() if name not in _OF_ONE_RUN}
            _own = WarmLauncher(kept)
            atexit.register(_own.close)
        return _own


_OF_ONE_RUN = AT_USE | {LIFELINE_VARIABLE, SECRET_VARIABLE, STORE_VARIABLE, WARM_VARIABLE}
"""Variables kept from the warm launcher: a process whose environment has a run's store ends with that run."""


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that take effect when Python, numpy or torch is imported."""
    chosen = {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_IMPORT) and name not in AT_USE
    }
    return {"LOGLEVEL": "WARNING", **chosen}  # torchrun's own default


def inherited() -> dict[str, str]:
    """Return, by name, what a child keeps of its parent through ``exec``; a fork needs the same."""
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    kept = {name: status[name].strip() for name in ("Uid", "Gid", "Umask", "Cpus_allowed_list", "CapEff")}
    for name in ("ipc", "mnt", "net", "pid", "time", "user", "uts"):
        with contextlib.suppress(OSError):  # older kernels have fewer
            kept[f"{name} namespace"] = str(Path(f"/proc/self/ns/{name}").readlink())
    limits = Path("/proc/self/limits").read_text().splitlines()[1:]
    return {**kept, "niceness": str(os.nice(0)), **{line[:26].strip(): line[26:].strip() for line in limits}}


def _ask(
    address: Path, start: StartProcess, streams: tuple[int, int, int], stdin: BinaryIO | None
) -> WarmProcess:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(ANSWER_S)
        channel.connect(str(address))
        socket.send_fds(channel, [msgspec.json.encode(start)], streams)
        message, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 1)
        answer = (
            msgspec.json.decode(message, type=Began | ProcessEnded)
            if message
            else ProcessEnded(refused="it was killed")
        )
    except (FileNotFoundError, ConnectionError):
        channel.close()
        raise
    except (OSError, UnicodeError, msgspec.MsgspecError) as error:
        channel.close()
        raise NotWarm(f"the warm launcher did not answer: {error}") from error
    if isinstance(answer, ProcessEnded):
        channel.close()
        raise NotWarm(answer.refused or f"the forked process ended with code {answer.code} before it began")
    return WarmProcess(answer.pid, descriptors[0], channel, stdin, start.command)
