"""A link on a device, without one: who waits for whom, what is allocated when, the clock (tests/gpu)."""

from types import SimpleNamespace

import pytest
import torch
from fake_cuda import CPU, FakeCuda

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, TensorSpec
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role
from ppwork.protocol.wire import Decoder
from ppwork.records.spans import Recorder
from ppwork.runtime import cuda_spans
from ppwork.runtime.cuda_links import CudaLink, CudaLinks
from ppwork.runtime.cuda_spans import CudaSpans
from ppwork.runtime.messages import Incoming, Preflight, limits_of
from ppwork.runtime.slots import InSlot
from ppwork.runtime.stage0 import Stage0Plane
from ppwork.runtime.tensors import as_bytes, spec_of

SLOTS = 3
SPECS = [TensorSpec("x", "uint8", (64,), "cuda")]


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda().installed(monkeypatch)


@pytest.fixture
def link(cuda):
    made = CudaLink("down_pg", CPU, slots=SLOTS, spans=CudaSpans(lambda span: None, CPU))
    for number, slot in enumerate(made._slots):
        slot.full.name, slot.empty.name = f"{number}.full", f"{number}.empty"
    cuda.calls.clear()
    return made


def part(value: float = 1.0) -> torch.Tensor:
    return as_bytes(torch.full((16,), value))


def of_slots(cuda: FakeCuda) -> list[str]:
    """Return the calls that order slots, without the spans' own events and allocations."""
    return [call for call in cuda.calls if call.endswith((".full", ".empty", "issued"))]


def test_a_message_is_in_its_slot_before_anything_is_issued(cuda, link):
    """R1: all that may find no memory, or a broken device, is in ``fill``."""
    filled = link.fill([part(7.0)])
    assert of_slots(cuda) == ["compute waits for 0.empty", "compute records 0.full"]
    assert filled.raw.view(torch.float32).tolist() == [7.0] * 16
    link.send(filled, lambda raw: cuda.calls.append(f"{cuda.current.name} issued"))
    assert of_slots(cuda)[2:] == ["link waits for 0.full", "link issued", "link records 0.empty"]


def test_an_arrival_is_passed_on_and_taken_behind_its_receive(cuda, link):
    arrival = link.reserve(SPECS)
    assert of_slots(cuda) == ["link waits for 0.empty"]
    link.receive(arrival, lambda raw: cuda.calls.append("received issued"))
    link.pass_on(arrival, lambda raw: cuda.calls.append("broadcast issued"))
    assert link.take(arrival)["x"].shape == (64,)
    assert of_slots(cuda)[1:] == [
        "received issued",
        "link records 0.full",
        "link waits for 0.full",
        "broadcast issued",
        "link records 0.full",
        "compute waits for 0.full",
        "compute records 0.empty",
    ]


def test_a_new_ring_gets_all_its_memory_with_the_first_message(cuda, link):
    for _ in range(2 * SLOTS):
        link.send(link.fill([part()]), lambda raw: None)
    assert [call for call in cuda.calls if call.startswith("allocates")] == ["allocates 64"] * SLOTS
    link.fill([part(), part()])
    assert cuda.calls.count("allocates 320") == 1, "one that is outgrown later grows alone: others are in use"


def test_a_message_that_nobody_took_is_not_written_over(link):
    arrivals = [link.reserve(SPECS) for _ in range(SLOTS)]
    with pytest.raises(
        LocalProtocolError, match="3 messages had come over down_pg, and none of them was taken"
    ):
        link.reserve(SPECS)
    link.take(arrivals[0])
    for _ in range(SLOTS - 1):
        next(link._ring)  # the one that was refused took the first slot's turn
    assert link.reserve(SPECS).slot is arrivals[0].slot


def test_a_slot_from_inference_mode_is_written_to_outside(link):
    with torch.inference_mode():
        link.fill([part()])
    for _ in range(SLOTS):
        assert link.fill([part(2.0)]).raw.view(torch.float32)[0] == 2.0


# What runs out of memory has sent nothing


def envelope(**tensors) -> PPEnvelope:
    return PPEnvelope(PPAction.INFER, Ids(0, 0, 0), ChunkPlan.of(1), tensors=tensors)


def on_card(tensors) -> tuple[TensorSpec, ...]:
    """Return specs as if the tensors were on the device."""
    specs = [spec_of(name, tensor, CPU) for name, tensor in tensors.items()]
    return tuple(TensorSpec(spec.name, spec.dtype, spec.shape, "cuda") for spec in specs)


def test_a_message_without_room_has_announced_nothing(cuda, link):
    """Its schema would else be taken for known, and the next message with it refused by the receiver."""
    preflight = Preflight(limits_of(PipelinePlan()), CPU, link.fill)
    preflight._specs = SimpleNamespace(specs_of=on_card)
    cuda.room = 63
    with pytest.raises(LocalProtocolError, match="no room for 64 bytes, one of 3 slots of down_pg") as caught:
        preflight(envelope(x=torch.ones(16)))
    assert "nvidia-smi" in caught.value.check_first
    assert "link" not in " ".join(cuda.calls)
    cuda.room = None
    outgoing = preflight(envelope(x=torch.ones(16)))
    assert outgoing.in_slot.raw.numel() == 64
    decoder = Decoder(limits_of(PipelinePlan()))
    frame = outgoing.head[0].numpy().tobytes()
    assert decoder.body(decoder.header(frame), frame, b"").layout.specs == on_card({"x": torch.ones(16)})


@pytest.fixture
def plane(cuda, monkeypatch):
    """Rank 0's end on a device that is not there, and what passed on the way out: ``plane.passed``."""
    passed = []

    class Sender:
        def __init__(self, *args):
            pass

        def send(self, outgoing):
            passed.append("frame")

        def issue(self, raw):
            passed.append("tensors")

    monkeypatch.setattr("ppwork.runtime.stage0.P2PSender", Sender)
    monkeypatch.setattr("ppwork.runtime.stage0.P2PReceiver", Sender)
    plan = PipelinePlan(mesh_size=2, in_flight_depth=SLOTS - 1)
    device = torch.device("cuda", 0)
    groups = SimpleNamespace(
        rank=0, role=Role.STAGE0, topology=plan.topology, device=device, timeout_s=plan.timeout_s
    )
    made = Stage0Plane(plan, groups, Recorder(None), hook=lambda point, ids: passed.append(point))
    made.preflight._specs = SimpleNamespace(specs_of=on_card)
    made.passed = passed
    return made


def test_rank_0_without_room_has_sent_nothing_and_may_go_on(cuda, plane):
    """R1: what may find no memory comes before the commitment point."""
    cuda.room = 63
    with pytest.raises(LocalProtocolError, match="no room for 64 bytes") as caught:
        plane.send({"x": torch.ones(16)})
    assert caught.value.where == {
        "rank": 0,
        "role": "stage0",
        "group": "down_pg",
        "call_id": 0,
        "chunk_index": 0,
        "cache_epoch": 0,
    }
    assert plane.passed == []
    cuda.room = None
    assert plane.send({"x": torch.ones(16)}) == Ids(0, 0, 0)
    assert plane.passed[0] == "envelope.send"
    assert "tensors" in plane.passed


def test_a_rank_that_fails_writes_the_spans_that_are_over(cuda, plane):
    """A device that has failed itself does not keep it from leaving."""
    written = []
    plane.device.spans._write = written.append
    with plane.device.computing("generate", {}):
        pass
    with plane.device.computing("result", {}) as broken:
        pass
    plane.device.spans._running[1].end.at_ms = torch  # asking for its time raises
    assert broken.end.query()
    plane.fail(ValueError("the cause"))
    assert [span.name for span in written] == ["generate"]


def links_of(rank: int) -> CudaLinks:
    plan = PipelinePlan(mesh_size=2, in_flight_depth=SLOTS - 1)
    groups = SimpleNamespace(rank=rank, topology=plan.topology, device=CPU)
    return CudaLinks(groups, Recorder(None), plan.in_flight_depth)


def incoming(specs=SPECS) -> Incoming:
    layout = SimpleNamespace(specs=tuple(specs))
    return Incoming(envelope(), None, [], None, layout)


def test_an_arrival_without_room_names_link_and_chunk(cuda):
    cuda.room = 0
    with pytest.raises(LocalProtocolError, match="slots of down_pg") as caught:
        links_of(1).reserve("down_pg", incoming())
    assert caught.value.where == {"group": "down_pg", "call_id": 0, "chunk_index": 0, "cache_epoch": 0}


def test_a_message_without_tensors_takes_no_slot(cuda):
    links, heartbeat = links_of(2), incoming(())
    for _ in range(2 * SLOTS):
        links.reserve("mesh_pg", heartbeat)
        links.receive("mesh_pg", heartbeat, lambda raw: pytest.fail("nothing is to be received"))
        assert links.complete("mesh_pg", heartbeat) is heartbeat.message


# Spans of the device


def test_a_rank_that_only_receives_writes_its_spans_while_it_runs(cuda):
    """A follower never sends."""
    links, written = links_of(2), []
    links.spans._write = written.append
    for k in range(1, 4):
        message = incoming()
        links.reserve("mesh_pg", message)
        links.receive("mesh_pg", message, lambda raw: None)
        assert isinstance(message.in_slot, InSlot)
        links.complete("mesh_pg", message)
        assert [span.name for span in written] == ["receive"] * k
    assert links.spans._running == []


def test_the_clock_follows_the_drift_of_the_device(cuda):
    """20 ppm are 72 ms in an hour."""
    cuda.host_ns, cuda.fast_ppm = 10**9, 20.0
    written = []
    spans = CudaSpans(written.append, CPU)
    for _ in range(3600):
        cuda.host_ns += 10**9
        with spans.span("tick", lane="cuda:compute"):
            pass
        spans.poll()
    assert abs(written[-1].start_ns - cuda.host_ns) < 200_000


def test_a_calibration_that_the_device_keeps_waiting_changes_nothing(cuda, monkeypatch):
    """Its event may be queued behind a kernel that waits for a peer."""
    cuda.host_ns = 10**9
    clock = cuda_spans.CudaClock(CPU)
    late = cuda.Event(cuda)
    cuda.host_ns += 9 * 10**9
    late.record(cuda.current)
    ticks = iter(range(10**10, 10**11, 400_000))
    monkeypatch.setattr(cuda_spans, "time", SimpleNamespace(monotonic_ns=lambda: next(ticks)))
    monkeypatch.setattr(cuda.Event, "query", lambda event: False)
    assert clock.at_ns(late) == clock.at_ns(late)
    assert clock.uncertainty_ns < cuda_spans.PATIENCE_MID_RUN_NS
    assert clock._zero is late
