"""Streams and events of a device that is not there: every call on them is written down, in order.

Buffers are real, on the CPU. What overlaps on a card cannot be seen here; who was told to wait for whom can.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace

import torch

CPU = torch.device("cpu")


class FakeCuda:
    """A device of which one stream is current; put it in torch's place with ``installed``.

    Attributes:
        calls: What was called, in order: ``compute waits for 1.empty`` is a stream and an event.
        room: Largest buffer that there is memory for, in bytes.
        host_ns: Nanoseconds that the host's clock shows, where a test moves it.
        fast_ppm: How much faster the device's clock goes than the host's.
    """

    def __init__(self):
        self.calls: list[str] = []
        self.room: int | None = None
        self.host_ns: int | None = None
        self.fast_ppm = 0.0
        self.current = self.Stream(self, "compute")

    class Stream:
        def __init__(self, cuda, name):
            self.cuda, self.name = cuda, name
            self.cuda_stream = 0 if name == "compute" else id(self)

        def wait_event(self, event):
            self.cuda.calls.append(f"{self.name} waits for {event.name}")

    class Event:
        def __init__(self, cuda):
            self.cuda, self.name, self.at_ms = cuda, "", None

        def record(self, stream):
            self.cuda.calls.append(f"{stream.name} records {self.name}")
            self.at_ms = self.cuda.now_ns() * (1 + self.cuda.fast_ppm * 1e-6) / 1e6

        def query(self):
            return self.at_ms is not None

        def synchronize(self):
            assert self.query(), "the device is waited for in vain"

        def elapsed_time(self, end):
            return end.at_ms - self.at_ms

    def now_ns(self):
        return time.monotonic_ns() if self.host_ns is None else self.host_ns

    def installed(self, monkeypatch):
        """Answer torch's calls; returns self."""
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "Stream", lambda device: self.Stream(self, "link"))
        monkeypatch.setattr(cuda, "Event", lambda **kwargs: self.Event(self))
        monkeypatch.setattr(cuda, "current_stream", lambda device=None: self.current)
        monkeypatch.setattr(cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(cuda, "stream", self._on)
        monkeypatch.setattr(cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        monkeypatch.setattr("ppwork.runtime.cuda_spans.time", SimpleNamespace(monotonic_ns=self.now_ns))
        empty = torch.empty

        def in_room(*size, **kwargs):
            if self.room is not None and size[0] > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.calls += [f"allocates {size[0]}"] if size[0] else []
            return empty(*size, **{**kwargs, "device": CPU})

        monkeypatch.setattr("ppwork.runtime.cuda_links.torch.empty", in_room)
        return self

    @contextmanager
    def _on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before
