"""A pipeline on paper: from a plan and costs to the spans that a run would leave, without ranks or torch.

Rules of the model: each lane of each rank does one thing at a time and in order, as the runtime's threads do;
nothing fails; lanes do not slow each other down (on a machine with fewer cores than busy lanes they do). Ids,
names and lanes are those of real runs, so every picture and measure of a run works here too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Literal, get_args

from ppwork.costs import Times, end_ns, refuse, samples_of
from ppwork.timeline import Entry, Instant, Measures, Span, measure, stage1_ms_of
from ppwork.topology import LEADER_RANK, STAGE0_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ppwork.costs import Costs
    from ppwork.plan import Plan

Order = Literal["overlap", "send-after-decode"]
"""When envelope k+1 leaves: once it is encoded, or (the classic mistake) after the decode of chunk k."""

DEFAULT_CHUNKS = 64


def mesh_idle_ms(leader_entries: Iterable[Entry]) -> tuple[float, ...]:
    """Return start of each ``generate`` of the leader minus end of the one before, in milliseconds."""
    spans = sorted(
        (e for e in leader_entries if isinstance(e, Span) and e.name == "generate"), key=lambda s: s.start_ns
    )
    return tuple((b.start_ns - a.end_ns) / 1e6 for a, b in pairwise(spans))


@dataclass(frozen=True)
class Simulation:
    """What a simulated run left behind."""

    entries_by_rank: dict[int, list[Entry]]
    """As ``read_entries`` of a real run; sources beyond the first come after the mesh ranks."""
    measures: Measures
    """Rank 0's, by ``timeline.measure``."""
    period_ms: float
    """Mean spacing of rank 0's emissions without the filling and the draining of the pipeline.

    This is what the law speaks of. The median in ``measures`` differs where long and short periods alternate.
    """
    mesh_idle: tuple[float, ...]
    """``mesh_idle_ms`` of the leader."""


def simulate(
    plan: Plan,
    costs: Costs,
    *,
    depth: int | None = None,
    order: Order = "overlap",
    run_ahead: bool = True,
    streams: int = 1,
    seed: int | None = None,
) -> Simulation:
    """Run a plan on paper.

    Args:
        plan: Its mesh size, chunks (64 if unresolved), depth and hard cuts (for the epochs) are used.
        costs: Times of the steps.
        depth: Instead of the plan's ``in_flight_depth``; bounds each stream by itself.
        order: When envelope k+1 leaves; at depth 1 both orders are the sequential loop.
        run_ahead: Whether the mesh receives and broadcasts chunk k+1 while chunk k computes.
        streams: Independent sources on one mesh, which serves them round robin.
        seed: Draws samples and jitter; without it samples are taken in order and jitter has seed 0.

    Raises:
        PlanError: An option cannot work.
    """
    depth = plan.in_flight_depth if depth is None else depth
    for name, value in {"depth": depth, "streams": streams}.items():
        if value < 1:
            refuse(name, value, "1 or more")
    if order not in get_args(Order):
        refuse("order", order, f"one of {', '.join(get_args(Order))}")
    chunks = plan.chunks or DEFAULT_CHUNKS
    paper = _Paper(plan, costs, streams, seed)
    ranks = [STAGE0_RANK, *range(plan.world_size, plan.world_size + streams - 1)]
    sources = [_Source(paper, rank, stream, chunks, depth) for stream, rank in enumerate(ranks)]
    mesh = _Mesh(paper, run_ahead=run_ahead)
    for chunk in range(chunks):
        for source in sources:
            mesh.serve(source, chunk, source.release(chunk, order))
    for source in sources:
        source.drain()
    entries = paper.by_rank(plan.world_size + streams - 1)
    first = entries[STAGE0_RANK]
    return Simulation(
        entries_by_rank=entries,
        measures=measure(first, stage1_ms_of(first)),
        period_ms=_steady_ms(sources[0].emits, depth),
        mesh_idle=mesh_idle_ms(entries[LEADER_RANK]),
    )


class _Paper:
    """What the ranks write on, and the dice."""

    def __init__(self, plan: Plan, costs: Costs, streams: int, seed: int | None) -> None:
        self.plan, self.costs, self._streams, self._seed = plan, costs, streams, seed
        self._entries: list[tuple[int, Entry]] = []

    def draw(self, name: str, stream: int, chunk: int) -> Callable[[Times], float]:
        """Return what picks one of some samples for a chunk; the same at every depth and order."""
        call_id = self._call_id(stream, chunk)

        def pick(times: Times) -> float:
            samples = samples_of(times)
            if self._seed is None or len(samples) == 1:
                return samples[call_id % len(samples)]
            return samples[Random(f"{self._seed}/{name}/{call_id}").randrange(len(samples))]  # noqa: S311

        return pick

    def stage_ms(self, name: str, times: Times, stream: int, chunk: int, ranks: Iterable[int]) -> float:
        """Return the time of a stage's step: the slowest of the ranks that do it together."""
        base, jitter = self.draw(name, stream, chunk)(times), self.costs.jitter
        if not jitter:
            return base
        key = f"{self._seed or 0}/{name}/{self._call_id(stream, chunk)}"
        return base * max(1 + Random(f"{key}/{r}").uniform(-jitter, jitter) for r in ranks)  # noqa: S311

    def span(
        self, rank: int, name: str, lane: str, times: tuple[float, float], which: tuple[int, int]
    ) -> None:
        start, end = (round(ms * 1e6) for ms in times)
        self._entries.append((rank, Span(name, lane, start, end, **self._ids(*which))))

    def instant(self, rank: int, name: str, at_ms: float, which: tuple[int, int], **figures: float) -> None:
        # All on ``main``, as the runtime records them.
        entry = Instant(name, "main", round(at_ms * 1e6), figures=figures, **self._ids(*which))
        self._entries.append((rank, entry))

    def by_rank(self, world_size: int) -> dict[int, list[Entry]]:
        """Return the entries in the order in which a rank would have written them: as they end."""
        self._entries.sort(key=lambda item: end_ns(item[1]))
        return {rank: [e for r, e in self._entries if r == rank] for rank in range(world_size)}

    def _call_id(self, stream: int, chunk: int) -> int:
        return chunk * self._streams + stream

    def _ids(self, stream: int, chunk: int) -> dict[str, int]:
        epoch = sum(cut <= chunk for cut in self.plan.hard_cuts)
        return {"call_id": self._call_id(stream, chunk), "chunk_index": chunk, "cache_epoch": epoch}


@dataclass
class _Source:
    """Rank 0 of one stream: encode while there is room, else take the oldest result and decode it."""

    paper: _Paper
    rank: int
    stream: int
    chunks: int
    depth: int
    main_free: float = 0.0
    sender_free: float = 0.0
    encoded: list[float] = field(default_factory=list)
    results: list[tuple[float, float]] = field(default_factory=list)
    """Per chunk: when its result had arrived, and its stage-1 time."""
    emits: list[float] = field(default_factory=list)

    def release(self, chunk: int, order: Order) -> float:
        """Act until this chunk may leave, and return that moment."""
        if order == "overlap":
            self._encode_up_to(chunk)
            return self.encoded[chunk]
        # The classic mistake: encoding goes on, but what is encoded waits here for the decode before it.
        self._encode_up_to(min(chunk + self.depth - 2, self.chunks - 1))
        self._decode_up_to(chunk - 1)
        self._encode_up_to(chunk)
        return max(self.encoded[chunk], self.emits[chunk - 1] if chunk else 0.0)

    def drain(self) -> None:
        """Decode what is left."""
        self._decode_up_to(self.chunks - 1)

    def _encode_up_to(self, last: int) -> None:
        costs, paper = self.paper.costs, self.paper
        for chunk in range(len(self.encoded), last + 1):
            self._decode_up_to(chunk - self.depth)  # makes room
            which = (self.stream, chunk)
            start = self.main_free + costs.handover_ms
            middle = start + paper.stage_ms("encode", costs.encode_ms, *which, (self.rank,))
            end = middle + paper.draw("preflight", *which)(costs.preflight_ms)
            paper.span(self.rank, "encode", "main", (start, middle), which)
            paper.span(self.rank, "preflight", "main", (middle, end), which)
            self.main_free = end
            self.encoded.append(end)

    def _decode_up_to(self, last: int) -> None:
        costs, paper = self.paper.costs, self.paper
        for chunk in range(len(self.emits), last + 1):
            which, (arrived, stage1_ms) = (self.stream, chunk), self.results[chunk]
            got = max(self.main_free, arrived)
            start = got + costs.handover_ms
            end = start + paper.stage_ms("decode", costs.decode_ms, *which, (self.rank,))
            paper.span(self.rank, "receive", "up_pg", (self.main_free, got), which)
            paper.span(self.rank, "decode", "main", (start, end), which)
            paper.instant(self.rank, "emit", end, which, stage1_ms=stage1_ms)
            self.main_free = end
            self.emits.append(end)


class _Mesh:
    """Leader and followers: when each of their lanes is free again."""

    def __init__(self, paper: _Paper, *, run_ahead: bool) -> None:
        self._paper, self._run_ahead = paper, run_ahead
        self._ranks = paper.plan.topology.mesh_ranks
        self._hop, self._stretch = paper.costs.broadcast_hop(len(self._ranks))
        self._received = self._broadcast = self._computed = self._returned = 0.0

    def serve(self, source: _Source, chunk: int, released: float) -> None:
        """Bring one chunk through the mesh and its result to where the source can take it."""
        at = self._pass_on(source, chunk, released)
        which, costs, paper = (source.stream, chunk), self._paper.costs, self._paper
        start = max(at + costs.handover_ms, self._computed)
        stage1_ms = paper.stage_ms("generate", costs.stage1_ms, *which, self._ranks)
        self._computed = start + stage1_ms
        for rank in self._ranks:
            paper.span(rank, "generate", "main", (start, self._computed), which)
        sent = max(self._computed + costs.handover_ms, self._returned)
        self._returned = sent + costs.up.draw_ms(costs.up_bytes, paper.draw("up", *which))
        paper.instant(LEADER_RANK, "result.send", sent, which)
        paper.span(LEADER_RANK, "send_result", "up_pg", (sent, self._returned), which)
        source.results.append((self._returned, stage1_ms))

    def _pass_on(self, source: _Source, chunk: int, released: float) -> float:
        """Move an envelope to every mesh rank; both ends of a hop end together."""
        which, costs, paper = (source.stream, chunk), self._paper.costs, self._paper
        sent = max(released + costs.handover_ms, source.sender_free)
        posted = self._received if self._run_ahead else self._computed
        moved = costs.down.draw_ms(costs.down_bytes, paper.draw("down", *which))
        received = max(sent, posted) + moved
        paper.instant(source.rank, "envelope.send", sent, which)
        paper.span(source.rank, "send", "down_pg", (sent, received), which)
        paper.span(LEADER_RANK, "receive", "down_pg", (posted, received), which)
        follower_posted = self._broadcast if self._run_ahead else self._computed
        start = max(received + costs.handover_ms, self._broadcast)
        moved = self._stretch * self._hop.draw_ms(costs.down_bytes, paper.draw("broadcast", *which))
        paper.instant(LEADER_RANK, "mesh.broadcast", start, which)
        paper.span(LEADER_RANK, "broadcast", "mesh_pg", (start, start + moved), which)
        for rank in self._ranks[1:]:
            paper.span(rank, "receive", "mesh_pg", (follower_posted, start + moved), which)
        source.sender_free = self._received = received
        self._broadcast = start + moved
        return self._broadcast


def _steady_ms(emits: list[float], depth: int) -> float:
    """Return the mean spacing over as many rounds of ``depth`` chunks as no end of the stream disturbs.

    Whole rounds, because at depth 2 and more the single periods of a steady pipeline need not be equal:
    two chunks may leave close together and the next two again, and only their sum repeats.
    """
    rounds = (len(emits) - 1) // depth
    first, count = (depth, (rounds - 2) * depth) if rounds > 2 else (0, len(emits) - 1)
    return (emits[first + count] - emits[first]) / max(count, 1)
