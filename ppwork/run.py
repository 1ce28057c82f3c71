"""A run as the notebook side sees it: its folder, read back. No torch, no processes."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import RunFailed
from ppwork.failure import FailureRecord, first_cause, read_records, write_whole
from ppwork.plan import Plan
from ppwork.timeline import Entry, Instant, read_entries

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ppwork.topology import Topology

TORCHRUN_LOG = "torchrun.log"
SUMMARY_FILE = "summary.json"
OUTPUTS_FILE = "outputs.safetensors"
"""What rank 0 emitted, chunk by chunk; there only with ``verify``, until it was found equal."""
VERIFY_FILE = "verify.json"
QUEUE = "queue."
"""A rank's last instants are named so, one for each queue: its bound, its largest fill, what went through."""
_ENDED = re.compile(r"^\s*rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE)
"""Two lines of the report, one below the other; either alone may be somebody's print."""


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
    """Add what only the launcher knows to the summary that rank 0 wrote."""
    path = run_dir / SUMMARY_FILE
    known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    write_whole(path, msgspec.json.format(msgspec.json.encode({**known, **found}), indent=2))


def exit_codes(torchrun_log: str) -> dict[int, int]:
    """Read which ranks ended badly, and how, from torchrun's closing report."""
    return {int(rank): int(code) for rank, code in _ENDED.findall(torchrun_log)}


def unexplained(codes: dict[int, int], records: list[FailureRecord]) -> list[FailureRecord]:
    """Make records for ranks that died without a word: killed by a signal, or gone by ``_exit``.

    SIGTERM is left out: torchrun sends it to the survivors of the first failure.
    """
    spoke = {record.rank for record in records}
    silent = {r: c for r, c in codes.items() if r not in spoke and c not in (0, -signal.SIGTERM)}
    return [
        FailureRecord(
            rank=rank,
            error_type="RankDied",
            what=f"Rank {rank} {_death(code)} and left no record.",
            where={"rank": rank},
            check_first="the end of its log; the kernel's log if it was the out-of-memory killer",
            symptom=False,
            at_ns=0,
            traceback="",
        )
        for rank, code in silent.items()
    ]


def _death(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def diagnose(run_dir: Path, topology: Topology, exit_code: int) -> RunFailed:
    """Say what failed first, from the records and torchrun's report."""
    log_path = run_dir / TORCHRUN_LOG
    log = log_path.read_text(errors="replace") if log_path.exists() else ""
    records = read_records(run_dir, topology.world_size)
    records += unexplained(exit_codes(log), records)
    first = first_cause(records)
    if first is None:
        last = "\n".join(log.strip().splitlines()[-5:])
        return RunFailed(
            f"torchrun ended with code {exit_code} and no rank left a record.\n{last}",
            check_first=str(log_path),
        )
    rank_log = log_file(run_dir, first.rank)
    others = sorted((r for r in records if r is not first), key=lambda r: r.at_ns)
    lines = [
        f"Rank {first.rank} ({topology.role(first.rank)}) failed first: {first.error_type}: {first.what}",
        f"  log: {rank_log}",
        *([f"  at: {first.source}"] if first.source else []),
        *(f"  then rank {r.rank}: {r.error_type}: {r.what.splitlines()[0]}" for r in others),
    ]
    return RunFailed("\n".join(lines), where=first.where, check_first=first.check_first or str(rank_log))
