"""Looks a machine over: what is there is looked up or tried, and not judged. No torch here.

What needs torch or PyAV is asked of one short subprocess (``doctor_probe``), bounded, which dies with us.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import msgspec
import psutil

from ppwork.checks import free_mb
from ppwork.lifeline import PR_SET_PDEATHSIG
from ppwork.machine import PORTS_TRIED, SHM, Machine, Package, Probed

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLOOR = re.compile(r"^([\w.-]+)\s*>=\s*([\d.]+)\s*(?:;\s*extra\s*==\s*[\"'](\w+)[\"'])?$")
CONTAINER = Path("/sys/fs/cgroup")
DRIVER_FILE = Path("/proc/driver/nvidia/version")
HELD_PROBE = f"""\
import ctypes, signal; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
import sys; from ppwork.doctor_probe import main; sys.exit(main())
"""


def look(*, two_hosts: bool, limit_s: float) -> Machine:
    """Look this machine over.

    Args:
        two_hosts: What ``fault_hosts`` says.
        limit_s: Bound on the subprocess with torch, in seconds.

    Blocks:
        For about as long as ``import torch``; at most ``limit_s`` and a moment.
    """
    disk = Path.cwd()
    memory, free = _memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ports, port_error = _bound_ports()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cores=_cores(),
        memory_mb=round(memory / 1e6),
        memory_free_mb=round(free / 1e6),
        shm_free_mb=round(free_mb(Path(SHM))) if Path(SHM).is_dir() else None,
        disk=str(disk),
        disk_free_mb=round(free_mb(disk)),
        scratch_error=_scratch_error(),
        files_soft=soft,
        files_hard=hard,
        loopback=ports,
        loopback_error=port_error,
        driver=_driver(),
        browser=next((path for name in BROWSERS if (path := shutil.which(name))), ""),
        playwright=find_spec("playwright") is not None,
        two_hosts=two_hosts,
        packages=packages(),
        probed=probe(limit_s),
        lessons=sorted(path.name for path in _checkout().glob("notebooks/[0-9][0-9]-*.ipynb")),
    )


def probe(limit_s: float, command: list[str] | None = None) -> Probed:
    """Ask a subprocess with torch; whatever goes wrong there is in ``errors``.

    Args:
        limit_s: Bound, in seconds.
        command: What to run; default: the probe.
    """
    try:
        answer = subprocess.run(
            command or [sys.executable, "-c", HELD_PROBE], capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Probed(errors={"torch": f"no answer within {limit_s:g} s"})
    try:
        return msgspec.convert(json.loads(answer.stdout.splitlines()[-1]), Probed)
    except (IndexError, ValueError):
        said = answer.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Probed(errors={"torch": f"the probe ended with {answer.returncode}: {' '.join(said)}"})


def packages() -> list[Package]:
    """Return what ppwork itself and its extra ``lab`` require, with what is installed."""
    found = []
    pins = _pins()
    for text in requires("ppwork") or []:
        read = FLOOR.match(text)
        if read is not None and read[3] in (None, "lab"):
            name, floor, extra = read[1], read[2], read[3] or ""
            pinned = pins.get(name.lower(), "")
            found.append(Package(name=name, floor=floor, found=_version(name), extra=extra, pinned=pinned))
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _pins() -> dict[str, str]:
    path = _checkout() / "constraints.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name.lower(): pin for name, sign, pin in (line.partition("==") for line in lines) if sign}


def _checkout() -> Path:
    """Return where lessons and pins lie when ppwork was installed from its repository."""
    return Path(__file__).parent.parent


def _cores() -> int:
    """Return the cores that this process may use: those it is tied to, and a container's share of them."""
    tied = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _container("cpu.max").partition(" ")
    return min(tied, max(1, int(quota) // int(period))) if quota.isdecimal() else tied


def _memory() -> tuple[float, float]:
    """Return memory and free memory in bytes: the machine's, or a container's where it has less."""
    memory, limit, used = psutil.virtual_memory(), _container("memory.max"), _container("memory.current")
    if limit.isdecimal() and int(limit) < memory.total:
        return float(limit), float(min(memory.available, max(0, int(limit) - int(used or 0))))
    return float(memory.total), float(memory.available)


def _container(name: str) -> str:
    """Return what the container's control group says; empty where there is none."""
    try:
        return (CONTAINER / name).read_text().strip()
    except OSError:
        return ""


def _bound_ports() -> tuple[int, str]:
    """Bind some ports of loopback at once, and connect to the last of them."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(PORTS_TRIED):
            sockets.append(listener := socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        with socket.create_connection(sockets[-1].getsockname(), timeout=1.0):
            return len(sockets), ""
    except OSError as error:
        return max(0, len(sockets) - 1), str(error.strerror or error)
    finally:
        for one in sockets:
            one.close()


def _scratch_error() -> str:
    """Try the folder for temporary files, in which ranks find each other."""
    try:
        with tempfile.TemporaryFile(prefix="ppwork-") as file:
            file.write(b"0")
    except OSError as error:
        return str(error.strerror)
    return ""


def _driver() -> str:
    try:
        first = DRIVER_FILE.read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""
    number = re.search(r"\b\d+\.\d+(\.\d+)?\b", first)
    return number[0] if number else first
