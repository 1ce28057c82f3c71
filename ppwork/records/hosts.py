"""What the launcher knows of the hosts of a run: ``hosts.json`` in its folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppwork.errors import named_ranks
from ppwork.records.files import read_json, write_whole

HOSTS_FILE = "hosts.json"


def host_logs(run_dir: Path, number: int) -> Path:
    """Return the folder with what the ranks of a host printed, of a program of one's own."""
    return run_dir / f"host-{number}" if number else run_dir


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    ranks: tuple[int, ...]
    address: str = ""
    """Of the ranks' network; empty: not found yet, or not needed by others."""
    interface: str = ""
    folder: str = ""
    """Where its ranks wrote; empty: into the run's folder itself."""
    offset_ns: int | None = None
    """How far its clock is ahead of the launcher's."""
    error_ns: int = 0
    """The offset is not further from the truth than this."""
    code: int | None = None
    """What its torchrun ended with, as far as the host could still say it."""
    free_mb: float | None = None
    """What could still be written there at the end, in MB of 1e6 bytes, if the host said so."""
    stayed: dict[str, int] = {}
    """Files that were too large to be sent, and their sizes."""

    def __str__(self) -> str:
        return f"{self.name} ({named_ranks(self.ranks)})"


class HostEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why the launcher ended the run, where that was no rank's doing."""

    error_type: str
    what: str
    check_first: str


class HostsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a run, in the order of their ranks."""

    hosts: tuple[HostRecord, ...]
    end: HostEnd | None = None

    def save(self, run_dir: Path) -> None:
        """Write it.

        Raises:
            OSError: It cannot be written.
        """
        write_whole(run_dir / HOSTS_FILE, msgspec.json.format(msgspec.json.encode(self), indent=2))

    @classmethod
    def load(cls, run_dir: Path) -> HostsRecord | None:
        """Read it; ``None``: the run was on one host, or the file does not read."""
        return read_json(run_dir / HOSTS_FILE, cls)

    def place_of(self, rank: int) -> tuple[int, int]:
        """Return the number of the host that has a rank, and the number that the rank has there."""
        places = ((n, host.ranks.index(rank)) for n, host in enumerate(self.hosts) if rank in host.ranks)
        return next(places, (0, rank))

    def ahead_of_us(self) -> dict[int, int]:
        """Return the nanoseconds by which each rank's clock is ahead of the launcher's, where it is known."""
        return {
            rank: host.offset_ns for host in self.hosts for rank in host.ranks if host.offset_ns is not None
        }

    def ahead_of_rank0(self) -> dict[int, int]:
        """Return the same of rank 0's clock; nothing if rank 0's is not known."""
        ours = self.ahead_of_us()
        return {rank: ahead_ns - ours[0] for rank, ahead_ns in ours.items()} if 0 in ours else {}
