"""A lane: the one helper thread of a rank that waits in ``torch.distributed`` on one group (rule R7).

Blocking receives sit here, so the main thread stays free for signals and for its bound: gloo's p2p works
cannot be polled, and a receive that blocks the main thread would also block Ctrl-C until it ends. To hand
something to another thread costs more than to send it, so a lane gets only what somebody has to wait for
(and, where chunks overlap, the posting of a send).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from ppwork.errors import LocalProtocolError, PeerTimeoutError
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK

T = TypeVar("T")
WAY_S = 20e-6
"""Sleep after a hand-over; the system makes some 75 us of it."""


@dataclass(frozen=True)
class LaneStatistics:
    """A snapshot of a lane's queue."""

    name: str
    waiting: int
    """Jobs queued and not begun."""
    bound: int
    """The queue's bound; one more is refused."""
    done: int
    """Jobs that have ended, well or not."""
    most: int
    """Jobs that ever waited at the same time."""


def give_way() -> None:
    """Let the thread run that was just woken: a lane calls this after it has handed a message over.

    Who is woken needs Python's lock, and a lane keeps that until it waits for the next message: the main
    thread had its message 118 us after the hand-over in place of 24.
    """
    time.sleep(WAY_S)


def tokens(number: int) -> queue.SimpleQueue[None]:
    """Return a queue of so many tokens: who may do a thing takes one, and who is done puts it back."""
    made: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(number):
        made.put(None)
    return made


class WatchedQueue(Generic[T]):
    """A bounded queue for one taker that remembers how full it ever was and how much went through it.

    ``queue.Queue`` and semaphores are conditions written in Python, and wake a thread that then waits for the
    mutex of whoever woke it; a ``SimpleQueue`` is one lock in C, and counts free places as well.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.most, self.done = bound, 0, 0
        self._items: queue.SimpleQueue[tuple[T, bool]] = queue.SimpleQueue()
        """Each with whether it took room."""
        self._room = tokens(bound)

    def put(self, item: T, timeout: float | None = None) -> None:
        """Add an item; ``queue.Full`` if there was no room for ``timeout`` seconds."""
        self.reserve(timeout)
        self.fill(item)

    def reserve(self, timeout: float | None = 0.0) -> None:
        """Take room for an item, which ``fill`` then adds; ``queue.Full`` as ``put``."""
        try:
            self._room.get(timeout=timeout)
        except queue.Empty:
            raise queue.Full from None

    def fill(self, item: T) -> None:
        """Add the item for which there is room."""
        self.most = max(self.most, self._items.qsize() + 1)
        self._items.put((item, True))

    def put_last(self, item: T) -> None:
        """Add what ends the queue, such as an error; it needs no room."""
        self._items.put((item, False))

    def get(self, timeout: float | None = None) -> T:
        """Take the oldest item; ``queue.Empty`` if none came for ``timeout`` seconds."""
        item, took_room = self._items.get(timeout=timeout)
        self.done += 1
        if took_room:
            self._room.put(None)
        return item

    def waiting(self) -> int:
        """Return how many items are there."""
        return self._items.qsize()

    def statistics(self, name: str) -> LaneStatistics:
        """Return how full the queue is and was; ``done`` counts what was taken."""
        return LaneStatistics(name, self.waiting(), self.bound, self.done, self.most)


class Lane:
    """A daemon thread that runs jobs one after another.

    Args:
        name: The lane's name in timelines: the group it serves.
        device: This rank's device; CUDA's current device is per thread, so it is set here again.
        bound: Most jobs queued at a time.
    """

    def __init__(self, name: str, device: torch.device, *, bound: int = 8) -> None:
        self.name = name
        self._device = device
        self._jobs: WatchedQueue[tuple[Future[Any], Callable[[], Any]] | None] = WatchedQueue(bound)
        self._done = 0
        self._thread = threading.Thread(target=self._work, name=f"lane-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], *, first: Callable[[], None] | None = None) -> Future[T]:
        """Queue a job; its outcome or exception is in the future.

        Args:
            job: For the lane.
            first: Done by the caller's thread, once the job has its place and before the lane has it.

        Raises:
            LocalProtocolError: The queue is at its bound (this rank; nothing was sent).
        """
        try:
            self._jobs.reserve()
        except queue.Full:
            raise LocalProtocolError(
                f"The lane {self.name} had {self._jobs.bound} jobs waiting; one more was refused.",
                where={"group": self.name},
                check_first="does anything wait for the jobs already queued? a larger bound only hides it",
            ) from None
        if first is not None:
            first()
        future: Future[T] = Future()
        self._jobs.fill((future, job))
        return future

    def statistics(self) -> LaneStatistics:
        """Return how full the lane is."""
        return replace(self._jobs.statistics(self.name), done=self._done)

    def close(self, timeout_s: float) -> bool:
        """Let queued jobs end and stop the thread; say whether it stopped in time."""
        try:
            self._jobs.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (job := self._jobs.get()) is not None:
            future, run = job
            try:
                result = run()
            except BaseException as error:  # noqa: BLE001
                self._done += 1
                future.set_exception(error)
            else:
                self._done += 1
                future.set_result(result)
            del job, future, run  # what they hold shall not stay until the next one comes


def result_of(future: Future[T], timeout_s: float, *, what: str, **where: Any) -> T:  # noqa: ANN401
    """Wait for a job, at most ``timeout_s`` seconds.

    Raises:
        PeerTimeoutError: The bound passed (this rank; ``where`` names the group and the peer).
        Exception: Whatever the job raised.
    """
    done, _ = wait([future], timeout_s)
    if not done:
        raise PeerTimeoutError(
            f"The {what} did not end within {timeout_s:g} s.", where=where, check_first=SILENT_PEER_CHECK
        )
    return future.result()
