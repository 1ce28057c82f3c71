"""What there is on a machine, as ``survey`` found it: data only."""

from __future__ import annotations

import re

import msgspec

PROBE_LIMIT_S = 30.0
"""torch from a cold disk may take ten seconds; one that takes longer says nothing any more."""
PORTS_TRIED = 16
SHM = "/dev/shm"  # noqa: S108  looked at, not written


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CUDA device, as torch sees it."""

    name: str
    gib: float
    capability: str


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe said; a field that it could not fill keeps its default."""

    torch: str = ""
    import_s: float | None = None
    cuda_built: str = ""
    """CUDA version that torch was built for."""
    gloo_built: bool = False
    gloo_ms: float | None = None
    """How long two ranks took to meet, exchange a message and part."""
    rank_mb: float | None = None
    """Resident memory of one of them."""
    nccl_built: bool = False
    nccl: str = ""
    gpus: list[Gpu] = []
    av: str = ""
    x264: bool = False
    """Whether PyAV can write what a run writes."""
    errors: dict[str, str] = {}


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One of our requirements."""

    name: str
    floor: str
    found: str
    """Its version; empty: not installed."""
    extra: str = ""
    pinned: str = ""
    """What ``constraints.txt`` of this checkout has; empty: nothing, or there is no such file."""

    @property
    def is_enough(self) -> bool:
        """Whether it is there and not too old."""
        return bool(self.found) and _parts(self.found) >= _parts(self.floor)

    @property
    def is_pinned(self) -> bool:
        """Whether it is what CI runs with, build tags such as ``+cpu`` aside."""
        return not self.pinned or self.found.partition("+")[0] == self.pinned


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Memory and disks in MB of 1e6 bytes."""

    system: str
    python: str
    cores: int
    """That this process may run on."""
    memory_mb: float
    memory_free_mb: float
    shm_free_mb: float | None
    """Of ``/dev/shm``; ``None`` where there is none."""
    disk: str
    """Folder below which runs are written."""
    disk_free_mb: float
    scratch_error: str = ""
    files_soft: int
    files_hard: int
    loopback: int
    """Ports of 127.0.0.1 that could be bound at once, of ``PORTS_TRIED``."""
    loopback_error: str = ""
    driver: str = ""
    """NVIDIA's kernel driver."""
    browser: str = ""
    playwright: bool = False
    two_hosts: bool = False
    """Whether network namespaces can be made."""
    packages: list[Package]
    probed: Probed
    lessons: list[str] = []
    """File names of the lessons of this checkout."""


def _parts(text: str) -> tuple[int, ...]:
    """Return a version's leading numbers.

    >>> _parts("2.13.0+cpu") >= _parts("2.11")
    True
    """
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", text)[0])))  # type: ignore[index]
