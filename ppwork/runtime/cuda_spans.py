"""Spans of the device: CUDA events on the host's monotonic clock, without a host sync.

A pair of events is put around work on a stream and read later, when both have passed. One thread per rank
uses this, the one that launches; only ``DeviceSpan.wait`` is for another.
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
"""Event times come as float32 milliseconds: up to here they are exact to half a microsecond."""


class CudaClock:
    """Maps CUDA events to ``time.monotonic_ns`` of this host.

    Calibrated once, when made. The drift of the device's clock against the host's is not corrected.

    Attributes:
        uncertainty_ns: Width of the host's interval in which the calibrating event passed, in nanoseconds.

    Blocks:
        Until the device is idle; make it at start-up.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        stream = torch.cuda.current_stream(device)
        tries = [_calibrate(stream) for _ in range(CALIBRATIONS)]
        self.uncertainty_ns, self._zero_ns, self._zero = min(tries, key=itemgetter(0))

    def at_ns(self, event: torch.cuda.Event) -> int:
        """Return when an event passed; it must have, and be one with timing, of this device."""
        ms: float = self._zero.elapsed_time(event)
        at_ns = self._zero_ns + round(ms * 1e6)
        if ms > REBASE_MS:
            self._zero, self._zero_ns = event, at_ns
        return at_ns


def _calibrate(stream: torch.cuda.Stream) -> tuple[int, int, torch.cuda.Event]:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before_ns = time.monotonic_ns()
    event.record(stream)
    event.synchronize()
    after_ns = time.monotonic_ns()
    return after_ns - before_ns, (before_ns + after_ns) // 2, event


@dataclass(frozen=True)
class DeviceSpan:
    """Work between two events of one stream."""

    name: str
    lane: str
    start: torch.cuda.Event
    end: torch.cuda.Event
    ids: WhichChunk

    def wait(self) -> None:
        """Wait on the host until the work is done; for a helper thread.

        Blocks:
            Without a bound of its own: the waiter for the helper has one (rule R12).
        """
        self.end.synchronize()

    @property
    def ns(self) -> int:
        """Nanoseconds that the work took on the device; only after ``wait``."""
        ms: float = self.start.elapsed_time(self.end)
        return round(ms * 1e6)


class CudaSpans:
    """Collects the spans of one rank's device and writes each once it is over.

    Args:
        write: Takes a finished span: the recorder's.
        device: This rank's device.
    """

    def __init__(self, write: Callable[[Span], None], device: torch.device) -> None:
        self._write = write
        self._device = device
        self._clock = CudaClock(device)
        self._running: list[DeviceSpan] = []

    @contextmanager
    def span(
        self, name: str, *, lane: str, stream: torch.cuda.Stream | None = None, ids: WhichChunk | None = None
    ) -> Iterator[DeviceSpan]:
        """Record the time that the body's launches take on a stream (``None``: the current one).

        A body that raises leaves no span: nobody knows what it launched.
        """
        stream = stream or torch.cuda.current_stream(self._device)
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        # Blocking: a helper that waits for it sleeps and does not spin.
        end = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        span = DeviceSpan(name, lane, start, end, ids or {})
        start.record(stream)
        yield span
        end.record(stream)
        self._running.append(span)

    def poll(self) -> None:
        """Write the spans that are over; never waits.

        Raises:
            RuntimeError: The device has failed earlier; CUDA reports it to whoever asks next.
        """
        self._running = [span for span in self._running if not self._written(span)]

    def flush(self) -> None:
        """Write all spans. Only at the end of a run that went well.

        Blocks:
            Until the work is done; for ever if a peer is gone, so never on the way out of an error.
        """
        for span in self._running:
            span.wait()
        self.poll()

    def _written(self, span: DeviceSpan) -> bool:
        if not span.end.query():  # type: ignore[no-untyped-call]
            return False
        start_ns, end_ns = self._clock.at_ns(span.start), self._clock.at_ns(span.end)
        self._write(Span(span.name, span.lane, start_ns, end_ns, **span.ids))
        return True
