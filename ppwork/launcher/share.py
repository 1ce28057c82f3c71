"""What of this machine this process may use: in a container less than there is."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

CONTAINER = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the cores that this process may use: those it is tied to, and a container's share of them."""
    tied = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _container("cpu.max").partition(" ")
    return min(tied, max(1, int(quota) // int(period))) if quota.isdecimal() else tied


def memory() -> tuple[float, float]:
    """Return memory and free memory in bytes: the machine's, or a container's where it has less."""
    whole, limit, used = psutil.virtual_memory(), _container("memory.max"), _container("memory.current")
    if limit.isdecimal() and int(limit) < whole.total:
        return float(limit), float(min(whole.available, max(0, int(limit) - int(used or 0))))
    return float(whole.total), float(whole.available)


def _container(name: str) -> str:
    """Return a value of the container's control group; empty where there is none."""
    try:
        return (CONTAINER / name).read_text().strip()
    except OSError:
        return ""
