"""One message, one way: ppwork against one raw message of the same bytes, and against other ways to send it.

A message is a dict of four equal float32 tensors. A call begins on rank 0 while every receiver already waits,
and ends on the last rank when all four tensors are usable there; ranks of one machine share a monotonic
clock. Every round times every way, one after another, so all find their caches as cold, and ratios are taken
inside a round. Each way has groups of its own; the lanes wait in theirs while another way has its turn.

Two jobs: 2 ranks (p2p: rank 0 to leader) and 3 ranks (p2p, then the broadcast in a mesh of two). The first
has xDiT's two transports as well, where its package is installed (``peers.py`` says how).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import peers
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from ppwork import process
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.topology import Role
from ppwork.runtime import LeaderPlane, MeshPlane, PPControlPlane, Stage0Plane
from ppwork.runtime import groups as live
from ppwork.runtime.links import BroadcastReceiver, BroadcastRoot, P2PReceiver, P2PSender
from ppwork.runtime.membership import Membership
from ppwork.runtime.messages import Preflight, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable


KB, MB = 1 << 10, 1 << 20
SIZES = {"4 KB": (4 * KB, 60), "1 MB": (MB, 24), "16 MB": (16 * MB, 8)}
"""Bytes of a message, and calls in a round."""
RAW, KNOWN, NEW, PLANE = "raw", "ppwork, known schema", "ppwork, new schema", "ppwork, through its lanes"
GOALS = {
    ("p2p", KNOWN): (2.0, 1.3, 1.0),
    ("p2p", NEW): (4.0, 2.0, 1.15),
    ("p2p", PLANE): (4.5, 1.7, 1.1),
    ("p2p + mesh", PLANE): (4.0, 1.7, 1.15),
}
CASES = {1: "p2p", 2: "p2p + mesh"}
SETTLE_S = 0.0005
"""After all receivers said that they are about to wait: for them to be asleep in it."""


@dataclass(frozen=True)
class Way:
    """One way to send: what rank 0 does, and what a receiver does who has said that he waits."""

    send: Callable[[], Any]
    receive: Callable[[], Any]
    after: Callable[[], Any] = lambda: None
    """Whatever brings the way back to where it was; not timed."""


class Clock:
    """Times calls of a way across ranks."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.last = rank, world_size - 1
        self._signals = dist.new_group(list(range(world_size)))
        self._token = torch.zeros(1)

    def times(self, way: Way, calls: int) -> list[float]:
        """Return the one-way times of some calls in microseconds; on ranks other than 0, nothing."""
        stamps = torch.tensor([self._one(way) for _ in range(calls)])
        if self.rank == self.last:
            dist.send(stamps, dst=0, group=self._signals)
        elif self.rank == 0:
            ends = torch.zeros_like(stamps)
            dist.recv(ends, src=self.last, group=self._signals)
            return [ns / 1e3 for ns in (ends - stamps).tolist()]
        return []

    def _one(self, way: Way) -> int:
        for receiver in range(1, self.last + 1):
            if self.rank == receiver:
                dist.send(self._token, dst=0, group=self._signals)
            elif self.rank == 0:
                dist.recv(self._token, src=receiver, group=self._signals)
        if self.rank == 0:
            settled = time.monotonic() + SETTLE_S
            while time.monotonic() < settled:
                pass  # awake, as a rank that has just encoded is
            stamp = time.monotonic_ns()
            way.send()
        else:
            way.receive()
            stamp = time.monotonic_ns()
        way.after()
        return stamp


class Ways:
    """Every way of one rank, at one size; all ranks make them in one order."""

    def __init__(self, plan: Plan, groups: live.Groups, raw_down: Any, raw_mesh: Any) -> None:  # noqa: ANN401
        self.plan, self.groups, self.raw_down, self.raw_mesh = plan, groups, raw_down, raw_mesh
        self.rank, self.fans_out = groups.rank, plan.mesh_size > 1
        self._count = itertools.count()
        self._preflight = Preflight(limits_of(plan), groups.device)
        if groups.role is Role.STAGE0:
            self._sender = P2PSender(groups, "down_pg")
        elif groups.role is Role.LEADER:
            self._receiver, self._mesh = P2PReceiver(groups, "down_pg", plan), BroadcastRoot(groups)
        else:
            self._follower = BroadcastReceiver(groups, plan)

    def raw(self, buffers: list[torch.Tensor]) -> Way:
        """One ``dist.send`` for each buffer, then one ``dist.broadcast``; shapes agreed beforehand."""

        def send() -> None:
            for buffer in buffers:
                dist.send(buffer, group=self.raw_down, group_dst=1)

        def receive() -> None:
            for buffer in buffers if self.rank == 1 else ():
                dist.recv(buffer, group=self.raw_down, group_src=0)
            for buffer in buffers if self.fans_out else ():
                dist.broadcast(buffer, group=self.raw_mesh, group_src=0)

        return Way(send, receive)

    def objects(self, tensors: dict[str, torch.Tensor]) -> Way:
        """Return torch's object lists: pickle."""

        def receive() -> None:
            got: list[Any] = [None]
            if self.rank == 1:
                dist.recv_object_list(got, group=self.raw_down, group_src=0)
            if self.fans_out:
                dist.broadcast_object_list(got, group=self.raw_mesh, group_src=0)

        return Way(lambda: dist.send_object_list([tensors], group=self.raw_down, group_dst=1), receive)

    def pipelining(self, tensors: dict[str, torch.Tensor]) -> Way:
        """Return ``torch.distributed.pipelining`` with stages that pass on what they get."""
        stage = PipelineStage(PassOn(), self.rank, 2, self.groups.device, group=self.raw_down)
        schedule = ScheduleGPipe(stage, n_microbatches=1)
        return Way(lambda: schedule.eval(*tensors.values()), schedule.eval)

    def xdit(self, coordinator: Any, tensors: dict[str, torch.Tensor], *, cached: bool) -> Way:  # noqa: ANN401
        """Return xDiT's transport: a message for each tensor once shapes are known, or its pickled dicts."""
        if not cached:
            return Way(lambda: coordinator.send_tensor_dict(tensors), coordinator.recv_tensor_dict)
        # Its buffers go by name, and their shapes are exchanged once.
        names = {name: f"{name}, {tensor.numel()}" for name, tensor in tensors.items()}

        def send() -> None:
            for name, tensor in tensors.items():
                coordinator.pipeline_send(tensor, name=names[name])

        def receive() -> None:
            for name in names.values():
                coordinator.pipeline_recv(name=name)

        return Way(send, receive)

    def links(self, tensors: dict[str, torch.Tensor], *, new: bool) -> Way:
        """Return our transport in the calling thread: preflight, link, validation, named tensors."""

        def send() -> None:
            index = next(self._count)
            named = {f"{name}.{index}": tensor for name, tensor in tensors.items()} if new else tensors
            self._sender.send(
                self._preflight(PPEnvelope(PPAction.INFER, Ids(index, index, 0), ChunkPlan.of(1), {}, named))
            )

        def receive() -> None:
            if self.rank == 1:
                incoming = self._receiver.receive()
                self._mesh.pass_on(incoming)
            else:
                incoming = self._follower.receive()
            if len(incoming.message.tensors) != len(tensors):
                raise RuntimeError("a tensor was lost")

        return Way(send, receive)

    def plane(self, plane: PPControlPlane, tensors: dict[str, torch.Tensor]) -> Way:
        """Return the whole runtime: session, lanes and queues between the callers on both sides."""

        def send() -> None:
            if isinstance(plane, Stage0Plane):
                plane.send(tensors)

        def receive() -> None:
            if isinstance(plane, MeshPlane):
                plane.receive()

        def after() -> None:
            if isinstance(plane, Stage0Plane):
                plane.receive_result()
            elif isinstance(plane, MeshPlane):
                ids = plane.computed(1)
                if isinstance(plane, LeaderPlane):
                    plane.send_result(PPResult(PPAction.INFER, ids, 1))

        return Way(send, receive, after)


class PassOn(torch.nn.Module):
    """A stage that computes nothing."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what came."""
        return tensors


def worker(out: Path, rounds: int) -> None:
    """One rank: time every way in every round; rank 0 writes the median of each round as it goes."""
    process.hold_if_asked()
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    plan = Plan(mesh_size=world_size - 1, backend="gloo", chunks=1)
    groups = live.join(plan, Membership(rank, world_size, tuple(range(world_size)), rank))
    clock = Clock(rank, world_size)
    raw_down, raw_mesh = dist.new_group([0, 1]), dist.new_group(list(range(1, world_size)))
    ways = Ways(plan, beside(groups), raw_down, raw_mesh)
    xdit = peers.xdit_coordinator([0, 1]) if world_size == 2 else None
    found: dict[str, dict[str, list[float]]] = {}
    with PPControlPlane.join(plan, groups=groups) as plane:
        for size, (nbytes, calls) in SIZES.items():
            tensors = {f"t{i}": torch.randn(nbytes // 16) for i in range(4)}
            parts = [torch.zeros(nbytes // 4, dtype=torch.uint8) for _ in range(4)]
            contenders = {
                RAW: ways.raw([torch.zeros(nbytes, dtype=torch.uint8)]),
                KNOWN: ways.links(tensors, new=False),
                NEW: ways.links(tensors, new=True),
                PLANE: ways.plane(plane, tensors),
                "raw, four tensors": ways.raw(parts),
                "send_object_list": ways.objects(tensors),
            }
            if world_size == 2:
                contenders["torch pipelining"] = ways.pipelining(tensors)
                if xdit is not None:
                    contenders["xDiT, cached shapes"] = ways.xdit(xdit, tensors, cached=True)
                    contenders["xDiT, tensor dict"] = ways.xdit(xdit, tensors, cached=False)
            for way in contenders.values():
                clock.times(way, 5)
            found[size] = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, way in contenders.items():
                    times = clock.times(way, calls)
                    if rank == 0:
                        found[size][name].append(statistics.median(times))
            if rank == 0:
                out.write_text(json.dumps(found))
        if isinstance(plane, Stage0Plane):
            plane.shutdown()
        elif isinstance(plane, MeshPlane):
            plane.receive()
            plane.acknowledge()


def beside(groups: live.Groups) -> live.Groups:
    """Make a second set of a pipeline's groups; every rank calls it."""
    handles = {name: dist.new_group(list(groups.topology.ranks(name))) for name in live.GROUP_ORDER}
    return replace(groups, membership=None, _handles=handles)


def rows_of(case: str, sizes: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Return one row for each way: at each size the median time, and the median of the rounds' ratios."""
    rows = []
    for way in next(iter(sizes.values())):
        us = [statistics.median(rounds[way]) for rounds in sizes.values()]
        ratios = [
            statistics.median(a / b for a, b in zip(rounds[way], rounds[RAW], strict=True))
            for rounds in sizes.values()
        ]
        goals = GOALS.get((case, way))
        reached = None if goals is None else all(r <= g for r, g in zip(ratios, goals, strict=True))
        rows.append({"case": case, "way": way, "us": us, "ratio": ratios, "goals": goals, "reached": reached})
    return rows


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table for each case."""
    parts = []
    for case in CASES.values():
        cells = [
            [
                row["way"],
                *(f"{us:.0f} us, {ratio:.2f}x" for us, ratio in zip(row["us"], row["ratio"], strict=True)),
                " / ".join(f"{goal:g}" for goal in row["goals"]) if row["goals"] else None,
                {True: "yes", False: "no", None: None}[row["reached"]],
            ]
            for row in rows
            if row["case"] == case
        ]
        parts.append(f"## {case}\n\n" + common.table(["way", *SIZES, "goal", "reached"], cells))
    return parts


def main() -> int:
    """Measure and write the tables."""
    options = common.of_ranks(__doc__, rounds=15)
    options.add_argument("--limit-s", type=float, default=300.0)
    given = options.parse_args()
    if given.worker:
        worker(given.worker, given.rounds)
        return 0
    rows, others = [], {}
    for mesh_size, case in CASES.items():
        sizes, others[case] = common.measured_quietly(
            lambda _, ranks=mesh_size + 1: common.measured_by_ranks(
                __file__, "--rounds", str(given.rounds), ranks=ranks, limit_s=given.limit_s
            )
        )
        rows += rows_of(case, sizes)
    said = ", ".join(f"{case}: {share:.0%}" for case, share in others.items())
    xdit = f"xDiT: xfuser {peers.xdit_version() or 'is not installed'}."
    notes = [__doc__ or "", f"{given.rounds} rounds. {xdit} Other processes took of the machine: {said}."]
    text = common.report(
        "transport",
        "Transport: one message, one way, against one raw message of the same bytes",
        [*notes, *tables(rows)],
        {"rounds": given.rounds, "others": others, "rows": rows},
        given.results,
    )
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
