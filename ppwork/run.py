"""A run as the notebook side sees it: its folder, read back. No torch, no processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import RecordError
from ppwork.failure import write_whole
from ppwork.plan import Plan
from ppwork.timeline import Entry, Instant, read_entries

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ppwork.errors import RunFailed

TORCHRUN_LOG = "torchrun.log"
SUMMARY_FILE = "summary.json"
OUTPUTS_FILE = "outputs.safetensors"
"""What rank 0 emitted, chunk by chunk; there only with ``verify``, until it was found equal."""
VERIFY_FILE = "verify.json"
QUEUE = "queue."
"""A rank's last instants are named so, one for each queue: its bound, its largest fill, what went through."""


def log_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's log."""
    return run_dir / f"rank{rank}.log"


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        run_dir: Its folder.
        exit_code: torchrun's; 0 is well.
        failure: What went wrong first, or ``None``.
    """

    run_dir: Path
    exit_code: int
    failure: RunFailed | None = None

    @cached_property
    def plan(self) -> Plan:
        """The plan that all ranks read."""
        return Plan.load(self.run_dir)

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of ``summary.json``; empty when the run failed before it was written."""
        path = self.run_dir / SUMMARY_FILE
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else {}

    def entries(self, rank: int) -> list[Entry]:
        """Spans and instants of one rank."""
        return read_entries(self.run_dir, rank)

    def __repr__(self) -> str:
        state = "failed" if self.failure else "ok"
        return f"Run({str(self.run_dir)!r}, {state}, chunks={self.summary.get('chunks')})"


def queues_of(entries: Iterable[Entry]) -> list[dict[str, str | int]]:
    """Return what a rank said of its queues at its end: ``name``, ``bound``, ``most`` and ``done``."""
    return [
        {"name": entry.name.removeprefix(QUEUE), **{key: int(n) for key, n in entry.figures.items()}}
        for entry in entries
        if isinstance(entry, Instant) and entry.name.startswith(QUEUE)
    ]


def add_to_summary(run_dir: Path, found: dict[str, Any]) -> None:
    """Add what only the launcher knows to the summary that rank 0 wrote.

    Raises:
        RecordError: It cannot be read or written; what was there stays.
    """
    path = run_dir / SUMMARY_FILE
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        write_whole(path, msgspec.json.format(msgspec.json.encode({**known, **found}), indent=2))
    except OSError as error:
        raise RecordError(
            f"The run ended well, but its summary {path} could not be completed: {error.strerror}.",
            check_first=f"`df -h {run_dir}`",
        ) from error
