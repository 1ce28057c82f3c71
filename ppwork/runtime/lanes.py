"""A lane: the one helper thread of a rank that calls ``torch.distributed`` on one group (rule R7).

Blocking receives sit here, so the main thread stays free for signals and for its bound: gloo's p2p works
cannot be polled, and a receive that blocks the main thread would also block Ctrl-C until it ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from ppwork.errors import LocalProtocolError, PeerTimeoutError
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK

T = TypeVar("T")


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


class WatchedQueue(queue.Queue[T]):
    """A bounded queue that remembers how full it ever was and how much went through it."""

    most = 0
    done = 0

    def _put(self, item: T) -> None:
        super()._put(item)
        self.most = max(self.most, self._qsize())

    def _get(self) -> T:
        self.done += 1
        return super()._get()

    def statistics(self, name: str) -> LaneStatistics:
        """Return how full the queue is and was; ``done`` counts what was taken."""
        return LaneStatistics(name, self.qsize(), self.maxsize, self.done, self.most)


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

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job; its outcome or exception is in the future.

        Raises:
            LocalProtocolError: The queue is at its bound (this rank; nothing was sent).
        """
        future: Future[T] = Future()
        try:
            self._jobs.put_nowait((future, job))
        except queue.Full:
            raise LocalProtocolError(
                f"The lane {self.name} had {self._jobs.maxsize} jobs waiting; one more was refused.",
                where={"group": self.name},
                check_first="does anything wait for the jobs already queued? a larger bound only hides it",
            ) from None
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
                future.set_result(run())
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
            self._done += 1


def result_of(future: Future[T], timeout_s: float, *, what: str, **where: Any) -> T:  # noqa: ANN401
    """Wait for a job, at most ``timeout_s`` seconds.

    Raises:
        PeerTimeoutError: The bound passed (this rank; ``where`` names the group and the peer).
        Exception: Whatever the job raised.
    """
    first_done([future], timeout_s, what=what, **where)
    return future.result()


def first_done(futures: list[Future[Any]], timeout_s: float, *, what: str, **where: Any) -> Future[Any]:  # noqa: ANN401  as ``where``
    """Wait until one of the jobs has ended and return it; the first in the list wins a draw.

    Raises:
        PeerTimeoutError: The bound passed (this rank).
    """
    done, _ = wait(futures, timeout_s, return_when=FIRST_COMPLETED)
    if not done:
        raise PeerTimeoutError(
            f"The {what} did not end within {timeout_s:g} s.", where=where, check_first=SILENT_PEER_CHECK
        )
    return next(future for future in futures if future in done)
