"""The warm launcher: a process that has imported torch and forks programs; ``warm`` starts it.

It stays as an import leaves it: one thread, no process group, no device. A request comes over a Unix socket
and brings the standard streams. The forked child leaves the loop, becomes the program as ``python -m``,
``-c`` or a script would, and ends as Python ends.

torchrun is a program like any other, but its ranks are forked, too: before torchrun has a thread, it forks as
many children as it will start ranks. Such a *seat* is already torchrun's child and leads its own session. It
waits until torchrun's agent starts a rank, and then becomes that rank: one of ours, or a user's script.
Any program that is not this Python with ``-m``, ``-c`` or a script is started by exec, as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import functools
import importlib
import multiprocessing.process
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Container, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ppwork import process
from ppwork.launcher.shown_command import show_as
from ppwork.launcher.warm import (
    ANSWER_S,
    LARGEST,
    Began,
    ProcessEnded,
    StartProcess,
    inherited,
    read_at_import,
)
from ppwork.process import SAFE_PATH_VARIABLE, became, die_with_parent

RANK_TO_BE = "(a rank to be)"
"""Last word of a seat's command line, until the seat has become a rank."""
POLL_S = 0.01


def main(address: str) -> None:
    """Serve until standard input ends; in a forked child: be the program, and return or raise as it does."""
    with _dying_with_owner(), process.importing():
        _import_all()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise SystemExit(f"the imports left {threads} threads: a fork of this process would not be safe")
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is meant for the programs and for our owner, which goes on
    server = _Server(address)
    os.write(1, b"ready\n")
    start = server.serve()
    if start is None:
        shutil.rmtree(Path(address).parent, ignore_errors=True)  # our owner may have been killed
        os._exit(0)
    _leave(_run(_seated(start) if start.seats else start))


class _dying_with_owner:  # noqa: N801  reads as a function does
    """Inside, the end of standard input kills this process; it needs no thread, because a fork follows."""

    def __enter__(self) -> None:
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO, which kills
        readable = selectors.DefaultSelector()
        readable.register(0, selectors.EVENT_READ)
        if readable.select(0):  # it had ended before
            os._exit(0)
        readable.close()

    def __exit__(self, *exc_info: object) -> None:
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) & ~os.O_ASYNC)


def _import_all() -> None:
    """Import what torchrun, our ranks and the reference import, so that forks share it."""
    import torch

    for name in ("encodings.idna", "numpy.ctypeslib", "safetensors.torch", "torch.distributed.run"):
        importlib.import_module(name)
    importlib.import_module("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
    for name in (
        "claims.rank", "records.flight", "runtime", "stage", "worker.clock_exchange", "worker.collectives",
        "worker.digests", "worker.injectors.choose", "worker.loops", "worker.main", "worker.reference",
        "worker.role", "worker.script", "workloads.denoiser", "workloads.synthetic",
    ):  # fmt: skip
        importlib.import_module(f"ppwork.{name}")
    torch.set_num_threads(1)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        # At exit torch removes its 134 operator libraries from the dispatcher, one by one, and so writes to a
        # sixth of the memory that a fork shares: 25 ms, as much as the fork and the rest of its exit.
        finalizer.atexit = False
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    if not hasattr(SubprocessHandler, "_popen"):
        raise SystemExit(f"torch {torch.__version__} starts ranks in a way that cannot be replaced by a fork")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise SystemExit("the imports began to use CUDA, which does not survive a fork")


class _Server:
    """Takes requests, forks, and reports exit codes; one thread."""

    def __init__(self, address: str) -> None:
        self._fixed = {**inherited(), **read_at_import(os.environ)}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        self._events = selectors.DefaultSelector()
        self._events.register(0, selectors.EVENT_READ, self._owner_is_gone)
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self._children: dict[socket.socket, tuple[int, int]] = {}
        """Pid and pid descriptor of each child, by the channel of its requester."""

    def serve(self) -> StartProcess | None:
        """Return ``None`` when the owner is gone; in a forked child: the program to become."""
        while True:
            # One at a time: an event may close the file of the next one.
            key, _ = self._events.select()[0]
            outcome = key.data(key.fileobj)
            if outcome is not None:
                return outcome or None

    def _owner_is_gone(self, _: object) -> bool:
        return False

    def _accept(self, _: object) -> None:
        channel, _ = self._listener.accept()
        self._events.register(channel, selectors.EVENT_READ, self._hear)

    def _hear(self, channel: socket.socket) -> StartProcess | None:
        """Fork the requested program; a closed channel ends its process. In the child: return the program."""
        message, streams = b"", list[int]()
        with contextlib.suppress(OSError):
            message, streams, _, _ = socket.recv_fds(channel, LARGEST, 3)
        if not message:
            self._events.unregister(channel)
            if channel in self._children:
                signal.pidfd_send_signal(self._children[channel][1], signal.SIGKILL)
            else:
                channel.close()
            return None
        try:
            start = msgspec.json.decode(message, type=StartProcess)
            if refused := self._refusal(start):
                self._send(channel, ProcessEnded(refused=refused))
                return None
            pid = os.fork()
            if pid == 0:
                return self._in_child(channel, streams, start)
            descriptor = os.pidfd_open(pid)
            self._children[channel] = pid, descriptor
            self._events.register(descriptor, selectors.EVENT_READ, lambda _: self._reap(channel))
        except (OSError, msgspec.MsgspecError) as error:
            self._send(channel, ProcessEnded(refused=f"the warm launcher could not fork: {error}"))
        finally:
            for stream in streams:
                os.close(stream)
        return None

    def _refusal(self, start: StartProcess) -> str:
        if _form(start.command) is None:
            return f"`{' '.join(start.command[:3])} ...` is not this Python with -m, -c or a script"
        wanted = {**start.inherited, **read_at_import(start.environment)}
        other = sorted({name for name, _ in self._fixed.items() ^ wanted.items()})
        return f"not as in the warm launcher: {', '.join(other)}" if other else ""

    def _reap(self, channel: socket.socket) -> None:
        pid, descriptor = self._children.pop(channel)
        self._events.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._send(channel, ProcessEnded(os.waitstatus_to_exitcode(status)))
        with contextlib.suppress(KeyError):  # the requester has gone
            self._events.unregister(channel)
        channel.close()

    @staticmethod
    def _send(channel: socket.socket, answer: Began | ProcessEnded) -> None:
        with contextlib.suppress(OSError):  # the requester has gone; its channel's end will say so
            channel.send(msgspec.json.encode(answer))

    def _in_child(self, channel: socket.socket, streams: list[int], start: StartProcess) -> StartProcess:
        """Take over streams, folder, environment and command line; tell the requester that it has begun."""
        server = os.getppid()
        for key in list(self._events.get_map().values()):
            if key.fd not in (0, channel.fileno()):
                os.close(key.fd)
        self._events.close()
        try:
            die_with_parent(server)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            _settle(start)
            with contextlib.closing(channel):
                own = os.pidfd_open(os.getpid())
                socket.send_fds(channel, [msgspec.json.encode(Began(os.getpid()))], [own])
                os.close(own)
        except BaseException as error:  # noqa: BLE001
            self._send(channel, ProcessEnded(refused=f"the forked process could not begin: {error!r}"))
            os._exit(1)
        return start


def _settle(start: StartProcess) -> None:
    """Give this process what ``exec`` would: signals, folder, environment, command line, a random state."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(start.folder)
    # A process that multiprocessing spawns looks for the program there, if the program's path is relative.
    vars(multiprocessing.process)["ORIGINAL_DIR"] = start.folder
    os.environ.clear()
    os.environ.update(start.environment)
    show_as(start.command, start.environment)
    if start.environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if torch := sys.modules.get("torch"):
        torch.distributed.set_debug_level_from_env()  # as torch's import does
    importlib.invalidate_caches()  # a stage may have been written since the import
    if "numpy.random" in sys.modules:
        sys.modules[
            "numpy.random"
        ].seed()  # Python reseeds its own generator, and torch's begins with a fixed seed


class _Seat:
    """A rank to be: torchrun's child and leader of its own session, seen from torchrun.

    Attributes:
        pid: Pid of the waiting seat, and then of the rank.
        returncode: As in ``subprocess.Popen``.
    """

    def __init__(self, pid: int, channel: socket.socket, args: tuple[str, ...] = ()) -> None:
        self.pid, self.args, self._channel = pid, args, channel
        self.returncode: int | None = None

    def begin(self, args: tuple[str, ...], environment: Mapping[str, str], streams: list[int]) -> None:
        """Make the seat become a rank.

        Raises:
            OSError: The seat is gone, or did not answer.
        """
        self.args = args
        start = StartProcess(list(args), dict(environment), str(Path.cwd()), {})
        self._channel.settimeout(ANSWER_S)
        socket.send_fds(self._channel, [msgspec.json.encode(start)], streams)
        if not self._channel.recv(LARGEST):
            raise OSError("it ended before it began")
        self._channel.close()

    def leave_empty(self) -> None:
        """End the seat: no rank will use it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # our child, not yet waited for: the pid is still its own
        os.waitpid(self.pid, 0)

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs.

        Blocks:
            Until it has ended; at most ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_S)
        return code


def _seated(torchrun: StartProcess) -> StartProcess:
    """Fork torchrun's ranks to be; return the program of this process: torchrun, or in a seat a rank."""
    agent = os.getpid()
    seats: dict[int, _Seat] = {}
    for number in range(torchrun.seats):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:
            sys.stderr.write(f"ppwork: rank {number} is started cold: {error}\n")
            break
        if pid == 0:
            ours.close()
            for seat in seats.values():
                seat._channel.close()
            return _wait_to_begin(theirs, agent, number, torchrun)
        theirs.close()
        seats[number] = _Seat(pid, ours)
    _start_ranks_in(seats)
    return torchrun


def _wait_to_begin(channel: socket.socket, agent: int, number: int, torchrun: StartProcess) -> StartProcess:
    os.setsid()  # as torchrun's agent does for each rank: Ctrl-C goes to torchrun, which ends its ranks
    die_with_parent(agent)
    # On one host a rank's number is its seat's number, so the seat shows it from the start.
    show_as([sys.executable, "-u", "-m", "ppwork", RANK_TO_BE], {**torchrun.environment, "RANK": str(number)})
    with contextlib.closing(channel):
        message, streams, _, _ = socket.recv_fds(channel, LARGEST, 2)
        if not message:
            os._exit(0)
        for target, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, target)
            os.close(stream)
        start = msgspec.json.decode(message, type=StartProcess)
        _settle(start)
        channel.send(b"begun")
    return start


def _start_ranks_in(seats: dict[int, _Seat]) -> None:
    """Let torchrun's agent use the seats for programs that a fork can become; it starts others as usual."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
        SubprocessHandler,
    )

    cold = SubprocessHandler._popen

    def popen(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> Any:  # noqa: ANN401  torch's own
        seat = seats.pop(handler.local_rank_id, None)
        if seat is None:
            return cold(handler, args, env)
        if _form(list(args)) is not None:
            files = (handler._stdout, handler._stderr)
            streams = [file.fileno() if file else number for number, file in enumerate(files, 1)]
            try:
                seat.begin(args, env, streams)
            except (OSError, UnicodeError) as error:
                sys.stderr.write(f"ppwork: rank {handler.local_rank_id} is started cold: {error}\n")
            else:
                return seat
        seat.leave_empty()
        return cold(handler, args, env)

    SubprocessHandler._popen = popen  # type: ignore[method-assign,assignment]


def _form(command: list[str]) -> tuple[str, str, list[str]] | None:
    """Return ``-m``, ``-c`` or nothing, then its argument and the rest; ``None`` for any other command."""
    if not command or command[0] != sys.executable:
        return None
    words = list(dropwhile({"-u", "-P"}.__contains__, command[1:]))  # this process has both flags, too
    match words:
        case ["-m" | "-c" as option, what, *arguments]:
            return option, what, arguments
        case [script, *arguments] if not script.startswith("-"):
            return "", script, arguments
    return None


def _run(start: StartProcess) -> int:
    """Run the program as Python would; return the exit code that Python would use."""
    form = _form(start.command)
    assert form is not None  # noqa: S101  the server has refused any other form
    # If Python runs a script, there are no frames of ``runpy`` above it.
    above = {__file__} if form[0] else {__file__, runpy.run_path.__code__.co_filename}
    sys.orig_argv = list(start.command)
    # Code that asks whether the hook is Python's own must hear that it is.
    sys.excepthook = sys.__excepthook__ = functools.partial(_without_frames, above, sys.__excepthook__)
    became()
    try:
        _become(*form, start.folder)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt as error:
        sys.excepthook(type(error), error, error.__traceback__)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _become(option: str, what: str, arguments: list[str], folder: str) -> None:
    if not os.environ.get(SAFE_PATH_VARIABLE):
        sys.path.insert(0, {"-m": folder, "-c": ""}.get(option, str(Path(what).resolve().parent)))
    match option:
        case "-m":
            sys.argv = ["-m", *arguments]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        case "-c":
            sys.argv = ["-c", *arguments]
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), module.__dict__)  # noqa: S102  -c does this
        case _:
            sys.argv = [what, *arguments]
            runpy.run_path(what, run_name="__main__")


def _leave(code: int) -> NoReturn:
    """End as Python does, but do not take its modules apart.

    A fork shares its parent's memory until it writes to it, and freeing torch writes to all of it: 0.4 s for
    nothing. So the destructors of objects that a module still holds, such as a process group that was not
    destroyed, do not run. Destructors of the program's own variables do.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, a closed stream, or the program's own object
            stream.flush()
    os._exit(code)


def _without_frames(
    files: Container[str],
    show: Callable[[type[BaseException], BaseException, types.TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Show an error as Python does, without the first frames of its traceback that are in these files."""
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    show(kind, error, trace)


if __name__ == "__main__":
    main(sys.argv[1])
