"""Delay and loss on a host's cable without netem, which not every kernel has: two TAPs and a relay.

The host's port is moved from the switch to a bridge of its own, and every frame between the two passes here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppwork.faults.hosts import MiniatureHost

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
CLONE_NEWNET = 0x40000000
TAPS = ("tap-switch", "tap-host")
FRAME, FRAMES = 65536, 64
SEED = 7


@contextlib.contextmanager
def relayed(host: MiniatureHost, *, delay_s: float = 0.0, loss: float = 0.0) -> Iterator[list[int]]:
    """Lead all frames of a host through a relay, both ways; yield how many were passed on and lost so far.

    Args:
        host: Whose cable it is.
        delay_s: Seconds for which each frame is held.
        loss: Share of the frames that are thrown away, from 0 to 1.
    """
    taps = _taps(host.switch)
    stop, counts = threading.Event(), [0, 0]
    thread = threading.Thread(target=_relay, args=(taps, delay_s, loss, stop, counts), daemon=True)
    try:
        for words in (
            "link add br1 up type bridge",
            f"link set {TAPS[0]} master br0 up",
            f"link set {TAPS[1]} master br1 up",
            f"link set {host.name} master br1",
        ):
            enter = ["nsenter", "--target", str(host.switch), "--net", "ip"]
            subprocess.run([*enter, *words.split()], check=True, timeout=10)
        thread.start()
        yield counts
    finally:
        stop.set()
        if thread.is_alive():
            thread.join(5.0)
        for tap in taps:
            os.close(tap)


def _taps(switch: int) -> list[int]:
    """Open two TAPs in the switch's network: the thread that does has to be in there."""
    found: list[int] = []

    def work() -> None:
        with open(f"/proc/{switch}/ns/net") as network:  # noqa: PTH123  its descriptor is wanted
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot enter the switch")
        for name in TAPS:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            found.append(tap)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


def _relay(taps: list[int], delay_s: float, loss: float, stop: threading.Event, counts: list[int]) -> None:
    dice = random.Random(SEED)
    due: deque[tuple[float, int, bytes]] = deque()  # in the order of their times, as all wait equally long
    other = dict(zip(taps, reversed(taps), strict=True))
    while not stop.is_set():
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else 0.05
        for tap in select.select(taps, [], [], wait_s)[0]:
            for _ in range(FRAMES):
                try:
                    frame = os.read(tap, FRAME)
                except BlockingIOError:
                    break
                if dice.random() < loss:
                    counts[1] += 1
                else:
                    due.append((time.monotonic() + delay_s, other[tap], frame))
        while due and due[0][0] <= time.monotonic():
            _, tap, frame = due.popleft()
            with contextlib.suppress(BlockingIOError, OSError):  # a full queue loses frames, as a switch does
                os.write(tap, frame)
                counts[0] += 1
