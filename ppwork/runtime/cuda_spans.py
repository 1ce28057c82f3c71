"""Spans of the device: CUDA events mapped to the host's monotonic clock, without a host sync.

Two events enclose the work on a stream; they are read later, when both have passed. Only the thread that
launches uses this module. Another thread may wait for an event that this module returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter

import torch

from ppwork.records.spans import Span, WhichChunk

CALIBRATIONS = 5
REBASE_MS = 8192.0
"""Event times come as float32 milliseconds: up to this value they are exact to half a microsecond."""
PATIENCE_NS, PATIENCE_MID_RUN_NS = 10**9, 10**6
"""Longest poll for a calibrating event; in mid-run a kernel that waits for a peer may be ahead of it."""


class CudaClock:
    """Maps CUDA events to ``time.monotonic_ns`` of this host.

    The clock is calibrated when it is made, and again each time its zero moves: the two clocks drift apart.

    Args:
        device: This rank's device.
        idle: Wait until the device is idle, which is possible at start-up. In mid-run the device is in use,
            and the calibration is only as good as the device is quiet (``uncertainty_ns``).

    Attributes:
        uncertainty_ns: Width of the host's interval in which the calibrating event passed, in nanoseconds.

    Blocks:
        Until the device is idle; else some milliseconds.
    """

    def __init__(self, device: torch.device, *, idle: bool = True) -> None:
        if idle:
            torch.cuda.synchronize(device)
        # A stream of its own, so that a calibrating event waits for nothing but the device itself.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        patience_ns = PATIENCE_NS if idle else PATIENCE_MID_RUN_NS
        tries = [_calibrate(self._stream, patience_ns) for _ in range(CALIBRATIONS)]
        self.uncertainty_ns, self._zero_ns, self._zero = min(tries, key=itemgetter(0))

    def at_ns(self, event: torch.cuda.Event) -> int:
        """Return when an event passed; it must have passed, have timing, and be of this device."""
        ms: float = self._zero.elapsed_time(event)
        at_ns = self._zero_ns + round(ms * 1e6)
        if ms > REBASE_MS:
            self._zero, self._zero_ns = event, at_ns
            width_ns, zero_ns, zero = _calibrate(self._stream, PATIENCE_MID_RUN_NS)
            if width_ns <= PATIENCE_MID_RUN_NS:
                self.uncertainty_ns, self._zero_ns, self._zero = width_ns, zero_ns, zero
        return at_ns


def _calibrate(stream: torch.cuda.Stream, patience_ns: int) -> tuple[int, int, torch.cuda.Event]:
    """Return width and middle of the host's interval in which an event passed, and the event.

    A width above ``patience_ns`` means that the event has not passed, or passed late.
    """
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before_ns = after_ns = time.monotonic_ns()
    event.record(stream)
    while not event.query() and after_ns - before_ns <= patience_ns:  # type: ignore[no-untyped-call]
        after_ns = time.monotonic_ns()
    after_ns = time.monotonic_ns()
    return after_ns - before_ns, (before_ns + after_ns) // 2, event


@dataclass(frozen=True)
class DeviceSpan:
    """Work between two events on one stream."""

    name: str
    lane: str
    start: torch.cuda.Event
    end: torch.cuda.Event
    ids: WhichChunk

    @property
    def ns(self) -> int:
        """Nanoseconds that the work took on the device; call only after ``end`` has passed."""
        ms: float = self.start.elapsed_time(self.end)
        return round(ms * 1e6)


class CudaSpans:
    """Collects the spans of one rank's device and writes each span once it is over.

    Args:
        write: Takes a finished span; the recorder's method.
        device: This rank's device.
        clock: Clock of that device; ``None`` makes one, which waits until the device is idle.
    """

    def __init__(
        self, write: Callable[[Span], None], device: torch.device, clock: CudaClock | None = None
    ) -> None:
        self._write = write
        self._device = device
        self._clock = clock or CudaClock(device)
        self._running: list[DeviceSpan] = []

    @property
    def running(self) -> int:
        """Number of spans that are not written yet."""
        return len(self._running)

    @contextmanager
    def span(
        self, name: str, *, lane: str, stream: torch.cuda.Stream | None = None, ids: WhichChunk | None = None
    ) -> Iterator[DeviceSpan]:
        """Record the time that the body's launches take on a stream (``None``: the current one).

        A body that raises leaves no span: it is not known what the body launched.
        """
        span = self.begin(name, lane=lane, stream=stream, ids=ids)
        yield span
        self.end(span, stream)

    def begin(
        self, name: str, *, lane: str, stream: torch.cuda.Stream | None = None, ids: WhichChunk | None = None
    ) -> DeviceSpan:
        """Return a span that begins where a stream (``None``: the current one) is now."""
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        # Blocking: a thread that waits for this event sleeps and does not spin.
        end = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        start.record(stream or torch.cuda.current_stream(self._device))
        return DeviceSpan(name, lane, start, end, ids or {})

    def end(self, span: DeviceSpan, stream: torch.cuda.Stream | None = None) -> None:
        """End a span where a stream (``None``: the current one) is now; only ended spans are written."""
        span.end.record(stream or torch.cuda.current_stream(self._device))
        self._running.append(span)

    def poll(self) -> None:
        """Write the spans that are over; does not wait.

        Raises:
            RuntimeError: The device failed earlier; CUDA reports that to the next caller.
        """
        self._running = [span for span in self._running if not self._written(span)]

    def flush(self) -> None:
        """Write all spans; only at the end of a run that went well.

        Blocks:
            Until the work is done; for ever if a peer is gone, so never call this after an error.
        """
        for span in self._running:
            span.end.synchronize()
        self.poll()

    def _written(self, span: DeviceSpan) -> bool:
        if not span.end.query():  # type: ignore[no-untyped-call]
            return False
        start_ns, end_ns = self._clock.at_ns(span.start), self._clock.at_ns(span.end)
        self._write(Span(span.name, span.lane, start_ns, end_ns, **span.ids))
        return True
