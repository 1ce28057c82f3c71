"""When recorded calls ran on CUDA streams: on streams and events that write down their calls, in order.

The same cases on a card, with NCCL, are in ``tests/gpu/test_calls_on_a_card.py``.
"""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from fake_cuda import CPU, FakeCuda

from ppwork.records.calls import read_calls
from ppwork.worker import device_calls
from ppwork.worker.trace import CallRecorder


class Late(FakeCuda):
    """A device that is behind its host: events pass when the test says so, all those that were recorded.

    Attributes:
        at_ms: What the device's clock shows at each event, in their order.
        broken: Asking for anything raises.
    """

    def __init__(self):
        super().__init__()
        self.at_ms = itertools.count(10.0, 10.0)
        self.waiting, self.broken, self.capturing = [], False, False

    class Event(FakeCuda.Event):
        def record(self, stream):
            if self.cuda.broken:
                raise RuntimeError("CUDA error: unspecified launch failure")
            self.cuda.calls.append(f"{stream.name} records")
            self.stream = stream
            if stream.name == "link":  # it is the clock's own, and passes at once
                self.at_ms = 0.0
            else:
                self.cuda.waiting.append(self)

        def query(self):
            if self.stream.name != "link":
                self.cuda.calls.append("asks")
            return super().query()

    def passes(self):
        for event in self.waiting:
            event.at_ms = next(self.at_ms)
        self.waiting.clear()


class Tensor:
    """What is looked at of a tensor."""

    def __init__(self, device=CPU, *, is_cuda=True):
        self.device, self.is_cuda = device, is_cuda
        self.dtype, self.shape, self.nbytes = torch.float32, (4,), 16


class Work:
    calls: list[str]

    def wait(self):
        self.calls.append("waits")


class Group:
    group_desc, group_name = "default_pg", "0"


def fake_c10d(cuda) -> ModuleType:
    """A torch.distributed of some functions, that writes down its calls beside those of the device."""
    c10d = ModuleType("fake_c10d")
    c10d.Work, c10d.ProcessGroup = type("Work", (Work,), {"wait": Work.wait}), Group
    c10d.GroupMember = SimpleNamespace(WORLD=Group())
    c10d.get_process_group_ranks, c10d.get_backend = lambda group: [0, 1], lambda group: "nccl"

    def all_reduce(tensor, op=None, group=None, async_op=False):
        cuda.calls.append("all_reduce")
        return c10d.Work() if async_op else None

    def send(tensor, dst=None, group=None, tag=0):
        cuda.calls.append("send")
        raise ValueError("no such rank")

    def batch_isend_irecv(p2p_op_list):
        cuda.calls.append("batch")
        return [c10d.Work() for _ in p2p_op_list]

    def isend():
        pass

    for function in (all_reduce, send, batch_isend_irecv, isend):
        setattr(c10d, function.__name__, function)
    return c10d


@pytest.fixture
def cuda(monkeypatch):
    cuda = Late().installed(monkeypatch)

    class Graph:
        def capture_begin(self):
            cuda.calls.append("captures")

        def capture_end(self):
            cuda.calls.append("captured")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: cuda.capturing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(device_calls, "EVERY_NS", 0)
    monkeypatch.setattr(Work, "calls", cuda.calls, raising=False)
    return cuda


@pytest.fixture
def dist(cuda, monkeypatch, tmp_path):
    """The functions, recorded; ``recorder`` is who does so."""
    c10d = fake_c10d(cuda)
    monkeypatch.setitem(sys.modules, c10d.__name__, c10d)
    c10d.recorder = CallRecorder(tmp_path, 0, 2)
    c10d.recorder._replace_public(SimpleNamespace(distributed_c10d=c10d))
    c10d.recorder._devices = device_calls.DeviceCalls(c10d.recorder._write)
    cuda.calls.clear()
    return c10d


@pytest.fixture
def seen(tmp_path):
    """The calls of the rank as they were written."""
    return lambda: read_calls(tmp_path)[0].calls


def of_the_clock(calls):
    return [call for call in calls if not call.startswith("link")]


def test_events_stand_round_the_call_and_are_read_when_they_have_passed(dist, cuda, seen):
    dist.all_reduce(Tensor())
    assert of_the_clock(cuda.calls)[:3] == ["compute records", "all_reduce", "compute records"]
    (call,) = seen()
    assert call.device is None
    cuda.passes()
    dist.all_reduce(Tensor(is_cuda=False))
    dist.recorder._devices.leave()
    first, second = seen()
    assert first.device.stream == "cuda"
    assert first.device.end_ns - first.device.start_ns == 10_000_000
    assert second.device is None


def test_with_a_handle_the_second_event_stands_where_the_wait_is(dist, cuda, seen):
    handle = dist.all_reduce(Tensor(), async_op=True)
    assert of_the_clock(cuda.calls) == ["compute records", "all_reduce"]
    other = cuda.Stream(cuda, "other")
    with torch.cuda.stream(other):
        handle.wait()
    assert of_the_clock(cuda.calls)[2:4] == ["waits", "other records"]
    cuda.passes()
    dist.recorder._devices.leave()
    assert [call.device.stream if call.device else None for call in seen()] == ["cuda", None]


def test_of_a_batch_the_last_wait_counts(dist, cuda, seen):
    ops = [SimpleNamespace(op=dist.isend, tensor=Tensor(), peer=1, tag=0, group=None) for _ in range(2)]
    first, second = dist.batch_isend_irecv(ops)
    second.wait()
    second.wait()
    assert "compute records" not in cuda.calls[cuda.calls.index("batch") :]
    first.wait()
    assert cuda.calls.count("compute records") == 2


def test_streams_of_the_programs_own_have_names(dist, cuda, seen):
    own = [cuda.Stream(cuda, "other") for _ in range(2)]
    for stream in (own[0], own[1], own[0]):
        with torch.cuda.stream(stream):
            dist.all_reduce(Tensor())
    dist.all_reduce(Tensor())
    cuda.passes()
    dist.recorder._devices.leave()
    assert [call.device.stream for call in seen()] == ["stream 1", "stream 2", "stream 1", "cuda"]


def test_a_call_that_raises_leaves_no_event_to_be_read(dist, cuda, seen):
    with pytest.raises(ValueError, match="no such rank"):
        dist.send(Tensor(), 1)
    cuda.passes()
    dist.recorder._devices.leave()
    (call,) = seen()
    assert call.error.startswith("ValueError")
    assert call.device is None


@pytest.mark.parametrize("by", ["this stream", "a graph of another thread"])
def test_while_a_graph_is_captured_nothing_is_asked_of_cuda(dist, cuda, seen, by):
    graph = torch.cuda.CUDAGraph()
    dist.all_reduce(Tensor())
    cuda.calls.clear()
    if by == "this stream":
        cuda.capturing = True
    else:
        graph.capture_begin()
    dist.all_reduce(Tensor())
    dist.all_reduce(Tensor(), async_op=True).wait()
    dist.recorder._devices.leave()
    assert set(cuda.calls) <= {"captures", "all_reduce", "waits"}
    cuda.capturing = False
    if by != "this stream":
        graph.capture_end()
    dist.all_reduce(Tensor())
    cuda.passes()
    dist.recorder._devices.leave()
    assert [call.device is not None for call in seen()] == [True, False, False, False, True]


def test_what_has_not_passed_at_the_end_is_not_told_and_not_waited_for(dist, cuda, seen):
    dist.all_reduce(Tensor())
    dist.recorder._leave()  # FakeCuda's events and device refuse to be waited for before they pass
    assert [call.device for call in seen()] == [None]
    assert "asks" in cuda.calls


def test_after_an_error_of_cuda_the_program_goes_on_and_nothing_is_asked_any_more(dist, cuda, seen):
    dist.all_reduce(Tensor())
    cuda.broken = True
    dist.all_reduce(Tensor())
    cuda.broken = False
    cuda.calls.clear()
    dist.all_reduce(Tensor())
    dist.recorder._leave()
    assert cuda.calls == ["all_reduce"]
    assert len(seen()) == 3


def test_a_host_that_is_far_ahead_keeps_a_bounded_number_of_events(dist, cuda, monkeypatch):
    monkeypatch.setattr(device_calls, "MOST", 5)
    for _ in range(20):
        dist.all_reduce(Tensor())
    for _ in range(20):
        dist.all_reduce(Tensor(), async_op=True)
    assert cuda.calls.count("compute records") <= 2 * 7


def test_a_device_that_is_busy_at_the_first_call_gets_its_clock_later(dist, cuda, monkeypatch, seen):
    quiet = cuda.Event.query
    monkeypatch.setattr(cuda.Event, "query", lambda event: False)
    dist.all_reduce(Tensor())
    assert of_the_clock(cuda.calls) == ["all_reduce"]
    monkeypatch.setattr(cuda.Event, "query", quiet)
    dist.all_reduce(Tensor())
    cuda.passes()
    dist.recorder._devices.leave()
    assert [call.device is not None for call in seen()] == [False, True]
