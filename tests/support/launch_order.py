"""Times of NCCL's operations, on paper, from the orders in which the hosts issued them.

The rules are those of ``NCCL_LAUNCH_ORDER_IMPLICIT=1``: an operation starts when the one before it on its
device has started, when the one before it in its group has ended, and when what its stream waits for is over.
It ends a little after its last participant has started.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRANSFER, STAGE1, STAGE0 = 4, 100, 20
"""Times of a transfer, of a chunk on the mesh, and of a decode with the next encode; in any unit."""


class Deadlock(Exception):
    """Operations wait for each other, round and round."""


@dataclass
class Device:
    """One device's operations in the order of its host, each with what its stream waits for."""

    operations: list[str] = field(default_factory=list)
    after: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Per operation: others that must have ended so long ago."""

    def issue(self, operation: str, *after: tuple[str, int]) -> None:
        self.operations.append(operation)
        self.after[operation] = list(after)


def mesh_device(acts: list[str], follower: bool) -> Device:
    """Return what a mesh rank issued, from its plane's acts; a chunk has two sums, the last at its end."""
    device, arrives = Device(), "mesh_pg" if follower else "down_pg"
    for act in acts:
        what, k = act.split()[:2]
        if what == "compute":
            before = [(f"late_sum {int(k) - 1}", STAGE1 // 2)] if k != "0" else []
            device.issue(f"early_sum {k}", (f"{arrives} {k}", STAGE1 // 2), *before)
            device.issue(f"late_sum {k}", (f"early_sum {k}", STAGE1 // 2))
        elif what == "send":
            device.issue(f"up_pg {k}", (f"late_sum {k}", 0))
        elif what == "mesh_pg" and not follower:
            device.issue(f"mesh_pg {k}", (f"down_pg {k}", 0))
        else:
            device.issue(f"{what} {k}")
    return device


def stage0_device(depth: int, chunks: int, *, posted: bool = False) -> Device:
    """Return what rank 0 issues; ``posted``: each result's receive with its envelope, not when it is here."""
    device = Device()
    for k in range(chunks):
        if k >= depth and not posted:
            device.issue(f"up_pg {k - depth}", (f"late_sum {k - depth}", 0))
        device.issue(f"down_pg {k}", *([(f"up_pg {k - depth}", STAGE0)] if k >= depth else []))
        if posted:
            device.issue(f"up_pg {k}")
    return device


def ends(*devices: Device) -> dict[str, int]:
    """Return the time at which each operation ends that every participant has issued.

    Raises:
        Deadlock: One never does.
    """
    known: dict[str, int | None] = {}

    def start(device: Device, index: int) -> int:
        operation = device.operations[index]
        group = operation.split()[0].replace("late", "early")
        same = [o for o in device.operations[:index] if o.split()[0].replace("late", "early") == group]
        times = [end(other) + lag for other, lag in device.after[operation]]
        times += [end(same[-1])] if same else []
        times += [start(device, index - 1)] if index else []
        return max(times, default=0)

    def end(operation: str) -> int:
        if operation not in known:
            known[operation] = None
            own = [(d, d.operations.index(operation)) for d in devices if operation in d.operations]
            known[operation] = max(start(device, index) for device, index in own) + TRANSFER
        if (time := known[operation]) is None:
            raise Deadlock(operation)
        return time

    counts = [operation for device in devices for operation in device.operations]
    return {operation: end(operation) for operation in dict.fromkeys(counts) if counts.count(operation) == 2}
