"""Writes this rank's flight record; apart from the reading, which knows no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ppwork.failure import write_whole
from ppwork.flight import flight_file, flight_of

if TYPE_CHECKING:
    from pathlib import Path


def write_flight(run_dir: Path, rank: int) -> bool:
    """Write which collectives this rank began last; say whether it could.

    torch's function is private and may go; a failing rank that cannot write this has written what matters
    before. Any thread may call it.
    """
    try:
        from torch._C import _distributed_c10d as c10d

        flight = flight_of(rank, c10d._dump_fr_trace_json())  # type: ignore[attr-defined]
        write_whole(flight_file(run_dir, rank), msgspec.json.encode(flight))
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    return bool(flight.collectives)
