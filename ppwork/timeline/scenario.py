"""A pipeline of a few numbers, simulated: its period, and which bound of the law determines the period."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import msgspec

from ppwork.plan import Plan
from ppwork.timeline.costs import Costs, Hop, law_bounds_ms, mean_of
from ppwork.timeline.measures import score_text
from ppwork.timeline.simulate import Simulation, simulate

CHUNKS = 32
STEADY = 8
"""First chunk after the start of a pipeline, for all depths that a slider offers."""
NEAR = 1.005
"""Factor within which two times count as the same."""
BOUNDS = ("stage 0", "stage 1", "(stage 0 + stage 1 + transport) / depth")
"""Names of the bounds of the law of the period, in the order of ``law_bounds_ms``."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that decide how fast a pipeline is; times in milliseconds.

    >>> Scenario(encode_ms=10.0, decode_ms=10.0, stage1_ms=20.0, hop_ms=1.0, depth=3).play().period_ms
    20.0

    Raises:
        PlanError: On ``play``, if a number is impossible for a pipeline.
    """

    encode_ms: float = 15.0
    decode_ms: float = 15.0
    stage1_ms: float = 30.0
    """The generator, on every mesh rank."""
    hop_ms: float = 1.0
    """One move of a message; a broadcast takes as many hops as a binomial tree has rounds."""
    depth: int = 2
    mesh_size: int = 2
    schedule: str = "overlap"

    @classmethod
    def of(cls, plan: Plan, costs: Costs | None = None) -> Scenario:
        """Return the scenario of a plan, its times the means of the costs; preflight counts as encode.

        Everything else that a chunk costs on its way, gaps too, is spread evenly over its hops.
        """
        asked = cls(depth=plan.in_flight_depth, mesh_size=plan.mesh_size, schedule=plan.schedule)
        if costs is None:
            return asked
        return msgspec.structs.replace(
            asked,
            encode_ms=mean_of(costs.encode_ms) + mean_of(costs.preflight_ms),
            decode_ms=mean_of(costs.decode_ms),
            stage1_ms=mean_of(costs.stage1_ms),
            hop_ms=costs.transport_ms(plan.mesh_size) / _even_hops(1.0).transport_ms(plan.mesh_size),
        )

    @property
    def stage0_ms(self) -> float:
        """Both halves of rank 0's work."""
        return self.encode_ms + self.decode_ms

    @property
    def transport_ms(self) -> float:
        """All hops of one chunk, there and back."""
        return _even_hops(self.hop_ms).transport_ms(self.mesh_size)

    @property
    def bounds_ms(self) -> dict[str, float]:
        """The three bounds of the law of the period, by name."""
        bounds = law_bounds_ms(self.stage0_ms, self.stage1_ms, self.transport_ms, self.depth)
        return dict(zip(BOUNDS, bounds, strict=True))

    @property
    def slowest_link_ms(self) -> float:
        """The longest transfer; a link carries one message after another, which the law ignores."""
        hop, stretch = _even_hops(self.hop_ms).broadcast_hop(self.mesh_size)
        return max(self.hop_ms, stretch * hop.ms(0))

    def play(self) -> Played:
        """Simulate the scenario."""
        times = {"encode_ms": self.encode_ms, "decode_ms": self.decode_ms, "stage1_ms": self.stage1_ms}
        costs = msgspec.structs.replace(_even_hops(self.hop_ms), **times)
        plan = Plan(mesh_size=self.mesh_size, chunks=CHUNKS)
        return Played(self, simulate(plan, costs, depth=self.depth, schedule=self.schedule))


def _even_hops(hop_ms: float) -> Costs:
    return Costs.of_links(Hop(hop_ms), Hop(hop_ms))


@dataclass(frozen=True)
class Played:
    """Outcome of a scenario."""

    scenario: Scenario
    simulation: Simulation

    @property
    def period_ms(self) -> float:
        """Milliseconds from one emitted chunk to the next."""
        return self.simulation.measures.period_ms or 0.0

    @property
    def idle_ms(self) -> float:
        """Milliseconds that the mesh waits between two chunks; a mean over whole rounds of ``depth``."""
        idle, depth = self.simulation.mesh_idle, self.scenario.depth
        return statistics.fmean(idle[-((len(idle) - STEADY) // depth * depth) :])

    @property
    def binding(self) -> list[str]:
        """The bounds of the law that determine the period; empty if something else does."""
        bounds = self.scenario.bounds_ms
        law_ms = max(bounds.values())
        if self.period_ms > NEAR * law_ms:
            return []
        return [name for name, ms in bounds.items() if NEAR * ms >= law_ms]

    @property
    def holds(self) -> str:
        """The bound of the law that determines the period, or else the other cause, in words."""
        if self.binding:
            return " and ".join(self.binding)
        if self.period_ms <= NEAR * self.scenario.slowest_link_ms:
            return f"none of the three: one link is busy for {self.scenario.slowest_link_ms:.1f} ms a chunk"
        law_ms = max(self.scenario.bounds_ms.values())
        return f"none of the three, they would allow {law_ms:.1f} ms: {self.scenario.schedule}"

    @property
    def numbers(self) -> dict[str, str]:
        """The figures by name, as text."""
        measures = self.simulation.measures
        return {
            "period": f"{self.period_ms:.1f} ms",
            "which bound": self.holds,
            "overlap score": score_text(measures.overlap_score),
            "efficiency": score_text(measures.efficiency),
            "mesh idle": f"{self.idle_ms:.1f} ms",
        }

    @property
    def finding(self) -> str:
        """The scenario and its outcome, in one sentence."""
        asked = self.scenario
        late = "" if asked.schedule == "overlap" else f", schedule {asked.schedule}"
        return (
            f"Encode {asked.encode_ms:.1f}, decode {asked.decode_ms:.1f}, stage 1 {asked.stage1_ms:.1f} and "
            f"{asked.hop_ms:.1f} ms a hop, mesh of {asked.mesh_size}, depth {asked.depth}{late}: a chunk "
            f"comes every {self.period_ms:.1f} ms (bound: {self.holds}), and the mesh idles "
            f"{self.idle_ms:.1f} ms before each, on average."
        )
