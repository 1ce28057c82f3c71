"""Runs programs under torchrun on this machine: starts, follows, and always cleans up. No torch here.

The machine is alone, or one of several hosts whose torchruns meet (``Rendezvous``).

Clean-up has three layers: the ranks hold a lifeline to this process and a death signal to torchrun
(``process``); we ask torchrun to leave, and wait; and we kill what remains, by recorded process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from ppwork.launcher.processes import KILL_S, POLL_S, end, end_orphans, family_of
from ppwork.launcher.registry import registered, scratch_folder
from ppwork.launcher.torchrun_watch import LEAVE_S, TorchrunWatch, ask_for_stacks
from ppwork.launcher.warm import NotWarm, Started, start_if_warm
from ppwork.process import (
    LIFELINE_VARIABLE,
    PAST_LIMIT,
    SAFE_PATH_VARIABLE,
    TORCHRUN_HUNG,
    TORCHRUN_STOPPED,
    held,
    hold_agent,
)
from ppwork.protocol.plan import SECRET_VARIABLE, STORE_VARIABLE

TORCHRUN = """\
import socket
import sys
from ppwork import process
with process.importing():
    from torch.distributed.elastic.rendezvous import api, dynamic_rendezvous
    from torch.distributed.run import main
dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("", 0))
api.get_free_port = lambda: held.getsockname()[1]
main()
"""
"""torchrun, to be ``held``: it takes seconds to start ranks, and must not if we are gone by then.

Each step of its rendezvous logs the name of its method, even if that log is off. torch finds the name by the
source of every frame on the stack: 0.2 s of CPU time, most of what torchrun takes once it is imported.

torch gets MASTER_PORT by a bind to port 0 that it closes again, and rank 0 listens a second later. In that
second another process may get the same port, and rank 0 ends with "address already in use". Here torchrun
stays bound: the kernel gives such a port to nobody who asks for any, and rank 0, which names it, may still
listen, since both sockets have SO_REUSEADDR and this one never listens.
"""
STATIC_PORT = 29400
"""torchrun's own default, for several hosts that meet at the first host's address."""
LISTENING = """\
import functools
from ppwork import process
with process.importing():
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous as static
static.TCPStore = functools.partial(static.TCPStore, master_listen_fd={listening})
"""
"""Goes before ``TORCHRUN`` on the first of several hosts: the store takes a socket that is bound to one
address; without the socket it would listen on all addresses."""
POLITE_S = 1.0
"""Seconds that torchrun and its ranks get to leave before we kill them."""
STORE, SECRET = "store", "secret"
"""Names of two files in the run's scratch folder: the store by which the ranks of one host meet, and the
secret of a run over several hosts."""
ENDINGS = {
    PAST_LIMIT: "the run passed its limit and was stopped",
    TORCHRUN_STOPPED: "torchrun was stopped (SIGSTOP) and did not go on; the run was ended",
    TORCHRUN_HUNG: "torchrun did not leave after its ranks and was ended",
}
"""Texts for the log, by our own exit code."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the torchruns of several hosts meet: the static rendezvous, which runs no code that it receives.

    Attributes:
        hosts: Number of torchruns.
        host: Number of this torchrun.
        address: Address of the store, which is on the first host.
        port: TCP port of the store.
        own: Address of this host in the ranks' network.
        interface: Network interface of this host that has the address ``own``.
        run_id: The same for all torchruns.
        start_s: Seconds in which all have to come.
        secret: The run's secret, by which ranks prove themselves. It is in a file that only this user can
            read.
        listening: The first host's bound socket; it is closed here once torchrun has it.
    """

    hosts: int
    host: int
    address: str
    port: int
    own: str
    interface: str
    run_id: str
    start_s: float
    secret: bytes
    listening: socket.socket | None = None


def torchrun(
    program: Sequence[str],
    *,
    ranks: int,
    log: Path,
    limit_s: float,
    threads: int = 1,
    freeze_s: float = 5.0,
    watch: Callable[[], None] | None = None,
    warm: bool = True,
    meeting: Rendezvous | None = None,
) -> int:
    """Run a program as this many ranks and wait for its end; meanwhile ``ppwork ps`` lists it.

    Once one rank has died badly, the others get a second to write their records; then they are killed.

    Args:
        program: What torchrun starts: a script and its arguments, or ``-m`` and a module. It should call
            ``process.hold_if_asked()`` first, so that it never outlives us.
        ranks: Number of processes.
        log: Gets the output of torchrun and the ranks; its folder is the run's name on the list.
        limit_s: Hard limit, in seconds.
        threads: ``OMP_NUM_THREADS`` of each rank.
        freeze_s: Seconds that torchrun may be stopped while we run; then the program is ended.
        watch: Called about every 50 ms meanwhile, and once after the end.
        warm: Let torchrun and its ranks be forked if ``PPWORK_WARM`` asks for that; never with CUDA.
        meeting: Rendezvous with the torchruns of other hosts; default: this machine alone, over loopback
            only.

    Returns:
        torchrun's exit code, negative for the signal that ended it; or a key of ``ENDINGS``: ``PAST_LIMIT``,
        ``TORCHRUN_STOPPED``, ``TORCHRUN_HUNG``.

    Raises:
        UnavailableError: The list of runs cannot be kept; nothing is left running.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    with scratch_folder() as scratch, contextlib.ExitStack() as stack:
        family: set[psutil.Process] = set()
        stack.callback(end_orphans, scratch / (STORE if meeting is None else SECRET), family)
        command = [*_torchrun_command(ranks, scratch, meeting), *program]
        file = stack.enter_context(log.open("wb", buffering=0))
        environment = _rank_environment(threads, scratch, meeting)
        listening = None if meeting is None else meeting.listening
        agent = stack.enter_context(
            running(command, environment, file, warm=warm, seats=ranks, inherited=listening)
        )
        if listening is not None:
            listening.close()  # else a peer that connects after torchrun is gone would wait for an answer
        stack.enter_context(registered(log.parent, agent.pid))
        # It stays until the torchruns of all hosts are done.
        leave_s = LEAVE_S if meeting is None else limit_s
        return followed(agent, file, limit_s, freeze_s, watch, family, leave_s)


def followed(
    process: Started,
    log: BinaryIO,
    limit_s: float,
    freeze_s: float,
    watch: Callable[[], None] | None = None,
    family: set[psutil.Process] | None = None,
    leave_s: float = LEAVE_S,
) -> int:
    """Wait for a process of ours; return early if it passes a bound.

    Args:
        process: torchrun, or a process without ranks.
        log: The file that gets its output.
        limit_s: Seconds that it may take.
        freeze_s: Seconds that it may be stopped while we run.
        watch: Called about every 50 ms meanwhile, and once after the end.
        family: Gets the processes that are seen below it.
        leave_s: Seconds that torchrun gets to leave after its ranks; without ranks: ``math.inf``.

    Returns:
        Its exit code, or ours: a key of ``ENDINGS``.

    Blocks:
        Until it has ended, at most ``limit_s``; after a passed bound the caller ends it (``running``).
    """
    deadline, look = time.monotonic() + limit_s, watch or (lambda: None)
    try:
        agent = psutil.Process(process.pid)
    except psutil.NoSuchProcess:  # forked, and already ended: the warm launcher has waited for it
        look()
        return process.wait(POLITE_S)
    watched = TorchrunWatch(agent, Path(log.name), freeze_s, lambda line: _say(log, line), leave_s)
    watched.family = set() if family is None else family
    while (code := process.poll()) is None:
        look()
        ending = watched.look()
        if time.monotonic() > deadline:
            ask_for_stacks(agent)
            ending = PAST_LIMIT
        if ending is not None:
            _say(log, f"ppwork: {ENDINGS[ending]}")
            return ending
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    look()
    return code


def _say(log: BinaryIO, line: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not stop the clean-up
        log.write(f"{line}\n".encode())


def _torchrun_command(ranks: int, scratch: Path, meeting: Rendezvous | None) -> list[str]:
    """Return torchrun's part of the command line.

    On one machine the rendezvous is a file, so nothing listens for it.
    """
    code = TORCHRUN
    if meeting is None:
        place = [
            "--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file",
            "--rdzv-endpoint", str(scratch / "rendezvous"), "--rdzv-id", uuid.uuid4().hex,
        ]  # fmt: skip
    else:
        if meeting.listening is not None:
            code = LISTENING.format(listening=meeting.listening.fileno()) + TORCHRUN
        place = [
            "--nnodes", str(meeting.hosts), "--node-rank", str(meeting.host), "--rdzv-id", meeting.run_id,
            "--master-addr", meeting.address, "--master-port", str(meeting.port),
            "--rdzv-conf", f"timeout={round(meeting.start_s)}", "--local-addr", meeting.own,
        ]  # fmt: skip
    return [
        *held(code, tie=hold_agent),
        *place,
        "--nproc-per-node", str(ranks),
        "--max-restarts", "0", "--monitor-interval", "0.1",
        # Without this it leaves its own folder behind in each run. A program may name another one.
        "--log-dir", str(scratch / "logs"),
    ]  # fmt: skip


def _rank_environment(threads: int, scratch: Path, meeting: Rendezvous | None) -> dict[str, str]:
    """Return the environment of torchrun and its ranks: by default loopback only, and one store file."""
    level = os.environ.get("LOGLEVEL", "")
    both = {
        **child_environment(threads),
        # ``torchrun_watch`` reads torchrun's warnings.
        "LOGLEVEL": level if level in ("DEBUG", "INFO") else "WARNING",
    }
    if meeting is None:
        both.pop(SECRET_VARIABLE, None)  # inherited if a rank of a run over hosts starts this run
        return {
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "=lo",  # exactly this one: without the sign it is a prefix
            **both,
            STORE_VARIABLE: str(scratch / STORE),
            # Without this torchrun opens a store that listens on all addresses.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
    secret = scratch / SECRET
    secret.touch(0o600)
    secret.write_bytes(meeting.secret)
    for name in (STORE_VARIABLE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        both.pop(name, None)
    ours = {"GLOO_SOCKET_IFNAME": meeting.interface, SECRET_VARIABLE: str(secret)}
    # A cluster may have a network for data alone: who has named it keeps it.
    return {"NCCL_SOCKET_IFNAME": f"={meeting.interface}", **both, **ours}


def child_environment(threads: int) -> dict[str, str]:
    """Return the environment of every process of ours: this one, with threads, lifeline and a safe path."""
    ours = {"PYTHONUNBUFFERED": "1", LIFELINE_VARIABLE: "1", SAFE_PATH_VARIABLE: "1"}
    return {**os.environ, "OMP_NUM_THREADS": str(threads), **ours}


@contextlib.contextmanager
def running(
    command: list[str],
    environment: dict[str, str],
    log: BinaryIO,
    *,
    errors: BinaryIO | None = None,
    warm: bool = False,
    seats: int = 0,
    inherited: socket.socket | None = None,
) -> Iterator[Started]:
    """Start a process whose standard input is a lifeline; after the body it and its children are gone.

    Args:
        command: The program and its arguments.
        environment: Its whole environment.
        log: Gets its output.
        errors: Gets its standard error; without it, ``log`` does.
        warm: It needs torch: fork it, if warm launches are asked for (``warm``).
        seats: For torchrun: the number of ranks that it will start.
        inherited: A socket that the process gets by its number; such a process is never forked.
    """
    process: Started | None = None
    if warm and inherited is None:
        try:
            process = start_if_warm(command, environment, log, errors, seats=seats)
        except NotWarm as reason:
            _say(errors or log, f"ppwork: started cold: {reason}")
    if process is None:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=errors or subprocess.STDOUT,
            pass_fds=() if inherited is None else (inherited.fileno(),),
        )
    try:
        yield process
    finally:
        _stop(process, errors or log)


def _stop(process: Started, log: BinaryIO) -> None:
    # Recorded before anything dies: an orphan's parent cannot be asked any more. A psutil process is a pid
    # and its start time, so a process that got the same pid later is never hit.
    family: list[psutil.Process] = []
    with contextlib.ExitStack() as stack:  # all of it even after an impatient Ctrl-C
        stack.callback(_wait_for_code, process, log)
        stack.callback(process.kill)  # if it is not in the family, because there was no time to look
        stack.callback(end, family, POLITE_S)
        stack.callback(_ask_to_leave, process)
        if process.poll() is None:
            family += family_of(process.pid)


def _wait_for_code(process: Started, log: BinaryIO) -> None:
    try:
        process.wait(KILL_S)
    except subprocess.TimeoutExpired:  # it hangs in the kernel; the run still says how it ended
        _say(log, f"ppwork: pid {process.pid} could not be killed")


def _ask_to_leave(process: Started) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
