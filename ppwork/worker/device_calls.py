"""When recorded calls ran on CUDA streams: two events round each call, read once both have passed.

A call returns to the host long before its stream has done the work: the host's times say when the call was
launched. The events are recorded on the stream that is current at the call, and at the wait for its handle:
they span from when that stream reached the call until it had the call's result. NCCL may have begun later,
when the peer did.

Nothing here waits for the device or raises. Events that have not passed when the program ends are not
written. While a CUDA graph is captured, CUDA is not queried (a query can end the capture), and after a CUDA
error it is not queried any more.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ppwork.records.calls import ANY, OnDevice
from ppwork.records.spans import Span

MOST = 512
"""Most calls with open events: the host may be that far ahead of its device. Further calls get no time."""
EVERY_NS = 20_000_000
"""Time between two polls of the events."""
ROUGH_NS = 1_000_000
"""A device clock with more uncertainty than this is not used; the next call tries again."""


class DeviceCalls:
    """The device times of calls that any thread of this process makes.

    Args:
        write: Gets a call's times once they are known.
    """

    def __init__(self, write: Callable[[OnDevice], None]) -> None:
        import torch

        from ppwork.runtime import cuda_spans

        self._cuda, self._spans = torch.cuda, cuda_spans
        self._write = write
        self._lock = threading.Lock()
        self._devices: dict[Any, Any] = {}
        """The spans of each device in use."""
        self._names: dict[tuple[Any, int], str] = {}
        """Names of streams, by device and handle."""
        self._open: dict[int, tuple[Any, Any, set[int]]] = {}
        """By call number: device, span, and the handles that were not waited for."""
        self._captures = 0
        self._broken = False
        self._looked_ns = 0
        self._know_captures()

    def begin(self, number: int, tensor: Any) -> None:  # noqa: ANN401  of torch
        """Note that a call with this tensor, which is on a device, is about to be made."""
        with self._asking() as asks:
            if not asks or len(self._open) + sum(spans.running for spans in self._devices.values()) > MOST:
                return
            device = tensor.device
            spans = self._devices.get(device)
            if spans is None:
                clock = self._spans.CudaClock(device, idle=False)
                if clock.uncertainty_ns > ROUGH_NS:
                    return
                spans = self._devices[device] = self._spans.CudaSpans(self._passed, device, clock)
            stream = self._cuda.current_stream(device)
            lane = self._name(device, stream)
            span = spans.begin("", lane=lane, stream=stream, ids={"call_id": number})
            self._open[number] = device, span, set()

    def end(self, number: int, handles: int = 0) -> None:
        """Note that a call returned; if it has handles, it is over when all of them were waited for."""
        begun = self._open.get(number)
        if begun is not None and handles:
            begun[2].update(range(handles) if handles > 1 else (ANY,))
        elif begun is not None:
            self._end(number)

    def waited(self, number: int, handle: int) -> None:
        """Note that the stream that is current here has the result of a handle."""
        begun = self._open.get(number)
        if begun is not None:
            begun[2].discard(handle)
            if not begun[2]:
                self._end(number)

    def dropped(self, number: int) -> None:
        """Note that a call raised."""
        self._open.pop(number, None)

    def leave(self) -> None:
        """Write the times of all calls that have passed by now."""
        if self._devices:
            with self._asking() as asks:
                if asks:
                    self._look()

    def _end(self, number: int) -> None:
        begun = self._open.pop(number, None)
        if begun is None:  # another thread waited for the last handle first, or CUDA had an error
            return
        device, span, _ = begun
        with self._asking() as asks:
            if asks:
                self._devices[device].end(span, self._cuda.current_stream(device))
                if time.monotonic_ns() - self._looked_ns > EVERY_NS:
                    self._look()

    def _look(self) -> None:
        self._looked_ns = time.monotonic_ns()
        for spans in self._devices.values():
            spans.poll()

    def _passed(self, span: Span) -> None:
        self._write(OnDevice(span.call_id, span.lane, span.start_ns, span.end_ns))

    def _name(self, device: Any, stream: Any) -> str:  # noqa: ANN401
        key = device, stream.cuda_stream
        if key not in self._names:
            own = sum(other == device for other, handle in self._names if handle)
            which = "" if device == next(iter(self._devices)) else f" of {device}"
            self._names[key] = (f"stream {own + 1}" if stream.cuda_stream else "cuda") + which
        return self._names[key]

    @contextmanager
    def _asking(self) -> Iterator[bool]:
        """Say whether CUDA may be queried; an error in the body ends all queries."""
        with self._lock:
            try:
                asks = self._devices_may_be_asked()
            except Exception:  # noqa: BLE001
                asks, self._broken = False, True
            try:
                yield asks
            except Exception:  # noqa: BLE001  an earlier error of the program, which CUDA reports to it as well
                self._broken = True
                self._open.clear()

    def _devices_may_be_asked(self) -> bool:
        return not (self._broken or self._captures or self._cuda.is_current_stream_capturing())

    def _know_captures(self) -> None:
        """Track graph captures by any thread: most queries would end the capture."""
        graph = self._cuda.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end

        @functools.wraps(begin)
        def begun(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            with self._lock:
                self._captures += 1
            try:
                return begin(*args, **kwargs)
            except BaseException:
                with self._lock:
                    self._captures -= 1
                raise

        @functools.wraps(end)
        def ended(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            try:
                return end(*args, **kwargs)
            finally:
                with self._lock:
                    self._captures -= 1

        graph.capture_begin = begun  # type: ignore[method-assign]
        graph.capture_end = ended  # type: ignore[method-assign]
