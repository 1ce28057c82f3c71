"""The stores that process groups are made from."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from ppwork.claims.programs.startup import BOUND, LATE_S, TRIES, again, shared_port
from ppwork.claims.rank import World


def _one_for_all(world: World, bound: timedelta) -> Any:  # noqa: ANN401  a TCPStore
    port = shared_port(world)
    return TCPStore("127.0.0.1", port, world.size, world.rank == 0, bound, wait_for_workers=False)


def started_again_on_the_same_store(world: World) -> None:
    """A group is made, destroyed and made again on one store."""
    store = _one_for_all(world, BOUND)
    world.init(store=store)
    dist.barrier()
    dist.destroy_process_group()
    again(world, TRIES, lambda _: {"store": store})


def started_again_behind_a_prefix(world: World) -> None:
    """The same, and each attempt sees the store behind its own prefix."""
    store = _one_for_all(world, BOUND)
    again(world, 3, lambda number: {"store": PrefixStore(f"attempt{number}", store)})
    world.meet("done")  # the store is rank 0's


def every_operation(world: World) -> None:
    """Each operation of a store, on each of the stores, by one process."""
    tcp = TCPStore("127.0.0.1", 0, 1, True, BOUND)
    stores = {"TCPStore": tcp, "FileStore": FileStore(str(world.folder / "one"), 1)}
    stores |= {"HashStore": HashStore(), "PrefixStore": PrefixStore("mine", tcp)}
    for name, store in stores.items():
        calls: dict[str, Callable[[Any], Any]] = {
            "set": lambda s: s.set("key", "1"),
            "get": lambda s: s.get("key") == b"1",
            "add": lambda s: s.add("number", 2) == 2,
            "check": lambda s: s.check(["key"]),
            "wait": lambda s: s.wait(["key"], BOUND),
            "compare_set": lambda s: s.compare_set("key", "1", "2") == b"2",
            "num_keys": lambda s: s.num_keys() > 0,
            "delete_key": lambda s: s.delete_key("number"),
            "append": lambda s: s.append("key", "3"),
            "multi_set": lambda s: s.multi_set(["a", "b"], ["1", "2"]),
            "multi_get": lambda s: s.multi_get(["a", "b"]) == [b"1", b"2"],
            "queue_push": lambda s: s.queue_push("queue", "1"),
        }
        refused = []
        for operation, call in calls.items():
            try:
                if call(store) is False:
                    refused.append(operation)
            except (RuntimeError, NotImplementedError):
                refused.append(operation)
        world.note(**{name: refused})


def told_by_each_store(world: World) -> None:
    """Rank 0 sets a key in each store, and rank 1 looks whether it is there when rank 0 has done so."""
    tcp = _one_for_all(world, BOUND)
    stores = {"TCPStore": tcp, "FileStore": FileStore(str(world.folder / "one"), world.size)}
    stores |= {"PrefixStore": PrefixStore("mine", tcp), "HashStore": HashStore()}
    if world.rank == 0:
        for store in stores.values():
            store.set("key", "value")
    world.meet("all set")
    if world.rank == 1:
        world.note(**{name: bool(store.check(["key"])) for name, store in stores.items()})
    world.meet("seen")


def hash_store_of_a_thread(world: World) -> None:
    """A HashStore between two threads of one process."""
    store, got = HashStore(), list[bytes]()
    reader = threading.Thread(target=lambda: got.append(store.get("key")))
    reader.start()
    store.set("key", "value")
    reader.join()
    world.note(got=got[0].decode())


def store_that_listens(world: World) -> None:
    """A store is made for 127.0.0.1: where does it listen, and does it take what anybody writes?"""
    _listening(world, TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=BOUND))


def store_on_a_socket_of_ours(world: World) -> None:
    """The same with a socket of ours that listens on 127.0.0.1 only."""
    ours = socket.create_server(("127.0.0.1", 0))
    port = ours.getsockname()[1]
    _listening(
        world, TCPStore("127.0.0.1", port, 1, is_master=True, timeout=BOUND, master_listen_fd=ours.detach())
    )


def _listening(world: World, store: Any) -> None:  # noqa: ANN401  a TCPStore
    ours = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    world.note(addresses=[one.laddr.ip for one in ours if one.laddr.port == store.port])
    stranger = TCPStore("127.0.0.1", store.port, None, is_master=False, timeout=BOUND)
    stranger.set("key", "written by a stranger")
    world.note(key=store.get("key").decode())


def port_taken(world: World) -> None:
    """A store is to listen where one does already."""
    first = TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=BOUND)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(first.port))
    first.set("key", "of the first")
    try:
        second = TCPStore("127.0.0.1", first.port, 1, is_master=True, timeout=BOUND)
        world.note(got=second.get("key").decode())
    except RuntimeError as error:
        world.note(kind=type(error).__name__, error=str(error).splitlines()[0])


def port_taken_by_the_agent(world: World) -> None:
    """The same, and the environment says that the launcher has a store there."""
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True")
    port_taken(world)


def host_of_the_store_leaves(world: World) -> None:
    """Rank 1 waits for a key, with 5 s, when rank 0, whose process has the store, ends."""
    store = _one_for_all(world, timedelta(seconds=5))
    world.meet("connected")
    if world.rank == 0:
        time.sleep(LATE_S)
        world.note(left=time.monotonic())
        os._exit(0)
    try:
        store.get("never set")
    except RuntimeError as error:
        world.note(kind=type(error).__name__, error=str(error).splitlines()[0], at=time.monotonic())


def client_of_the_store_leaves(world: World) -> None:
    """Rank 2 waits for a key in rank 0's store while rank 1, connected to it too, ends; then it is set."""
    store = _one_for_all(world, timedelta(seconds=5))
    world.meet("connected")
    if world.rank == 1:
        os._exit(0)
    if world.rank == 0:
        time.sleep(LATE_S)
        store.set("key", "value")
    else:
        world.note(got=store.get("key").decode())
    left = world.store("left")
    left.add("left", 1)
    left.set("done0" if world.rank == 0 else "done2", "1")
    left.wait(["done0", "done2"])  # the store is rank 0's
