"""What torch.distributed itself says and offers: logs, exceptions, breakpoints, servers, a group's state."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # no public name for a rank's own server
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from ppwork.claims.programs.startup import shared_port
from ppwork.claims.rank import World

BOUND = timedelta(milliseconds=300)
LATE_S = 0.4


def logged_lines(world: World) -> None:
    """The same call at each debug level; what it prints is counted by its marks."""
    marks = {"info": "[c10d] ", "debug": "[c10d - debug]", "trace": "[c10d - trace]"}
    for level in ("OFF", "INFO", "DETAIL"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
        dist.set_debug_level_from_env()  # type: ignore[attr-defined]
        path = world.folder / f"lines{level}"
        with path.open("wb") as file, _stderr_to(file.fileno()):
            store = TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=BOUND)
            store.set("key", "value")
        lines = path.read_text().splitlines()
        world.note(**{level: {kind: sum(mark in line for line in lines) for kind, mark in marks.items()}})


@contextlib.contextmanager
def _stderr_to(number: int) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(number, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def levels_by_call(world: World) -> None:
    """The debug level: as it started, by call, and by the environment before and after it is read again."""
    level = dist.get_debug_level  # type: ignore[attr-defined]
    seen = {"at start": level().name}
    dist.set_debug_level(dist.DebugLevel.INFO)  # type: ignore[attr-defined]
    seen["by call"] = level().name
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    seen["environment changed"] = level().name
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    seen["environment read again"] = level().name
    world.note(levels=seen)


def error_of_c_plus_plus(world: World) -> None:
    """Ask a HashStore for a key that it does not have: how long is the text of what is raised?"""
    store = HashStore()
    store.set_timeout(BOUND)
    try:
        store.get("nowhere")
    except RuntimeError as error:
        world.note(lines=len(str(error).splitlines()), frames=str(error).count("c10d::"))


def raised_by_stores(world: World) -> None:
    """A store that is not there, a key that is not there, and an empty queue."""
    here, local = TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=BOUND), HashStore()
    local.set_timeout(BOUND)
    with socket.socket() as bound:  # a port at which nobody listens
        bound.bind(("127.0.0.1", 0))
        calls: dict[str, Callable[[], Any]] = {
            "no server": lambda: TCPStore("127.0.0.1", bound.getsockname()[1], None, False, BOUND),
            "no key": lambda: here.get("key"),
            "no key in a HashStore": lambda: local.get("key"),
            "empty queue": lambda: here.queue_pop("queue", False),
        }
        for name, call in calls.items():
            try:
                call()
                world.note(**{name: []})
            except RuntimeError as error:
                world.note(**{name: [kind.__name__ for kind in type(error).__mro__]})


def raised_by_a_backend(world: World) -> None:
    """Rank 0 leaves; rank 1 receives from it, and comes to a barrier with it."""
    dist.barrier()
    if world.rank == 0:
        os._exit(0)
    calls: dict[str, Callable[[], Any]] = {
        "recv": lambda: dist.recv(torch.ones(1, device=world.device), 0),
        "barrier": dist.barrier,
    }
    for name, call in calls.items():
        try:
            call()
            world.note(**{name: []})
        except RuntimeError as error:
            world.note(**{name: [kind.__name__ for kind in type(error).__mro__], "error": str(error)})


def stopped_by_a_breakpoint(world: World) -> None:
    """Rank 1's debugger reads from its standard input: up, a line of Python, and, late, ``continue``."""
    dist.barrier()
    if world.rank == 1:
        reading, writing = os.pipe()
        os.dup2(reading, 0)
        os.write(writing, b"up\n!world.note(here=world.rank)\n")
        threading.Timer(LATE_S, _continue, (world, writing)).start()
    dist.breakpoint(rank=1)
    world.note(returned=time.monotonic())


def _continue(world: World, writing: int) -> None:
    world.note(continued=time.monotonic())
    os.write(writing, b"continue\n")


def breakpoint_without_a_terminal(world: World) -> None:
    """Standard input is at its end, as in a job or in a notebook; what is the group's timeout after it?"""
    dist.barrier()
    backend = dist.distributed_c10d._get_default_group()._get_backend(world.device)
    world.note(before_s=backend.options._timeout.total_seconds())
    try:
        dist.breakpoint(rank=1)
    finally:
        world.note(after_s=backend.options._timeout.total_seconds())


def debug_server(world: World) -> None:
    """The documented way to start it, on each rank; where do the ranks' servers listen?"""
    port = shared_port(world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    store = TCPStore("127.0.0.1", port, 2, world.rank == 0, wait_for_workers=False)
    before = _listening()
    wanted = 2 if world.rank == 0 else 1  # rank 0 has the page too, in a process of its own
    try:
        from torch.distributed import debug

        debug.start_debug_server(port=0)
        world.note(missing="")
    except ImportError as error:
        world.note(missing=str(error))
        wanted = 0
    give_up = time.monotonic() + 3.0
    while len(_listening() - before) < wanted and time.monotonic() < give_up:
        time.sleep(0.01)
    world.note(addresses=sorted(_listening() - before))
    with contextlib.suppress(AssertionError, NameError):  # where it has not started whole
        debug.stop_debug_server()
    world.meet("looked")
    del store


def server_on_a_unix_socket(world: World) -> None:
    """A rank's own part of it, on a socket in a folder; asked for a stack while the main thread waits."""
    path = str(world.folder / "socket")
    before = _listening()
    server = c10d._WorkerServer(path)
    world.note(addresses=sorted(_listening() - before))
    done = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
        connection.request("POST", "/handler/dump_traceback", headers={"Content-Length": "0"})
        world.note(stack="server_on_a_unix_socket" in connection.getresponse().read().decode())
        done.set()

    threading.Thread(target=ask).start()
    done.wait(5.0)
    server.shutdown()


def _listening() -> set[str]:
    ours = [psutil.Process(), *psutil.Process().children()]
    found = [one for process in ours for one in process.net_connections("tcp")]
    return {f"{one.laddr.ip}:{one.laddr.port}" for one in found if one.status == psutil.CONN_LISTEN}


def status_of_a_group(world: World) -> None:
    """Rank 0 leaves, rank 1's receive fails: does the group itself say so then?"""
    dist.barrier()
    backend = dist.distributed_c10d._get_default_group()._get_backend(world.device)
    asked = getattr(backend, "get_error", None)
    world.note(there=asked is not None, before=str(asked()) if asked else "")
    world.meet("asked")
    if world.rank == 0:
        os._exit(0)
    try:
        dist.recv(torch.ones(1, device=world.device), 0)
    except RuntimeError as error:
        world.note(raised=str(error).splitlines()[0], after=str(asked()) if asked else "")
