"""Both roles' CUDA loops over copies in one process, with tensors that say they are on a device.

No device: streams and events do nothing, so all of this runs in the order in which the host issues it, and
that is what is tested. Which stream waits for which is tested with real ones, in tests/gpu.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from ppwork.plan import Plan
from ppwork.protocol.topology import GROUP_ORDER
from ppwork.records.spans import DEVICE_LANE, Recorder, read_entries, span_file
from ppwork.runtime import PPControlPlane
from ppwork.runtime.groups import Groups
from ppwork.stage import Emission
from ppwork.timeline.streams import hidden, streams
from ppwork.worker.copies import CopyGroup
from ppwork.worker.loops import leader_loop, stage0_loop
from ppwork.worker.tally import Tally

CARD = torch.device("cuda", 0)
CHUNKS = 9


class OnCard(torch.Tensor):
    """A tensor in host memory that says it is on the device."""

    is_cuda = property(lambda self: True)
    device = property(lambda self: CARD)


host_empty = torch.empty


def empty(*shape, device=None, **kind):
    tensor = host_empty(*shape, **kind)
    return tensor.as_subclass(OnCard) if device == CARD else tensor


class Event:
    """An event that passes when it is recorded."""

    def __init__(self, **kind):
        self.at_s = 0.0

    def record(self, stream=None):
        self.at_s = time.monotonic()

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return (later.at_s - self.at_s) * 1e3


class Source:
    def __init__(self):
        self.outputs = []

    def encode(self, chunk_index):
        return {"payload": empty(3000 + 500 * chunk_index, device=CARD).fill_(chunk_index)}

    def context_frames(self, chunk_index):
        return {}

    def decode(self, chunk_index, tensors):
        self.outputs.append((tensors["payload"].numel(), float(tensors["payload"].mean())))
        return Emission(tensors["payload"])


class Doubler:
    def reset_cache(self):
        pass

    def step(self, tensors, step_index, num_steps):
        return {"payload": tensors["payload"] * 2}


@pytest.fixture
def no_device(monkeypatch):
    stream = SimpleNamespace(wait_event=lambda event: None)
    cuda = {
        "Event": Event,
        "Stream": lambda *a, **k: stream,
        "current_stream": lambda device=None: stream,
        "stream": lambda stream: nullcontext(),
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
    }
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_every_chunk_comes_back_over_the_streams_whatever_the_depth(no_device, tmp_path, depth):
    plan = Plan(mesh_size=1, one_process=True, chunks=CHUNKS, in_flight_depth=depth, timeout_s=20.0)
    handles = {name: CopyGroup(20.0) for name in ("world_pg", *GROUP_ORDER)}
    source, failures = Source(), []

    def play(rank):
        groups = Groups(plan.topology, rank, CARD, 20.0, None, dict(handles))
        try:
            with (
                Recorder(span_file(tmp_path, rank)) as recorder,
                PPControlPlane.join(plan, groups=groups, recorder=recorder) as plane,
            ):
                if rank == 0:
                    stage0_loop(plane, plan, source)
                else:
                    leader_loop(plane, plan, Doubler(), Tally(rank, "leader", 0))
        except BaseException as error:  # noqa: BLE001  shown below
            failures.append(error)

    leader = threading.Thread(target=play, args=(1,), daemon=True)
    leader.start()
    play(0)
    leader.join(20.0)
    assert not failures
    assert source.outputs == [(3000 + 500 * k, 2.0 * k) for k in range(CHUNKS)]
    entries = {rank: read_entries(tmp_path, rank) for rank in (0, 1)}
    rows = {(stream.rank, stream.lane): stream.spans for stream in streams(entries)}
    assert rows[1, DEVICE_LANE] == rows[0, "cuda:down_pg"] == rows[1, "cuda:up_pg"] == CHUNKS
    assert len(hidden(entries)) == CHUNKS - 1
