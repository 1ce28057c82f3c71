"""A pipeline on paper: from a plan and costs to the spans that a run would leave, without ranks or torch.

Rules of the model: each lane of each rank does one thing at a time and in order, as the runtime's threads do;
nothing fails; lanes do not slow each other down (on a machine with fewer cores than busy lanes they do);
heartbeats, recompute and the start and end of the ranks cost nothing. Ids, names and lanes are those of real
runs, so every picture and measure of a run works here, too. Neither schedule can deadlock: rank 0 takes
results whenever it may not send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from ppwork.plan import Plan
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.spans import Entry, Instant, Span
from ppwork.timeline.costs import Costs, Times, refuse, samples_of
from ppwork.timeline.measures import Measures, measure, mesh_idle_ms, stage1_ms_of

DEFAULT_CHUNKS = 64
MAX_ROWS = 1_000_000
"""Most chunks of all streams, on all ranks: half a minute and some GB."""
Which = tuple[int, int]
"""Stream and chunk index."""


@dataclass(frozen=True)
class Simulation:
    """Outcome of a simulated run."""

    plan: Plan
    """The plan that was simulated, overrides included."""
    entries_by_rank: dict[int, list[Entry]]
    """As ``read_entries`` of a real run; sources after the first come after the mesh ranks."""
    measures: Measures
    """Rank 0's measures, from ``measures.measure``."""
    mesh_idle: tuple[float, ...]
    """The leader's ``measures.mesh_idle_ms``."""

    @property
    def period_ms(self) -> float | None:
        """The period of ``measures``; ``None`` if fewer than two chunks were emitted."""
        return self.measures.period_ms


def simulate(
    plan: Plan,
    costs: Costs,
    *,
    depth: int | None = None,
    schedule: str | None = None,
    run_ahead: bool = True,
    streams: int = 1,
    seed: int | None = None,
) -> Simulation:
    """Run a plan on paper.

    Args:
        plan: Gives mesh size, chunks (64 if it sets none), depth (also split), schedule, hard cuts and
            flushes.
        costs: Times of the steps.
        depth: Replaces the plan's ``in_flight_depth`` and its split; bounds each stream separately.
        schedule: Replaces the plan's; at depth 1 both schedules are the sequential loop.
        run_ahead: Whether the mesh receives and broadcasts chunk k+1 while chunk k computes.
        streams: Number of independent sources on one mesh, which serves them round robin.
        seed: Seed for drawing samples and jitter; without it samples are taken in order and jitter has seed
            0.

    Raises:
        PlanError: An option cannot work.
    """
    chunks = plan.chunks or DEFAULT_CHUNKS
    changes = {"in_flight_depth": depth, "schedule": schedule, "chunks": chunks}
    plan = plan.replace(**{name: value for name, value in changes.items() if value is not None})
    if streams < 1:
        refuse("streams", streams, "1 or more")
    most = MAX_ROWS // (streams * plan.world_size)
    if chunks > most:
        refuse("chunks", chunks, f"at most {most} at this size: all of it is kept in memory")
    if streams > 1 and plan.d_out is not None:
        refuse("streams", streams, "1 with d_in and d_out: how streams share one way back is not modelled")
    paper = _Paper(plan, costs, streams, seed)
    mesh = _Mesh(paper, run_ahead=run_ahead)
    ranks = [STAGE0_RANK, *range(plan.world_size, plan.world_size + streams - 1)]
    sources = [_Source(paper, mesh, rank, stream, chunks) for stream, rank in enumerate(ranks)]
    for chunk in range(chunks):
        for source in sources:
            mesh.serve(source, chunk, source.release(chunk))
    for source in sources:
        source.drain()
    entries = paper.by_rank(plan.world_size + streams - 1)
    first = entries[STAGE0_RANK]
    return Simulation(
        plan,
        entries_by_rank=entries,
        measures=measure(first, stage1_ms_of(first), depth=plan.in_flight_depth),
        mesh_idle=mesh_idle_ms(entries[LEADER_RANK]),
    )


@dataclass
class _Source:
    """Rank 0 of one stream: its main thread, which does what ``worker.loops`` does."""

    paper: _Paper
    mesh: _Mesh
    rank: int
    stream: int
    chunks: int
    main_free: float = 0.0
    sender_free: float = 0.0
    encoded: int = 0
    """Number of chunks encoded so far."""
    sent: list[float] = field(default_factory=list)
    """For each chunk, the moment at which its envelope was ready to leave."""
    returned: list[tuple[float, float]] = field(default_factory=list)
    """For each chunk, the moment at which the leader had its result ready, and its stage-1 time."""
    arrived: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    """For each chunk, the moment at which it was emitted, or dropped."""
    stale: set[int] = field(default_factory=set)

    def release(self, chunk: int) -> float:
        """Act until this chunk leaves, and return the moment."""
        while len(self.sent) <= chunk:
            self._act()
        return self.sent[chunk]

    def drain(self) -> None:
        """Act until every chunk is emitted or dropped."""
        while len(self.done) < self.chunks:
            self._act()

    def take_answers(self) -> None:
        """Bring home the results for which there is room; ``d_out`` keeps the others at the leader."""
        d_out = self.paper.plan.bounds[1]
        for chunk in range(len(self.arrived), min(len(self.returned), len(self.done) + d_out)):
            room = self.done[chunk - d_out] if chunk >= d_out else 0.0
            self.arrived.append(self.mesh.bring_back((self.stream, chunk), self.returned[chunk][0], room))

    def _act(self) -> None:
        """Do the next action."""
        plan = self.paper.plan
        waiting, unanswered = self.encoded - len(self.sent), len(self.sent) - len(self.done)
        self.take_answers()
        ready = sum(at <= self.main_free for at in self.arrived[len(self.done) :])
        overlaps = plan.schedule == "overlap"
        may_send = unanswered - ready < plan.bounds[0] if overlaps else not unanswered
        if waiting and may_send:
            self._send(len(self.sent))
        elif self.encoded < self.chunks and waiting + unanswered < plan.in_flight_depth:
            self._encode(self.encoded)
        elif overlaps and waiting and not ready:
            self.main_free = self.arrived[len(self.done)]  # makes room to send, which precedes its decode
        else:
            self._decode(len(self.done))

    def _encode(self, chunk: int) -> None:
        paper, which = self.paper, (self.stream, chunk)
        start = self.main_free + paper.handover_ms("encode", which)
        self.main_free = start + paper.stage_ms("encode", paper.costs.encode_ms, which, (self.rank,))
        paper.span(self.rank, "encode", "main", (start, self.main_free), which)
        self.encoded += 1

    def _send(self, chunk: int) -> None:
        paper, which = self.paper, (self.stream, chunk)
        start = self.main_free + paper.handover_ms("preflight", which)
        end = start + paper.draw("preflight", which)(paper.costs.preflight_ms)
        paper.span(self.rank, "preflight", "main", (start, end), which)
        self.main_free = end + paper.handover_ms("commit_envelope", which)
        self.sent.append(self.main_free)
        if chunk in paper.plan.flushes:
            self.stale.update(range(len(self.done), chunk))

    def _decode(self, chunk: int) -> None:
        paper, which = self.paper, (self.stream, chunk)
        asked, taken = self.main_free, max(self.main_free, self.arrived[chunk])
        paper.span(self.rank, "receive", "up_pg", (asked, taken), which)
        if chunk in self.stale:
            self.main_free = taken
            paper.instant(self.rank, "drop", taken, which)
        else:
            start = taken + paper.handover_ms("decode", which)
            end = start + paper.stage_ms("decode", paper.costs.decode_ms, which, (self.rank,))
            self.main_free = end + paper.handover_ms("emit", which)
            paper.span(self.rank, "decode", "main", (start, end), which)
            paper.instant(self.rank, "emit", self.main_free, which, stage1_ms=self.returned[chunk][1])
        self.done.append(self.main_free)


class _Mesh:
    """Leader and followers: when each of their lanes is free again."""

    def __init__(self, paper: _Paper, *, run_ahead: bool) -> None:
        self._paper, self._run_ahead = paper, run_ahead
        self._ranks = paper.plan.topology.mesh_ranks
        self._hop, self._stretch = paper.costs.broadcast_hop(len(self._ranks))
        self._received = self._broadcast = self._computed = self._main_free = self._returned = 0.0

    def serve(self, source: _Source, chunk: int, released: float) -> None:
        """Bring one chunk through the mesh, and its result to the point at which the leader can send it."""
        which, costs, paper = (source.stream, chunk), self._paper.costs, self._paper
        at = max(self._pass_on(source, which, released), self._main_free)
        start = at + paper.handover_ms("generate", which)
        stage1_ms = paper.stage_ms("generate", costs.stage1_ms, which, self._ranks)
        self._computed = start + stage1_ms
        for rank in self._ranks:
            paper.span(rank, "generate", "main", (start, self._computed), which)
        self._main_free = self._computed + paper.handover_ms("commit_result", which)
        paper.instant(LEADER_RANK, "result.send", self._main_free, which)
        source.returned.append((self._main_free, stage1_ms))
        if paper.plan.d_out is None:
            source.take_answers()  # at once: the streams share the way back in the order of the mesh

    def bring_back(self, which: Which, ready: float, room: float) -> float:
        """Move a result to its source when there is room for it; return when it has arrived."""
        costs, paper = self._paper.costs, self._paper
        sent = max(ready, self._returned) + paper.handover_ms("send_result", which)
        self._returned = max(sent, room) + costs.up.draw_ms(costs.up_bytes, paper.draw("up", which))
        paper.span(LEADER_RANK, "send_result", "up_pg", (sent, self._returned), which)
        return self._returned

    def _pass_on(self, source: _Source, which: Which, released: float) -> float:
        """Move an envelope to every mesh rank; both ends of a hop end together."""
        costs, paper = self._paper.costs, self._paper
        sent = max(released, source.sender_free) + paper.handover_ms("send", which)
        posted = self._received if self._run_ahead else self._computed
        moved = costs.down.draw_ms(costs.down_bytes, paper.draw("down", which))
        received = max(sent, posted) + moved
        paper.instant(source.rank, "envelope.send", released, which)
        paper.span(source.rank, "send", "down_pg", (sent, received), which)
        paper.span(LEADER_RANK, "receive", "down_pg", (posted, received), which)
        follower_posted = self._broadcast if self._run_ahead else self._computed
        start = max(received, self._broadcast) + paper.handover_ms("broadcast", which)
        moved = self._stretch * self._hop.draw_ms(costs.down_bytes, paper.draw("broadcast", which))
        paper.instant(LEADER_RANK, "mesh.broadcast", start, which)
        paper.span(LEADER_RANK, "broadcast", "mesh_pg", (start, start + moved), which)
        for rank in self._ranks[1:]:
            paper.span(rank, "receive", "mesh_pg", (follower_posted, start + moved), which)
        source.sender_free = self._received = received
        self._broadcast = start + moved
        return self._broadcast


class _Paper:
    """Entries of a simulated run, with a plan's ids, and its times, drawn from the costs.

    Args:
        plan: The plan, which says where the cache epoch changes.
        costs: The costs from which times are drawn.
        streams: Number of independent sources; their call ids take turns.
        seed: Seed for drawing samples and jitter; without it samples are taken in order and jitter has seed
            0.
    """

    def __init__(self, plan: Plan, costs: Costs, streams: int, seed: int | None) -> None:
        self.plan, self.costs, self._streams, self._seed = plan, costs, streams, seed
        self._resets = (*plan.hard_cuts, *plan.flushes)
        self._entries: list[tuple[int, Entry]] = []

    def draw(self, name: str, which: Which) -> Callable[[Times], float]:
        """Return a function that picks a chunk's sample; the pick is the same at every depth and order."""
        call_id = self.call_id(which)

        def pick(times: Times) -> float:
            samples = samples_of(times)
            if self._seed is None or len(samples) == 1:
                return samples[call_id % len(samples)]
            return samples[Random(f"{self._seed}/{name}/{call_id}").randrange(len(samples))]  # noqa: S311

        return pick

    def stage_ms(self, name: str, times: Times, which: Which, ranks: Iterable[int]) -> float:
        """Return the time of a stage's step: that of the slowest of the ranks that do it together."""
        base, jitter = self.draw(name, which)(times), self.costs.jitter
        if not jitter:
            return base
        key = f"{self._seed or 0}/{name}/{self.call_id(which)}"
        return base * max(1 + Random(f"{key}/{r}").uniform(-jitter, jitter) for r in ranks)  # noqa: S311

    def handover_ms(self, step: str, which: Which) -> float:
        """Return the gap before a step, by the step's name in ``Gaps``."""
        times: Times = getattr(self.costs.gaps, step)
        return self.draw(f"handover {step}", which)(times)

    def span(self, rank: int, name: str, lane: str, times: tuple[float, float], which: Which) -> None:
        """Write a span; times in milliseconds."""
        start, end = (round(ms * 1e6) for ms in times)
        self._entries.append((rank, Span(name, lane, start, end, **self._ids(which))))

    def instant(self, rank: int, name: str, at_ms: float, which: Which, **figures: float) -> None:
        """Write an instant; all instants are on ``main``, as the runtime records them."""
        entry = Instant(name, "main", round(at_ms * 1e6), figures=figures, text="", **self._ids(which))
        self._entries.append((rank, entry))

    def by_rank(self, world_size: int) -> dict[int, list[Entry]]:
        """Return the entries in the order in which a rank would write them: as they end."""
        self._entries.sort(key=lambda item: item[1].end_ns)
        return {rank: [e for r, e in self._entries if r == rank] for rank in range(world_size)}

    def call_id(self, which: Which) -> int:
        """Return the call id of a chunk."""
        stream, chunk = which
        return chunk * self._streams + stream

    def _ids(self, which: Which) -> dict[str, int]:
        chunk = which[1]
        epoch = sum(reset <= chunk for reset in self._resets)
        return {"call_id": self.call_id(which), "chunk_index": chunk, "cache_epoch": epoch}
