"""The launcher's facts about the hosts of a run: ``hosts.json`` in the run's folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppwork.errors import named_ranks
from ppwork.records.files import read_json, write_whole

HOSTS_FILE = "hosts.json"


def host_logs(run_dir: Path, number: int) -> Path:
    """Return the folder with the output of a host's ranks, for a user's own program."""
    return run_dir / f"host-{number}" if number else run_dir


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    ranks: tuple[int, ...]
    address: str = ""
    """Address in the ranks' network; empty if not found yet, or not needed by others."""
    interface: str = ""
    folder: str = ""
    """Folder into which its ranks wrote; empty: the run's folder itself."""
    offset_ns: int | None = None
    """How far its clock is ahead of the launcher's."""
    error_ns: int = 0
    """The offset is wrong by at most this."""
    code: int | None = None
    """Exit code of its torchrun, if the host could still report it."""
    free_mb: float | None = None
    """Free space there at the end, in MB of 1e6 bytes, if the host reported it."""
    stayed: dict[str, int] = {}
    """Files that were too large to be sent, and their sizes."""

    def __str__(self) -> str:
        return f"{self.name} ({named_ranks(self.ranks)})"


class HostEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why the launcher ended the run, if no rank caused it."""

    error_type: str
    what: str
    check_first: str


class HostsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a run, in the order of their ranks."""

    hosts: tuple[HostRecord, ...]
    end: HostEnd | None = None

    def save(self, run_dir: Path) -> None:
        """Write the file.

        Raises:
            OSError: It cannot be written.
        """
        write_whole(run_dir / HOSTS_FILE, msgspec.json.format(msgspec.json.encode(self), indent=2))

    @classmethod
    def load(cls, run_dir: Path) -> HostsRecord | None:
        """Read the file; ``None`` if the run was on one host, or the file does not read."""
        return read_json(run_dir / HOSTS_FILE, cls)

    def place_of(self, rank: int) -> tuple[int, int]:
        """Return the number of a rank's host, and the rank's number on that host."""
        places = ((n, host.ranks.index(rank)) for n, host in enumerate(self.hosts) if rank in host.ranks)
        return next(places, (0, rank))

    def ahead_of_us(self) -> dict[int, int]:
        """Return the nanoseconds by which each rank's clock is ahead of the launcher's, if known."""
        return {
            rank: host.offset_ns for host in self.hosts for rank in host.ranks if host.offset_ns is not None
        }

    def ahead_of_rank0(self) -> dict[int, int]:
        """Return the nanoseconds ahead of rank 0's clock; empty if rank 0's is not known."""
        ours = self.ahead_of_us()
        return {rank: ahead_ns - ours[0] for rank, ahead_ns in ours.items()} if 0 in ours else {}
