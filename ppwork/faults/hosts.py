"""Hosts in miniature: each has a network, a name, a folder and, if it shall, a clock of its own.

Two hosts are two network namespaces of this machine with a cable between them. What is started on one sees
its name and address only. They need root and the ``ip`` and ``unshare`` commands of Linux.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = ("hosta", "hostb")
ADDRESSES = ("10.77.77.1", "10.77.77.2")
CABLE = "eth0"
"""Name of the interface at each end."""
NEEDED = ("ip", "unshare", "mount", "hostname")
_ENTER = """\
hostname "$1"; shift
if [ -n "$1" ]; then mount --bind "$1" "$2"; fi; shift 2
exec "$@"
"""


@dataclass(frozen=True)
class Host:
    """One of them.

    Attributes:
        name: Its own, as ``hostname`` says it there.
        address: Of its end of the cable.
        namespace: Of its network, for ``ip -n``.
        ahead_s: Seconds by which its monotonic clock is ahead of this machine's.
    """

    name: str
    address: str
    namespace: str
    ahead_s: int = 0

    def command(self, program: Sequence[str], *, local: tuple[Path, Path] | None = None) -> list[str]:
        """Return the command line that runs a program on this host.

        Args:
            program: The program and its arguments.
            local: A folder, and the place where this host alone sees it.
        """
        clock = ["--time", "--monotonic", str(self.ahead_s), "--fork", "--kill-child"] if self.ahead_s else []
        folders = map(str, local or ("", ""))
        enter = ["unshare", "--uts", "--mount", *clock, "sh", "-ec", _ENTER, "host", self.name, *folders]
        return ["ip", "netns", "exec", self.namespace, *enter, *program]

    def cut(self) -> None:
        """Pull the cable."""
        ip("-n", self.namespace, "link", "set", CABLE, "down")

    def mend(self) -> None:
        """Put the cable in again: TCP sends again what was lost."""
        ip("-n", self.namespace, "link", "set", CABLE, "up")


def why_no_hosts(*, clocks: bool = False) -> str:
    """Return why this process cannot make hosts; empty: it can.

    Args:
        clocks: With clocks of their own.
    """
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if missing := [program for program in NEEDED if shutil.which(program) is None]:
        return f"there is no {missing[0]}"
    own = ["--net", "--uts", "--mount", *(["--time", "--fork"] if clocks else [])]
    tried = subprocess.run(["unshare", *own, "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip() if tried.returncode else ""


@contextlib.contextmanager
def two_hosts(
    names: tuple[str, str] = ("hosta", "hostb"), *, ahead_s: int = 0
) -> Iterator[tuple[Host, Host]]:
    """Make two hosts; on the way out they are gone, and what ran on them has no network.

    Args:
        names: Of the hosts.
        ahead_s: Seconds by which the second one's clock is ahead.
    """
    first, second = (
        Host(name, address, f"ppwork-{os.getpid()}-{name}", ahead)
        for name, address, ahead in zip(names, ADDRESSES, (0, ahead_s), strict=True)
    )
    with contextlib.ExitStack() as stack:
        for host in (first, second):
            ip("netns", "add", host.namespace)
            stack.callback(ip, "netns", "del", host.namespace)
        peer = ["peer", "name", CABLE, "netns", second.namespace]
        ip("link", "add", CABLE, "netns", first.namespace, "type", "veth", *peer)
        for host in (first, second):
            ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", CABLE)
            for link in ("lo", CABLE):
                ip("-n", host.namespace, "link", "set", link, "up")
        yield first, second


def ip(*arguments: str) -> None:
    """Run ``ip``.

    Raises:
        subprocess.CalledProcessError: It could not do it.
    """
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
