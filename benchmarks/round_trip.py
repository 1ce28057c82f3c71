"""A chunk's round trip in your own program: plain ``torch.distributed``, your own loop, stages, in turns.

Rank 0, and a mesh of two; depth 1; 8 KB go down and 32 KB come back. The stages do nothing: a round trip is
transport and care. The plain loop sends a head of three integers and a tensor by four messages and two
broadcasts, as the first version of such a program does. The plain loop with metadata sends what a receiver
needs that knows neither shape nor metadata: size of the head, head as JSON, tensor. Both check nothing,
record nothing and stop at no mistake.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import torch
import torch.distributed as dist

from ppwork.ranks import Chunk, Plan, Result, Stage0Plane, join, run_mesh, run_stage0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNKS, WARM_UP = 300, 20
DOWN, UP = (32, 64), (32, 256)
Times = list[float]


def plain(mesh: Any) -> Times:  # noqa: ANN401
    """Torch's own calls."""
    head, down, up = torch.zeros(3, dtype=torch.int64), torch.zeros(DOWN), torch.zeros(UP)
    times = []
    for k in range(CHUNKS):
        if dist.get_rank() == 0:
            start = time.perf_counter()
            head[0] = k
            dist.send(head, 1)
            dist.send(down, 1)
            dist.recv(head, 1)
            dist.recv(up, 1)
            times.append(time.perf_counter() - start)
            continue
        if dist.get_rank() == 1:
            dist.recv(head, 0)
            dist.recv(down, 0)
        dist.broadcast(head, 1, group=mesh)
        dist.broadcast(down, 1, group=mesh)
        if dist.get_rank() == 1:
            dist.send(head, 0)
            dist.send(up, 0)
    return times


def described(k: int, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the messages for a tensor of any shape with metadata: size of the head, head, tensor."""
    said = json.dumps({"k": k, "shape": tensor.shape, "dtype": str(tensor.dtype).removeprefix("torch.")})
    head = torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8)
    return [torch.tensor([head.numel()]), head, tensor]


def taken(receive: Callable[[torch.Tensor], object]) -> tuple[list[torch.Tensor], int]:
    """Receive what ``described`` made; return its messages and ``k``."""
    receive(size := torch.empty(1, dtype=torch.int64))
    receive(head := torch.empty(int(size), dtype=torch.uint8))
    said = json.loads(head.numpy().tobytes())
    receive(tensor := torch.empty(said["shape"], dtype=getattr(torch, said["dtype"])))
    return [size, head, tensor], said["k"]


def plain_with_metadata(mesh: Any) -> Times:  # noqa: ANN401
    """Torch's own calls, for any shape, with metadata both ways."""
    down, up, rank = torch.zeros(DOWN), torch.zeros(UP), dist.get_rank()
    times = []
    for k in range(CHUNKS):
        if rank == 0:
            start = time.perf_counter()
            for part in described(k, down):
                dist.send(part, 1)
            taken(lambda part: dist.recv(part, 1))
            times.append(time.perf_counter() - start)
        elif rank == 1:
            parts, said = taken(lambda part: dist.recv(part, 0))
            for part in parts:
                dist.broadcast(part, 1, group=mesh)
            for part in described(said, up):
                dist.send(part, 0)
        else:
            taken(lambda part: dist.broadcast(part, 1, group=mesh))
    return times


@contextmanager
def joined(folder: Path | None) -> Iterator[Any]:
    """The plane of this rank."""
    plan = Plan(mesh_size=2, in_flight_depth=1, backend="gloo", timeout_s=30)
    with torch.inference_mode(), join(plan, run_dir=folder) as plane:
        yield plane


def own_loop(folder: Path | None) -> Times:
    """A loop of one's own on the plane."""
    times: Times = []
    with joined(folder) as plane:
        if isinstance(plane, Stage0Plane):
            for k in range(CHUNKS):
                start = time.perf_counter()
                plane.send({"x": torch.zeros(DOWN)}, metadata={"k": k})
                plane.receive_result()
                times.append(time.perf_counter() - start)
                plane.release_result()
            plane.shutdown()
        else:
            result = torch.zeros(UP)
            for chunk in plane.chunks():
                plane.reply({"y": result}, metadata={"k": chunk.metadata["k"]})
    return times


class Ends:
    """Rank 0's stage; a round trip goes from the end of ``encode`` to the beginning of ``decode``."""

    def __init__(self) -> None:
        self.times: Times = []
        self.start = 0.0

    def encode(self, chunk_index: int) -> Chunk | None:
        """Give a chunk."""
        if chunk_index == CHUNKS:
            return None
        chunk = Chunk({"x": torch.zeros(DOWN)}, metadata={"k": chunk_index})
        self.start = time.perf_counter()
        return chunk

    def decode(self, chunk_index: int, tensors: Any) -> None:  # noqa: ANN401, ARG002
        """Take its result."""
        self.times.append(time.perf_counter() - self.start)


class Mesh:
    """A mesh rank's stage."""

    result = torch.zeros(UP)

    def step(self, tensors: Any, step_index: int, num_steps: int, metadata: Any) -> Result:  # noqa: ANN401, ARG002
        """Answer."""
        return Result({"y": self.result}, {"k": metadata["k"]})


def stages(folder: Path | None) -> Times:
    """Two stages, and the library's loops."""
    with joined(folder) as plane:
        if isinstance(plane, Stage0Plane):
            ends = Ends()
            run_stage0(plane, ends)
            return ends.times
        run_mesh(plane, Mesh())
    return []


def worker(out: Path, rounds: int) -> None:
    """One rank of all ways in turns; rank 0 writes the median round trips down, in ms."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.new_group([1, 2])
    ways: dict[str, Callable[[Path], Times]] = {
        "plain `torch.distributed`": lambda _: plain(mesh),
        "the same, any shape, with metadata": lambda _: plain_with_metadata(mesh),
        "own loop, no run folder": lambda _: own_loop(None),
        "own loop": own_loop,
        "stages, no run folder": lambda _: stages(None),
        "stages": stages,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            times = way(out.with_name(f"{number}-{name.replace('`', '')}"))
            if dist.get_rank() == 0:
                found[name].append(1000 * statistics.median(times[WARM_UP:]))
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    """Measure in turns, and write the table."""
    asked = common.of_ranks(__doc__, rounds=7).parse_args()
    if asked.worker:
        worker(asked.worker, asked.rounds)
        return
    found, share = common.measured_quietly(
        lambda _: common.measured_by_ranks(__file__, "--rounds", str(asked.rounds), ranks=3, limit_s=300.0)
    )
    first = next(iter(found.values()))
    rows = []
    for name, ms in found.items():
        times = statistics.median(own / raw for raw, own in zip(first, ms, strict=True))
        rows.append([name, statistics.median(ms), min(ms), max(ms), times])
    parts = [
        __doc__ or "",
        f"{asked.rounds} rounds of {CHUNKS} chunks; the others took {share:.0%} of the machine.",
        common.table(["round trip of a chunk, ms", "median", "least", "most", "times the plain one"], rows),
    ]
    sys.stdout.write(
        common.report(
            "round_trip", "A chunk's round trip", parts, {"rows": rows, "others": share}, asked.results
        )
    )


if __name__ == "__main__":
    main()
