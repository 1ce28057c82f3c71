"""The costs of a chunk's steps: stage times, hops, gaps, and the law of the period that follows from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from ppwork.errors import PlanError
from ppwork.records.run import Run
from ppwork.records.spans import Entry
from ppwork.timeline.steps import ChunkSteps

Times = float | tuple[float, ...]
"""Milliseconds: a constant, or samples (taken in order, or drawn when ``simulate`` gets a seed)."""


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the end of one step to the start of the next, if it waits for nothing else.

    A gap has the name of the step after it: a thread wakes up, or goes through its loop.
    """

    encode: Times = 0.0
    preflight: Times = 0.0
    commit_envelope: Times = 0.0
    """Gap from preflight to the commitment point; it occupies rank 0's main thread."""
    send: Times = 0.0
    broadcast: Times = 0.0
    generate: Times = 0.0
    commit_result: Times = 0.0
    """Gap from the generator's end to the commitment point; it occupies the leader's main thread."""
    send_result: Times = 0.0
    decode: Times = 0.0
    emit: Times = 0.0

    @classmethod
    def each(cls, ms: float) -> Gaps:
        """Return gaps that all take the same time."""
        return cls(**dict.fromkeys(cls.__struct_fields__, ms))

    def by_step(self) -> dict[str, Times]:
        """Return the times by the names of the steps."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class Hop(msgspec.Struct, frozen=True):
    """Cost of one move of a message: ``latency_ms + bytes / bandwidth``.

    >>> Hop(0.5, mb_per_s=1000.0).ms(2_000_000)
    2.5
    """

    latency_ms: Times = 0.0
    mb_per_s: float = math.inf
    """Bandwidth, in 10^6 bytes per second."""

    def ms(self, size_bytes: int) -> float:
        """Return the mean time of a message of that size."""
        return self.draw_ms(size_bytes, mean_of)

    def draw_ms(self, size_bytes: int, draw: Callable[[Times], float]) -> float:
        """Return the time of one message, its latency drawn by ``draw``."""
        return draw(self.latency_ms) + size_bytes / (self.mb_per_s * 1e3)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of each step of a chunk's life; times in milliseconds.

    >>> Costs(encode_ms=12.0, decode_ms=8.0, stage1_ms=20.0, down=Hop(2.0), up=Hop(0.7)).transport_ms()
    2.7

    Raises:
        PlanError: On construction, if a time is negative, not finite or has no samples.
    """

    encode_ms: Times
    decode_ms: Times
    stage1_ms: Times
    """Time of the generator on one mesh rank, its collectives included."""
    preflight_ms: Times = 0.0
    down: Hop = Hop()
    """Rank 0 to leader."""
    broadcast: dict[int, Hop] = {}
    """Inside the mesh, by mesh size; see ``broadcast_hop`` for other sizes."""
    up: Hop = Hop()
    """Leader to rank 0."""
    down_bytes: int = 0
    up_bytes: int = 0
    gaps: Gaps = Gaps()
    jitter: float = 0.0
    """Stage times vary by this share up or down, uniformly and independently on each rank."""

    def __post_init__(self) -> None:
        """Refuse times that no step can take."""
        hops = {"down": self.down, "up": self.up, **{f"broadcast[{n}]": h for n, h in self.broadcast.items()}}
        times: dict[str, Times] = {f"{name}.latency_ms": hop.latency_ms for name, hop in hops.items()}
        times |= {
            name: getattr(self, name) for name in ("encode_ms", "decode_ms", "stage1_ms", "preflight_ms")
        }
        times |= {f"gaps.{name}": ms for name, ms in self.gaps.by_step().items()}
        for name, value in times.items():
            samples = samples_of(value)
            if not samples or not all(math.isfinite(ms) and ms >= 0 for ms in samples):
                refuse(name, value, "finite and 0 or more")
        for name, hop in hops.items():
            if not hop.mb_per_s > 0:
                refuse(f"{name}.mb_per_s", hop.mb_per_s, "above 0")
        if min(self.down_bytes, self.up_bytes) < 0:
            refuse("down_bytes, up_bytes", (self.down_bytes, self.up_bytes), "0 or more")
        if not 0 <= self.jitter < 1:
            refuse("jitter", self.jitter, "in 0..1, 1 left out")

    def replace(self, **changes: Any) -> Costs:  # noqa: ANN401  any field
        """Return these costs with some of them changed, for example for a generator on other hardware.

        >>> Costs(encode_ms=12.0, decode_ms=8.0, stage1_ms=60.0).replace(stage1_ms=15.0).law_ms(depth=3)
        20.0

        Raises:
            PlanError: A new time is impossible for a step.
            TypeError: There is no cost of that name.
        """
        return type(self)(**{**msgspec.structs.asdict(self), **changes})

    def broadcast_hop(self, mesh_size: int) -> tuple[Hop, float]:
        """Return the hop to use for a mesh size, and the factor by which to stretch it.

        For a size that is not in ``broadcast``, take the next smaller size there (else the smallest) times
        the ratio of their rounds in a binomial tree, ``ceil(log2(size))``. A mesh of one moves nothing.
        """
        sizes = sorted(size for size in self.broadcast if size > 1)
        if mesh_size == 1 or not sizes:
            return Hop(), 1.0
        base = max((size for size in sizes if size <= mesh_size), default=sizes[0])
        return self.broadcast[base], math.ceil(math.log2(mesh_size)) / math.ceil(math.log2(base))

    def transport_ms(self, mesh_size: int = 1) -> float:
        """Return the cost of one chunk besides the stages, at the means: three hops and the gaps."""
        hop, stretch = self.broadcast_hop(mesh_size)
        moved = self.down.ms(self.down_bytes) + stretch * hop.ms(self.down_bytes) + self.up.ms(self.up_bytes)
        return moved + sum(mean_of(ms) for ms in self.gaps.by_step().values())

    def law_ms(self, depth: int, mesh_size: int = 1) -> float:
        """Return the law's period for these costs at their means."""
        stage0 = mean_of(self.encode_ms) + mean_of(self.preflight_ms) + mean_of(self.decode_ms)
        return law_period_ms(stage0, mean_of(self.stage1_ms), self.transport_ms(mesh_size), depth)

    @classmethod
    def of_links(cls, hop: Hop, broadcast: Hop) -> Costs:
        """Return the costs of the links alone: a hop to the leader and back, a broadcast to one follower."""
        return cls(encode_ms=0.0, decode_ms=0.0, stage1_ms=0.0, down=hop, broadcast={2: broadcast}, up=hop)

    @classmethod
    def from_run(cls, run: Run | Mapping[int, Sequence[Entry]], *, warm_up: int = 1) -> Costs:
        """Take the costs from the spans of a run, as samples in the order of its chunks.

        Each rank's clock is used alone. Hops include the bytes of that run and do not scale with
        ``down_bytes``. A run at depth 1 is the best source: only there one can see how much later a receiver
        is done than its sender; at greater depths a sender may wait for its receiver.

        Args:
            run: A run, or the entries of its ranks: rank 0's, the leader's, and those of the other mesh ranks
                (which are only counted).
            warm_up: Chunks left out at the start.

        Raises:
            PlanError: No chunk has all its spans.
        """
        entries_by_rank = run.entries_by_rank if isinstance(run, Run) else run
        steps = ChunkSteps(entries_by_rank)
        calls = steps.whole_chunks()[warm_up:]
        if not calls:
            raise PlanError(
                "The run has no chunk with all its spans, so no costs can be taken from it.",
                check_first="did it finish? its summary counts the chunks",
            )

        def samples(times: Mapping[int, float]) -> tuple[float, ...]:
            return tuple(times.get(call, 0.0) for call in calls)

        unseen = steps.unseen_ms()

        def hop(name: str) -> Hop:
            ms = steps.durations_ms(name)
            return Hop(tuple(ms[call] + unseen.get(call, 0.0) / 2 for call in calls))

        return cls(
            encode_ms=samples(steps.durations_ms("encode")),
            preflight_ms=samples(steps.durations_ms("preflight")),
            decode_ms=samples(steps.durations_ms("decode")),
            stage1_ms=samples(steps.durations_ms("generate")),
            down=hop("send"),
            broadcast={len(entries_by_rank) - 1: Hop(samples(steps.durations_ms("broadcast")))},
            up=hop("send_result"),
            gaps=Gaps(**{name: samples(ms) for name, ms in steps.gaps_ms().items()}),
        )


def law_period_ms(stage0_ms: float, stage1_ms: float, transport_ms: float, depth: int) -> float:
    """Return the period to which a pipeline of this depth settles (GLOSSARY.md, law of the period).

    Neither side can be faster than its own work. A chunk takes ``stage0 + stage1 + transport`` from its
    encode to its emission, and at most ``depth`` chunks can be under way in that time.

    >>> law_period_ms(20.0, 20.0, 2.0, depth=1), law_period_ms(20.0, 20.0, 2.0, depth=3)
    (42.0, 20.0)
    """
    return max(law_bounds_ms(stage0_ms, stage1_ms, transport_ms, depth))


def law_bounds_ms(
    stage0_ms: float, stage1_ms: float, transport_ms: float, depth: int
) -> tuple[float, float, float]:
    """Return the bounds whose largest is the law of the period: each side's own work, and the depth's."""
    return stage0_ms, stage1_ms, (stage0_ms + stage1_ms + transport_ms) / depth


def samples_of(times: Times) -> Sequence[float]:
    """Return a constant as its only sample, and samples as they are."""
    return (times,) if isinstance(times, int | float) else times


def mean_of(times: Times) -> float:
    """Return the mean of some samples, or the constant."""
    return statistics.fmean(samples_of(times))


def refuse(name: str, value: object, need: str) -> NoReturn:
    """Raise the ``PlanError`` for a value that cannot be simulated."""
    raise PlanError(
        f"The simulation's {name} was {value!r}; it must be {need}.", check_first=f"where {name} is set"
    )
