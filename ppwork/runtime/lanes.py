"""A lane: the one helper thread of a rank that waits in ``torch.distributed`` on one group (rule R7).

Blocking receives run on lanes, so the main thread stays free for signals and for its bound: a gloo receive
cannot be polled, and on the main thread it would also block Ctrl-C until it ends. A hand-over to another
thread costs more than a send, so a lane gets only operations that somebody has to wait for (and, if chunks
overlap, the posting of sends).
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
"""Sleep after a hand-over; the system turns it into some 75 us."""


@dataclass(frozen=True)
class LaneStatistics:
    """A snapshot of a lane's queue."""

    name: str
    waiting: int
    """Jobs queued and not begun."""
    bound: int
    """Most jobs that may be queued; the queue refuses one more."""
    done: int
    """Jobs that have ended, with a result or an error."""
    most: int
    """Most jobs that ever waited at the same time."""


def give_way() -> None:
    """Let the thread that was just woken run; a lane calls this after it has handed a message over.

    The woken thread needs the GIL, and a lane keeps the GIL until it waits for the next message: the main
    thread had its message 118 us after the hand-over instead of 24 us.
    """
    time.sleep(WAY_S)


def tokens(number: int) -> queue.SimpleQueue[None]:
    """Return a queue with this number of tokens: a thread takes one to do a thing, and puts it back after."""
    made: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(number):
        made.put(None)
    return made


class WatchedQueue(Generic[T]):
    """A bounded queue for one taker; it records how full it was at most and how many items went through.

    ``queue.Queue`` and semaphores use conditions written in Python: a woken thread then waits for the mutex
    that its waker holds. A ``SimpleQueue`` is one lock in C, and a second one counts the free places.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.most, self.done = bound, 0, 0
        self._items: queue.SimpleQueue[tuple[T, bool]] = queue.SimpleQueue()
        """Each item, and whether it took room."""
        self._room = tokens(bound)

    def put(self, item: T, timeout: float | None = None) -> None:
        """Add an item; ``queue.Full`` if there was no room for ``timeout`` seconds."""
        self.reserve(timeout)
        self.fill(item)

    def reserve(self, timeout: float | None = 1.0) -> None:
        """Take room for an item that ``fill`` then adds, as ``put``; a taker without a core may be late."""
        try:
            self._room.get(timeout=timeout)
        except queue.Empty:
            raise queue.Full from None

    def fill(self, item: T) -> None:
        """Add the item for which room was taken."""
        self.most = max(self.most, self._items.qsize() + 1)
        self._items.put((item, True))

    def put_last(self, item: T) -> None:
        """Add the item that ends the queue, such as an error; it needs no room."""
        self._items.put((item, False))

    def get(self, timeout: float | None = None) -> T:
        """Take the oldest item; raises ``queue.Empty`` if none came for ``timeout`` seconds."""
        item, took_room = self._items.get(timeout=timeout)
        self.done += 1
        if took_room:
            self._room.put(None)
        return item

    def waiting(self) -> int:
        """Return how many items are in the queue."""
        return self._items.qsize()

    def statistics(self, name: str) -> LaneStatistics:
        """Return how full the queue is and was; ``done`` counts the items taken."""
        return LaneStatistics(name, self.waiting(), self.bound, self.done, self.most)


class Lane:
    """A daemon thread that runs jobs one after another.

    Args:
        name: The lane's name in timelines: the group that it serves.
        device: This rank's device; the lane sets it, because CUDA's current device is per thread.
        bound: Most jobs that may be queued at a time.
    """

    def __init__(self, name: str, device: torch.device, *, bound: int = 8) -> None:
        self.name = name
        self._device = device
        self._jobs: WatchedQueue[tuple[Future[Any], Callable[[], Any]] | None] = WatchedQueue(bound)
        self._done = 0
        self._thread = threading.Thread(target=self._work, name=f"lane-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], *, first: Callable[[], None] | None = None) -> Future[T]:
        """Queue a job; the future gets its result or exception.

        Args:
            job: Runs on the lane.
            first: Runs on the caller's thread, after the job has its place and before the lane gets the job.

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
        """Return how full the lane's queue is and was."""
        return replace(self._jobs.statistics(self.name), done=self._done)

    def close(self, timeout_s: float) -> bool:
        """Let queued jobs end, then stop the thread; return whether it stopped in time."""
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
            del job, future, run  # free their data now, not when the next job comes


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
