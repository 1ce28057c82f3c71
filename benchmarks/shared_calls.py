"""What it costs that mesh ranks of one host lay each collective beside the others' (``worker.shared_calls``).

In place: the time from torch's function to the backend that the comparison takes, of real sums, whose ranks
have slept and woken in between. Paired: blocks of sums with and without it, in turns and in either order; the
main thread's processor time, and the wall's, of which a busy machine makes more than the comparison.

``python benchmarks/shared_calls.py`` writes ``shared_calls.md``.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import common
import msgspec

SIZES = {"13 KB": 26 * 129, "1 MB": 1 << 18}
"""Numbers of float32 in a sum."""
BLOCK, MESH = 20, 2
LIMIT_S = 300.0


def measured(blocks: int) -> Any:  # noqa: ANN401
    """Return a row of figures for each size, from ranks of a real mesh."""
    return common.measured_by_ranks(__file__, "--blocks", str(blocks), ranks=MESH + 1, limit_s=LIMIT_S)


def be_rank(out: Path, blocks: int) -> None:
    """Be stage 0, which writes down what the leader's answer says, or a mesh rank, which sums."""
    import torch

    from ppwork.ranks import MeshPlane, PipelinePlan, PPControlPlane, Stage0Plane

    torch.set_num_threads(1)
    plan = PipelinePlan(mesh_size=MESH, backend="gloo", timeout_s=LIMIT_S)
    with PPControlPlane.join(plan) as plane:
        if isinstance(plane, Stage0Plane):
            plane.send({"x": torch.zeros(1)}, metadata={"folder": str(out.parent)})
            out.write_bytes(plane.receive_result()[0].metadata["rows"].encode())
            plane.shutdown()
        elif isinstance(plane, MeshPlane):
            for chunk in plane.chunks():
                rows = msgspec.json.encode(sums(plane, Path(chunk.metadata["folder"]), blocks))
                plane.reply({"x": torch.zeros(1)}, metadata={"rows": rows.decode()})


def sums(plane: Any, folder: Path, blocks: int) -> list[dict[str, Any]]:  # noqa: ANN401  a MeshPlane
    """Sum on this mesh rank, and return what was measured on it."""
    import torch
    import torch.distributed as dist

    from ppwork.protocol.envelope import Ids
    from ppwork.worker.collectives import install
    from ppwork.worker.shared_calls import SharedCalls

    class Timed(SharedCalls):
        """The same, with a clock."""

        def call(self, *arguments: Any) -> None:  # noqa: ANN401
            start_ns = time.perf_counter_ns()
            super().call(*arguments)
            in_place.append((time.perf_counter_ns() - start_ns) / 1e3)

    install()
    group, rows, number, in_place = plane.groups["tp_pg"], [], 0, list[float]()
    for name in ("plain", "timed"):
        (folder / name).mkdir(exist_ok=True)
    plain, timed = SharedCalls(plane.groups, folder / "plain"), Timed(plane.groups, folder / "timed")
    clocks = {"cpu_us": time.thread_time_ns, "wall_us": time.perf_counter_ns}

    def block(tensor: torch.Tensor, shared: SharedCalls | None) -> dict[str, float]:
        nonlocal number
        number += 1
        if shared is not None:
            shared.begin(Ids(number, number, 0))
        began = {name: clock() for name, clock in clocks.items()}
        for _ in range(BLOCK):
            dist.all_reduce(tensor, group=group)
        took = {name: (clock() - began[name]) / BLOCK / 1e3 for name, clock in clocks.items()}
        if shared is not None:
            shared.end()
        return took

    for name, numbers in SIZES.items():
        tensor = torch.zeros(numbers)
        dist.barrier(group=group)
        pairs = []
        for index in range(blocks):
            order = (plain, None) if index % 2 else (None, plain)
            took = {shared is not None: block(tensor, shared) for shared in order}
            pairs.append((took[True], took[False]))
        in_place.clear()
        for _ in range(blocks):
            block(tensor, timed)
        row: dict[str, Any] = {"size": name}
        for clock in clocks:
            on, off = ([pair[side][clock] for pair in pairs] for side in (0, 1))
            change = statistics.median(a - b for a, b in zip(on, off, strict=True))
            row[clock] = [statistics.median(on), statistics.median(off), change]
        rows.append(
            {**row, "in_place_us": [statistics.median(in_place), statistics.quantiles(in_place, n=10)[-1]]}
        )
    plain.close()
    timed.close()
    return rows


def main() -> int:
    """Measure, or be one of the ranks that are measured."""
    parser = common.described(__doc__)
    parser.add_argument("--blocks", type=int, default=100, help=f"of {BLOCK} sums, each way")
    parser.add_argument("--wait-s", type=float, default=common.WAIT_S, help="for a quiet machine, at most")
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    parser.add_argument("--worker", type=Path)
    asked = parser.parse_args()
    if asked.worker is not None:
        be_rank(asked.worker, asked.blocks)
        return 0
    rows, others = common.measured_quietly(lambda _: measured(asked.blocks), asked.wait_s)
    head = ["sum", "in place", "nine in ten under"]
    head += ["CPU, compared", "not", "change", "wall, compared", "not", "change"]
    lines = [(row["size"], *row["in_place_us"], *row["cpu_us"], *row["wall_us"]) for row in rows]
    parts = [
        f"Sums of a mesh of {MESH}, {asked.blocks} blocks of {BLOCK} each way; microseconds a sum, on the "
        f"leader. Others took {others:.0%} of the machine.",
        common.table(head, lines),
    ]
    data = {"others": others, "rows": rows}
    title = "Cost of comparing collectives through files"
    sys.stdout.write(common.report("shared_calls", title, parts, data, asked.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
