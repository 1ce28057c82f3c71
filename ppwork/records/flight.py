"""torch's flight recorder, read back: at which collective of each group every rank was when it failed.

Only collectives are kept. gloo records no point-to-point, so commitment points in the span files describe the
link between rank 0 and the leader. A rank that was killed, frozen or stuck could not write a flight record.

torch keeps one record for gloo and one for NCCL, and counts a group's collectives in each separately. On NCCL
the host runs ahead of the device, so a rank is at the first collective that has not ended.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppwork.protocol.topology import GROUP_ORDER
from ppwork.records.files import read_json

KEPT = 32
"""Most collectives kept of each group: the newest."""
NCCL_DUMP_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"
"""Where NCCL's watchdog writes its own record when an operation times out; it appends the rank's number."""
NCCL_DUMP_NAME = "nccl-trace-rank"


class Collective(msgspec.Struct, frozen=True):
    """One collective that a rank began."""

    group: str
    """Such as ``tp_pg``; on NCCL ``tp_pg (nccl)``."""
    number: int
    """Counts this group's collectives on this rank, from 1."""
    kind: str
    """Such as ``broadcast``."""
    ended: bool
    sizes: list[list[int]] = []


class Flight(msgspec.Struct, frozen=True):
    """Flight record of one rank, written when it failed."""

    rank: int
    collectives: list[Collective]

    def at(self) -> dict[str, Collective]:
        """Return where each group was: at its first collective that has not ended, else at its last."""
        in_order = sorted(self.collectives, key=lambda c: c.number)
        last = {c.group: c for c in in_order}
        return last | {c.group: c for c in reversed(in_order) if not c.ended}


def group_name(torch_name: str) -> str:
    """Return our name of a group: torch numbers groups as they are made, in one order (rule R6).

    >>> group_name("0"), group_name("1"), group_name("x")
    ('world_pg', 'mesh_pg', 'x')
    """
    names = ("world_pg", *GROUP_ORDER)
    return names[int(torch_name)] if torch_name.isdecimal() and int(torch_name) < len(names) else torch_name


def flight_of(rank: int, *traces: bytes | str) -> Flight:
    """Read torch's JSON dumps; keep the newest ``KEPT`` collectives of each group.

    gloo leaves ``state`` at "scheduled" for ever; NCCL's watchdog retires a work some time after its end.

    Raises:
        ValueError: A dump is not one of the flight recorder.
    """
    try:
        collectives = [
            Collective(
                group_name(entry["process_group"][0]) + (" (nccl)" if backend == "nccl" else ""),
                entry["collective_seq_id"],
                kind,
                entry["retired"] or entry["state"] == "completed",
                entry["input_sizes"],
            )
            for trace in traces
            for entry in msgspec.json.decode(trace)["entries"]
            for backend, _, kind in [entry["profiling_name"].rpartition(":")]
            if not entry["is_p2p"]
        ]
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not a dump of the flight recorder: {error!r}") from error
    groups = dict.fromkeys(c.group for c in collectives)
    newest = ([c for c in collectives if c.group == name][-KEPT:] for name in groups)
    return Flight(rank, [collective for of_group in newest for collective in of_group])


def flight_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's flight record."""
    return Path(run_dir) / f"flight-rank{rank}.json"


def read_flight(run_dir: Path, rank: int) -> Flight | None:
    """Read the flight record of a rank; ``None`` if it left none, or if it does not read."""
    return read_json(flight_file(run_dir, rank), Flight)
