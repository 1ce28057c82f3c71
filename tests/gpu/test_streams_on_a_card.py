"""Edges between streams, spans of the device, and overlap on CUDA.

Run with `pytest -m gpu tests/gpu`. The tests of edges need one GPU and one process: the transfer is a copy on
the link's stream, the streams and events are real. A canary leaves one edge out, delays the stream that the
edge waits for, and must see wrong data; the same rounds with all edges must not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import ppwork as pp
from ppwork.protocol.envelope import TensorSpec
from ppwork.records.spans import Span
from ppwork.runtime import cuda_spans
from ppwork.runtime.cuda_links import CudaLink, StreamWait
from ppwork.runtime.cuda_spans import CudaSpans
from ppwork.runtime.tensors import as_bytes

pytestmark = pytest.mark.gpu

SLOTS = 3
ROUNDS = 4 * SLOTS
NUMEL = 1 << 19
ARENA_BYTES = 1 << 29
DELAY_MS = 20.0
"""Long against launching a round from the host, so that who is not told to wait does not wait."""
HARD_LIMIT_S = 300.0


@pytest.fixture(scope="module")
def device():
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


@pytest.fixture(scope="module")
def delay(device):
    """Return what occupies the current stream for some milliseconds.

    Loading a kernel and asking the driver for memory may wait for the device, and so hide a race: kernels are
    loaded here, and the allocator gets memory to cut from.
    """
    torch.empty(ARENA_BYTES, dtype=torch.uint8, device=device)
    cycles = 50_000_000
    torch.cuda._sleep(cycles)
    torch.ones(8, device=device).clone().fill_(0.0).copy_(torch.full((8,), 2.0, device=device))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    cycles_per_ms = cycles / start.elapsed_time(end)
    return lambda ms: torch.cuda._sleep(int(ms * cycles_per_ms)) if ms else None


@dataclass
class Rounds:
    """Chunk k is k + 1 everywhere; ``run`` sends or receives all of them and says whether each came whole."""

    device: torch.device
    delay: object
    without: frozenset[StreamWait] = frozenset()
    compute_ms: float = 0.0
    link_ms: float = 0.0
    mesh_ms: float = 0.0
    numels: list[int] = field(default_factory=lambda: [NUMEL] * ROUNDS)
    slots: int = SLOTS

    def link(self, name: str) -> CudaLink:
        spans = CudaSpans(lambda span: None, self.device)
        return CudaLink(name, self.device, slots=self.slots, spans=spans, without=self.without)

    def chunks(self) -> list[torch.Tensor]:
        return [torch.full((n,), k + 1.0, device=self.device) for k, n in enumerate(self.numels)]

    def copy(self, into: torch.Tensor, source: torch.Tensor, ms: float) -> None:
        self.delay(ms)
        into.copy_(source)

    def whole(self, results: list[torch.Tensor]) -> bool:
        torch.cuda.synchronize()
        return all(bool((r.view(torch.float32) == k + 1.0).all()) for k, r in enumerate(results))

    def overwrite_freed(self, k: int) -> None:
        """Be the next owner of the buffer that round k may have given up, on the current stream."""
        numel = self.numels[max(0, k - self.slots)]
        _ = [torch.full((numel,), -1.0, device=self.device) for _ in range(4)]

    def send(self) -> bool:
        link = self.link("down_pg")
        sinks = [torch.zeros_like(as_bytes(chunk)) for chunk in self.chunks()]
        torch.cuda.synchronize()
        for k, (numel, sink) in enumerate(zip(self.numels, sinks, strict=True)):
            self.delay(self.compute_ms)
            chunk = torch.full((numel,), k + 1.0, device=self.device)
            filled = link.fill([as_bytes(chunk)])
            link.send(filled, lambda raw, to=sink: self.copy(to, raw, self.link_ms))
            chunk.fill_(-1.0)  # the caller's again
            self.overwrite_freed(k)
        return self.whole(sinks)

    def receive(self) -> bool:
        return self.take_and_pass_on(mesh=False)[0]

    def relay(self) -> bool:
        return all(self.take_and_pass_on(mesh=True))

    def take_and_pass_on(self, *, mesh: bool) -> tuple[bool, bool]:
        """Say whether compute took each chunk whole, and whether the mesh's stream read each whole."""
        link, onward = self.link("down_pg"), self.link("mesh_pg")
        chunks = self.chunks()
        sinks = [torch.zeros_like(as_bytes(chunk)) for chunk in chunks]
        taken = []
        torch.cuda.synchronize()
        for k, (chunk, sink) in enumerate(zip(chunks, sinks, strict=True)):
            specs = [TensorSpec("chunk", "float32", tuple(chunk.shape), "cuda")]
            source = as_bytes(chunk)
            arrival = link.reserve(specs)
            link.receive(arrival, lambda raw, of=source: self.copy(raw, of, self.link_ms))
            if mesh:
                onward.pass_on(arrival, lambda raw, to=sink: self.copy(to, raw, self.mesh_ms))
            self.delay(self.compute_ms)
            taken.append(link.take(arrival)["chunk"])
            with torch.cuda.stream(link.stream):
                self.overwrite_freed(k)
        return self.whole(taken), self.whole(sinks)


CANARIES = {
    StreamWait.SEND: ("send", {"compute_ms": DELAY_MS}),
    StreamWait.REFILL: ("send", {"link_ms": DELAY_MS}),
    StreamWait.TAKE: ("receive", {"link_ms": DELAY_MS}),
    StreamWait.REUSE: ("receive", {"compute_ms": DELAY_MS}),
    StreamWait.RELAY: ("relay", {"link_ms": DELAY_MS}),
}
"""For each edge the way, and whom to delay so that it is missed."""


def test_every_edge_has_its_canary():
    assert set(CANARIES) == set(StreamWait)


@pytest.mark.parametrize("edge", list(StreamWait))
def test_data_is_wrong_without_the_edge_and_right_with_it(device, delay, edge):
    way, delays = CANARIES[edge]
    assert not getattr(Rounds(device, delay, frozenset({edge}), **delays), way)()
    assert getattr(Rounds(device, delay, **delays), way)()


def test_a_slot_is_not_received_into_while_it_is_still_being_passed_on(device, delay):
    """No edge leads from the mesh's stream to the down link's: ``take`` waits for both and gives it back."""
    slow_mesh = {"mesh_ms": DELAY_MS}
    assert not Rounds(device, delay, frozenset({StreamWait.TAKE}), **slow_mesh).take_and_pass_on(mesh=True)[1]
    assert Rounds(device, delay, **slow_mesh).take_and_pass_on(mesh=True) == (True, True)


GROWING = [NUMEL * (1 + k) for k in range(6)]


def test_a_buffer_that_was_outgrown_is_not_given_away_while_it_is_sent(device, delay):
    growing = {"link_ms": DELAY_MS, "numels": GROWING, "slots": 1}
    assert not Rounds(device, delay, frozenset({StreamWait.REFILL}), **growing).send()
    assert Rounds(device, delay, **growing).send()


@pytest.mark.parametrize("way", ["send", "receive", "relay"])
@pytest.mark.parametrize("slow", ["compute_ms", "link_ms", "mesh_ms"])
@pytest.mark.parametrize("slots", [1, SLOTS])
def test_nothing_is_wrong_over_many_rounds_of_changing_sizes(device, delay, way, slow, slots):
    numels = [NUMEL * (1 + k % 5) for k in range(4 * ROUNDS)]
    assert getattr(Rounds(device, delay, numels=numels, slots=slots, **{slow: 1.0}), way)()


def test_a_message_without_bytes_issues_nothing(device):
    link = Rounds(device, None).link("down_pg")
    specs = [TensorSpec("none", "float32", (0, 3), "cuda")]
    calls = []
    link.send(link.fill([]), calls.append)
    arrival = link.reserve(specs)
    link.receive(arrival, calls.append)
    assert link.take(arrival)["none"].shape == (0, 3)
    assert calls == []


# Spans of the device on the host's clock


def test_a_span_has_the_length_and_the_place_that_the_host_sees(device, delay):
    written: list[Span] = []
    spans = CudaSpans(written.append, device)
    torch.cuda.synchronize()
    start_ns = time.monotonic_ns()
    with spans.span("sleep", lane="cuda:compute", ids={"chunk_index": 3}) as timed:
        delay(200.0)
    torch.cuda.synchronize()
    end_ns = time.monotonic_ns()
    spans.poll()
    (span,) = written
    assert (span.name, span.lane, span.chunk_index) == ("sleep", "cuda:compute", 3)
    assert span.ms == pytest.approx((end_ns - start_ns) / 1e6, rel=0.05)
    assert timed.ns == pytest.approx(span.end_ns - span.start_ns, rel=0.01)
    slack_ns = 1_000_000  # of two host readings around a calibration
    assert start_ns - slack_ns <= span.start_ns < span.end_ns <= end_ns + slack_ns


def test_a_span_is_written_when_it_is_over_and_asking_does_not_wait(device, delay):
    written: list[Span] = []
    spans = CudaSpans(written.append, device)
    torch.cuda.synchronize()
    start_ns = time.monotonic_ns()
    with spans.span("sleep", lane="cuda:compute"):
        delay(200.0)
    spans.poll()
    assert (time.monotonic_ns() - start_ns) / 1e6 < 150.0
    assert written == []
    spans.flush()
    assert [span.name for span in written] == ["sleep"]


def test_the_clock_keeps_its_time_when_its_zero_moves(device, delay, monkeypatch):
    monkeypatch.setattr(cuda_spans, "REBASE_MS", 1.0)
    written: list[Span] = []
    spans = CudaSpans(written.append, device)
    torch.cuda.synchronize()
    start_ns = time.monotonic_ns()
    for _ in range(40):
        with spans.span("sleep", lane="cuda:compute"):
            delay(5.0)
        spans.poll()
    spans.flush()
    whole_ms = (time.monotonic_ns() - start_ns) / 1e6
    assert (written[-1].end_ns - written[0].start_ns) / 1e6 == pytest.approx(whole_ms, rel=0.05)
    # A new zero may be off by the width of its calibration.
    assert all(before.end_ns <= after.start_ns + 200_000 for before, after in pairwise(written))


# A whole run


def run_at(depth: int, out: Path) -> pp.Run:
    plan = pp.Plan(
        mesh_size=2,
        chunks=12,
        hard_cuts=(7,),
        backend="nccl",
        share_gpu=True,
        timeout_s=120.0,
        in_flight_depth=depth,
        stage0="cuda_toys:CudaCounter",
        stage1="cuda_toys:CudaSum",
        options={"payload_mb": 4.0, "stage0_cycles": 20_000_000, "stage1_cycles": 100_000_000},
    )
    return pp.launch(plan, out=out, limit_s=HARD_LIMIT_S)


def hidden_transfers(run: pp.Run) -> set[int]:
    """Chunks that were on the leader's device, and passed on, before its work on an earlier one was over.

    A transfer's span begins on the link's stream, before NCCL lets it start: only its end says something.
    """
    on_device = [e for e in run.entries(1) if isinstance(e, Span) and e.lane.startswith("cuda:")]
    generates = [e for e in on_device if e.name == "generate"]
    transfers = [e for e in on_device if e.lane in ("cuda:down_pg", "cuda:mesh_pg")]
    assert generates
    assert transfers
    return {
        g.chunk_index + 1
        for g in generates
        for own in [[t for t in transfers if t.chunk_index == g.chunk_index + 1]]
        if own and all(t.end_ns < g.end_ns for t in own)
    }


@pytest.mark.timeout(4 * HARD_LIMIT_S + 60)
def test_transfers_end_behind_a_generator_with_sums_from_depth_3_on(tmp_path, monkeypatch):
    """And every depth returns the same."""
    monkeypatch.chdir(Path(__file__).parent)
    runs = {depth: run_at(depth, tmp_path / f"depth{depth}") for depth in (1, 3, 4, 6)}
    # Sums of 0..k since the cut; min and max of 4 MB agree only if no byte of another chunk is in between.
    expected = [[float(sum(range(7 * (k >= 7), k + 1)))] * 2 for k in range(12)]
    outputs = {depth: run.summary["figures"]["outputs"] for depth, run in runs.items()}
    assert outputs == dict.fromkeys(runs, expected)
    assert hidden_transfers(runs[1]) == set()
    assert all(len(hidden_transfers(run)) >= 6 for depth, run in runs.items() if depth >= 3)


@pytest.mark.timeout(2 * HARD_LIMIT_S + 60)
def test_more_depth_does_not_make_a_result_late(tmp_path, monkeypatch):
    """Its receive stands behind rank 0's sends in NCCL's order; they must not wait for the mesh."""
    monkeypatch.chdir(Path(__file__).parent)
    periods = {depth: run_at(depth, tmp_path / f"depth{depth}").summary["period_ms"] for depth in (3, 6)}
    assert periods[6] < 1.1 * periods[3]
