"""This machine as it was inspected: facts that were looked up or tried, and not judged. No torch here.

One short subprocess (``probe``) is asked what needs torch or PyAV; it is bounded and dies with us.
"""

from __future__ import annotations

import json
import platform
import re
import resource
import shutil
import socket
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ppwork.launcher import share
from ppwork.process import die_with_parent, held
from ppwork.records.folder import free_mb
from ppwork.version import WHEEL

PROBE_LIMIT_S = 60.0
"""torch took ten seconds from a cold disk, and more than 30 beside a pip install at a load of 6."""
PORTS_TRIED = 16
SHM = "/dev/shm"  # noqa: S108  looked at, not written
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLOOR = re.compile(r"^([\w.-]+)\s*>=\s*([\d.]+)\s*(?:;\s*extra\s*==\s*[\"'](\w+)[\"'])?$")
DRIVER_FILE = Path("/proc/driver/nvidia/version")
PROBE = "from ppwork.lab.doctor.probe import main; main()"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CUDA device, as torch sees it."""

    name: str
    gib: float
    capability: str


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the probe; a field that it could not fill keeps its default."""

    torch: str = ""
    import_s: float | None = None
    cuda_built: str = ""
    """CUDA version that torch was built for."""
    gloo_built: bool = False
    gloo_ms: float | None = None
    """Milliseconds that two ranks took to meet, exchange a message and part."""
    rank_mb: float | None = None
    """Resident memory of one of them."""
    nccl_built: bool = False
    nccl: str = ""
    sequential: str = ""
    """Why chunks cannot overlap on NCCL here; empty: they can."""
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
    """Its version in ``constraints.txt`` of this checkout; empty: none, or there is no such file."""

    @property
    def is_enough(self) -> bool:
        """Whether it is there and not too old."""
        return bool(self.found) and _parts(self.found) >= _parts(self.floor)

    @property
    def is_pinned(self) -> bool:
        """Whether it is the version that CI runs with, build tags such as ``+cpu`` aside."""
        return not self.pinned or self.found.partition("+")[0] == self.pinned


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a machine. Memory and disks in MB of 1e6 bytes."""

    system: str
    python: str
    cores: int
    """Cores that this process may run on."""
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
    in_checkout: bool = True
    """Whether ppwork was installed from its repository, and not from a wheel."""
    two_hosts: bool = False
    """Whether network namespaces can be made."""
    packages: list[Package]
    probed: Probed
    lessons: list[str] = []
    """File names of the lessons of this checkout."""

    def install(self, extra: str) -> str:
        """Return the command that installs ppwork with an extra, as it was installed here."""
        if self.in_checkout:
            return f'pip install -c constraints.txt -e ".[{extra}]"'
        return f'pip install "{WHEEL}[{extra}]"'


def inspect_machine(*, two_hosts: bool, limit_s: float) -> MachineFacts:
    """Look this machine over.

    Args:
        two_hosts: Whether network namespaces can be made; ``faults.outside`` knows.
        limit_s: Bound on the subprocess with torch, in seconds.

    Blocks:
        For about as long as ``import torch``; at most ``limit_s`` and a moment.
    """
    total, free = share.memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ports, port_error = _bound_ports()
    return MachineFacts(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cores=share.cores(),
        in_checkout=(_checkout() / "constraints.txt").is_file(),
        memory_mb=round(total / 1e6),
        memory_free_mb=round(free / 1e6),
        shm_free_mb=round(free_mb(Path(SHM))) if Path(SHM).is_dir() else None,
        disk=str(Path.cwd()),
        disk_free_mb=round(free_mb(Path.cwd())),
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
            command or held(PROBE, tie=die_with_parent), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Probed(errors={"torch": f"no answer within {limit_s:g} s"})
    try:
        return msgspec.convert(json.loads(answer.stdout.splitlines()[-1]), Probed)
    except (IndexError, ValueError):
        last_line = " ".join(answer.stderr.decode(errors="replace").strip().splitlines()[-1:])
        return Probed(errors={"torch": f"the probe ended with {answer.returncode}: {last_line}"})


def packages() -> list[Package]:
    """Return what ppwork and its extras ``run`` and ``lab`` require, with what is installed.

    Nothing, if ppwork itself is not installed, but only to be found.
    """
    try:
        texts = requires("ppwork") or []
    except PackageNotFoundError:
        return []
    required = []
    pins = _pins()
    for text in texts:
        match = FLOOR.match(text)
        if match is not None and match[3] in (None, "run", "lab"):
            name, floor, extra = match[1], match[2], "lab" if match[3] == "lab" else ""
            pinned = pins.get(name.lower(), "")
            required.append(Package(name=name, floor=floor, found=_version(name), extra=extra, pinned=pinned))
    return required


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
    return Path(__file__).parents[3]


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
        for listener in sockets:
            listener.close()


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


def _parts(text: str) -> tuple[int, ...]:
    """Return a version's leading numbers.

    >>> _parts("2.13.0+cpu") >= _parts("2.11")
    True
    """
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", text)[0])))  # type: ignore[index]
