"""How ranks find each other: ways to initialise, and the stores beneath them."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.claims.rank import World

LATE_S = 0.5
BOUND = timedelta(seconds=1)


def shared_port(world: World) -> int:
    """Rank 0 asks the kernel for a free port and tells it to the others."""
    store = world.store("port")
    if world.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            store.set("port", str(probe.getsockname()[1]))
    return int(store.get("port"))


def _start(world: World, **how: Any) -> None:  # noqa: ANN401  as ``init_process_group``'s
    dist.init_process_group(world.backend, timeout=timedelta(seconds=5), **how)
    total = torch.full((1,), world.rank + 1.0, device=world.device)
    dist.all_reduce(total)
    world.note(total=total.item())


def by_tcp(world: World) -> None:
    """The address of rank 0 in the call."""
    url = f"tcp://127.0.0.1:{shared_port(world)}"
    _start(world, init_method=url, rank=world.rank, world_size=world.size)


def by_file(world: World) -> None:
    """A file that all ranks see, and that is not there yet."""
    _start(world, init_method=f"file://{world.folder}/meet", rank=world.rank, world_size=world.size)


def by_environment(world: World) -> None:
    """The address of rank 0 in the environment, where RANK and WORLD_SIZE are too."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(shared_port(world)))
    _start(world)


def by_a_file_of_an_earlier_job(world: World) -> None:
    """The file is as a job left it that was killed at work: a copy of an earlier group's."""
    _by_file_again(world, "left", tries=10)


def by_a_new_file_each_time(world: World) -> None:
    """Each time another file, which is not there yet."""
    _by_file_again(world, "new", tries=3)


def _by_file_again(world: World, name: str, tries: int) -> None:
    url = f"file://{world.folder}/"
    dist.init_process_group(world.backend, init_method=f"{url}meet", rank=world.rank, world_size=world.size)
    dist.barrier()
    for number in range(tries if world.rank == 1 else 0):
        shutil.copy(world.folder / "meet", world.folder / f"left{number}")
    dist.barrier()
    dist.destroy_process_group()
    _again(world, tries, lambda number: {"init_method": f"{url}{name}{number}"})


def one_comes_late(world: World) -> None:
    """Rank 1 comes to ``init_process_group`` late; rank 0 looks at the clock before and after it."""
    if world.rank == 1:
        time.sleep(LATE_S)
        world.note(came=time.monotonic())
    world.init()
    world.note(returned=time.monotonic())


def one_never_comes(world: World) -> None:
    """Rank 1 does not come at all, and the bound is 1 s."""
    if world.rank == 1:
        return
    start = time.monotonic()
    try:
        world.init(timeout=BOUND)
    except RuntimeError as error:
        world.note(error=str(error).splitlines()[0], kind=type(error).__name__)
    world.note(after_s=time.monotonic() - start)


def without_a_variable(world: World) -> None:
    """A world of one is asked for by environment, each time with another variable missing."""
    complete = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    complete["MASTER_PORT"] = str(shared_port(world))
    for missing in complete:
        os.environ.update(complete)
        del os.environ[missing]
        try:
            dist.init_process_group(world.backend, timeout=BOUND)
            dist.destroy_process_group()
            world.note(**{missing: ""})
        except ValueError as error:
            world.note(**{missing: str(error)})


def connections_eager(world: World) -> None:
    """Connections of this rank when it has initialised, and when it has sent to a neighbour."""
    world.init()
    world.store("count").add("ready", 1)
    _wait_for(world, "ready")
    world.note(at_start=_connections())
    if world.rank < 2:
        _ = dist.send(torch.ones(1), 1) if world.rank == 0 else dist.recv(torch.ones(1), 0)
    world.store("count").add("sent", 1)
    _wait_for(world, "sent")
    world.note(after_send=_connections())


def connections_lazy(world: World) -> None:
    """The same; the environment says TORCH_GLOO_LAZY_INIT=1."""
    connections_eager(world)


def _wait_for(world: World, key: str) -> None:
    store = world.store("count")
    while store.add(key, 0) < world.size:
        time.sleep(0.01)


def _connections() -> int:
    connections = psutil.Process().net_connections("inet")
    return sum(one.status == psutil.CONN_ESTABLISHED for one in connections)


def started_again_on_the_same_store(world: World) -> None:
    """A group is made, destroyed and made again on one store."""
    world.init(store=world.store("meet"))
    dist.barrier()
    dist.destroy_process_group()
    _again(world, 10, lambda _: {"store": world.store("meet")})


def started_again_behind_a_prefix(world: World) -> None:
    """The same, and each attempt sees the store behind its own prefix."""
    _again(world, 4, lambda number: {"store": dist.PrefixStore(f"attempt{number}", world.store("meet"))})


def _again(world: World, tries: int, how: Callable[[int], dict[str, Any]]) -> None:
    """Make the default group again and again until it fails; rank 1 begins before rank 0."""
    turn = world.store("turn")
    for number in range(tries):
        if world.rank == 0:
            turn.get(f"begun{number}")
            time.sleep(0.15)
            if turn.check(["failed"]):
                return
        turn.set(f"begun{number}", "1")
        try:
            world.init(**{"store": None, "timeout": timedelta(seconds=3), **how(number)})
            dist.barrier()
        except RuntimeError as error:
            turn.set("failed", "1")
            world.note(error=str(error).splitlines()[0])
            return
        world.note(worked=number + 1)
        dist.destroy_process_group()


def every_operation(world: World) -> None:
    """Each operation of a store, on each of the stores, by one process."""
    tcp = dist.TCPStore("127.0.0.1", 0, 1, True, BOUND)
    stores = {"TCPStore": tcp, "FileStore": dist.FileStore(str(world.folder / "one"), 1)}
    stores |= {"HashStore": dist.HashStore(), "PrefixStore": dist.PrefixStore("mine", tcp)}
    for name, store in stores.items():
        calls = {
            "set": lambda s: s.set("key", "1"),
            "get": lambda s: s.get("key") == b"1",
            "add": lambda s: s.add("number", 2) == 2,
            "check": lambda s: s.check(["key"]),
            "wait": lambda s: s.wait(["key"], BOUND),
            "compare_set": lambda s: s.compare_set("key", "1", "2") == b"2",
            "num_keys": lambda s: s.num_keys(),
            "delete_key": lambda s: s.delete_key("number"),
            "append": lambda s: s.append("key", "3"),
            "multi_set": lambda s: s.multi_set(["a", "b"], ["1", "2"]),
            "multi_get": lambda s: s.multi_get(["a", "b"]) == [b"1", b"2"],
            "queue_push": lambda s: s.queue_push("queue", "1"),
            "list_keys": lambda s: s.list_keys(),
        }
        refused = {}
        for operation, call in calls.items():
            try:
                call(store)
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                refused[operation] = type(error).__name__
        world.note(**{name: refused})


def told_by_each_store(world: World) -> None:
    """Rank 0 sets a key in each store, and rank 1 looks whether it is there when rank 0 has done so."""
    port, told = shared_port(world), world.store("told")
    tcp = dist.TCPStore("127.0.0.1", port, world.size, world.rank == 0, BOUND, wait_for_workers=False)
    stores = {"TCPStore": tcp, "FileStore": dist.FileStore(str(world.folder / "one"), world.size)}
    stores |= {"PrefixStore": dist.PrefixStore("mine", tcp), "HashStore": dist.HashStore()}
    if world.rank == 0:
        for store in stores.values():
            store.set("key", "value")
        told.set("all", "set")
        told.get("seen")
    else:
        told.get("all")
        world.note(**{name: bool(store.check(["key"])) for name, store in stores.items()})
        told.set("seen", "1")


def hash_store_of_a_thread(world: World) -> None:
    """A HashStore between two threads of one process."""
    store, got = dist.HashStore(), list[bytes]()
    reader = threading.Thread(target=lambda: got.append(store.get("key")))
    reader.start()
    store.set("key", "value")
    reader.join()
    world.note(got=got[0].decode())


def store_that_listens(world: World) -> None:
    """A store is made for 127.0.0.1: where does it listen, and does it take what anybody writes?"""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=BOUND)
    _listening(world, store)


def store_on_a_socket_of_ours(world: World) -> None:
    """The same with a socket of ours that listens on 127.0.0.1 only."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1", port, 1, is_master=True, timeout=BOUND, master_listen_fd=listening.detach()
    )
    _listening(world, store)


def _listening(world: World, store: Any) -> None:  # noqa: ANN401  a TCPStore
    found = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.laddr.port == store.port]
    stranger = dist.TCPStore("127.0.0.1", store.port, None, is_master=False, timeout=BOUND)
    stranger.set("key", "written by a stranger")
    world.note(
        addresses=sorted(set(found) - {"127.0.0.1", "::ffff:127.0.0.1"}), key=store.get("key").decode()
    )


def port_taken(world: World) -> None:
    """A store is to listen where one does already."""
    _take_port(world)


def port_taken_by_the_agent(world: World) -> None:
    """The same, and the environment says that the launcher has a store there."""
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True")
    _take_port(world)


def _take_port(world: World) -> None:
    first = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=BOUND)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(first.port))
    first.set("key", "of the first")
    try:
        second = dist.TCPStore("127.0.0.1", first.port, 1, is_master=True, timeout=BOUND)
        world.note(got=second.get("key").decode())
    except RuntimeError as error:
        world.note(kind=type(error).__name__, error=str(error).splitlines()[0])


def host_of_the_store_leaves(world: World) -> None:
    """Rank 1 waits for a key, with 5 s, when rank 0, whose process has the store, ends."""
    port, told = shared_port(world), world.store("told")
    bound = timedelta(seconds=5)
    store = dist.TCPStore("127.0.0.1", port, 2, world.rank == 0, bound, wait_for_workers=False)
    if world.rank == 0:
        told.get("waits")
        time.sleep(LATE_S)
        os._exit(0)
    told.set("waits", "1")
    start = time.monotonic()
    try:
        store.get("never set")
    except RuntimeError as error:
        world.note(kind=type(error).__name__, error=str(error).splitlines()[0])
    world.note(after_s=time.monotonic() - start)


def client_of_the_store_leaves(world: World) -> None:
    """Rank 2 waits for a key in rank 0's store when rank 1, which waits there too, ends; then it is set."""
    port, told = shared_port(world), world.store("told")
    store = dist.TCPStore("127.0.0.1", port, 3, world.rank == 0, BOUND, wait_for_workers=False)
    if world.rank == 1:
        store.set("was here", "1")
        os._exit(0)
    if world.rank == 0:
        store.get("was here")
        time.sleep(LATE_S)
        store.set("key", "value")
        told.get("done")
    else:
        world.note(got=store.get("key").decode())
        told.set("done", "1")
