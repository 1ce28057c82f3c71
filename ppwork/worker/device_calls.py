"""When recorded calls ran on CUDA streams: a pair of events round each, read once both have passed.

A call comes back to the host long before its stream has done it: the host's times say when it was launched.
The events are put on the stream that is current at the call, and at the wait for its handle: from when that
stream came to the call until it had what the call is for. NCCL may have begun later, as the peer does.

Nothing here waits for the device or raises: what has not passed when the program ends is not told, while a
CUDA graph is captured nothing is asked of CUDA (a question can end a capture), and after an error of CUDA
nothing is asked any more.
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
"""Calls whose events are out: the host may be so far ahead of its device. Of more there is no device time."""
EVERY_NS = 20_000_000
"""Time between two looks at the events."""
ROUGH_NS = 1_000_000
"""A device's clock that is no better than this is none: it is tried again at the next call."""


class DeviceCalls:
    """The device times of this process's calls, from any of its threads.

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
        """The spans of each device that was used."""
        self._names: dict[tuple[Any, int], str] = {}
        """Of streams, by device and handle."""
        self._open: dict[int, tuple[Any, Any, set[int]]] = {}
        """By the number of the call: device, span, and the handles that were not waited for."""
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
        """Note that a call came back; with handles it is over when all of them were waited for."""
        begun = self._open.get(number)
        if begun is not None and handles:
            begun[2].update(range(handles) if handles > 1 else (ANY,))
        elif begun is not None:
            self._end(number)

    def waited(self, number: int, handle: int) -> None:
        """Note that the stream that is current here has what a handle is for."""
        begun = self._open.get(number)
        if begun is not None:
            begun[2].discard(handle)
            if not begun[2]:
                self._end(number)

    def dropped(self, number: int) -> None:
        """Note that a call raised."""
        self._open.pop(number, None)

    def leave(self) -> None:
        """Write what has passed by now."""
        if self._devices:
            with self._asking() as asks:
                if asks:
                    self._look()

    def _end(self, number: int) -> None:
        begun = self._open.pop(number, None)
        if begun is None:  # another thread that waited for its last handle was first, or CUDA had an error
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
        """Say whether CUDA may be asked; what it answers in the body with an error is the last."""
        with self._lock:
            try:
                asks = self._devices_may_be_asked()
            except Exception:  # noqa: BLE001
                asks, self._broken = False, True
            try:
                yield asks
            except Exception:  # noqa: BLE001  an earlier error of the program, which it will hear of itself
                self._broken = True
                self._open.clear()

    def _devices_may_be_asked(self) -> bool:
        return not (self._broken or self._captures or self._cuda.is_current_stream_capturing())

    def _know_captures(self) -> None:
        """Know of graphs that any thread captures: most of what could be asked would end the capture."""
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
