"""Hosts in miniature: each has a network, a name, processes, folders and, if it shall, a clock of its own.

They are namespaces of this machine, joined by a switch in a namespace of its own, so that the machine's own
network is not touched. None of them has a name that could be left behind: each is held by its first process,
which ends when this process does, however that ends, and takes everything on the host with it.

They need root and the ``ip``, ``unshare``, ``nsenter`` and ``mount`` commands of Linux.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import psutil

from ppwork.launcher.nodes.places import Command, Options

NAMES = ("hosta", "hostb")
NETWORK = "10.77.77."
ADDRESSES = tuple(f"{NETWORK}{number}" for number in (1, 2))
"""Of the first two hosts; the others go on."""
CABLE = "eth0"
"""Name of the interface on each host."""
BRIDGE = "br0"
NEEDED = ("ip", "unshare", "nsenter", "mount")
OWN = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ENTER = ("--net", "--uts", "--ipc", "--mount", "--pid", "--no-fork")
START_S = 30.0
"""Longest wait for a host to come up, and for one command of its set-up."""
NOWHERE = "02:00:00:00:00:00"
"""A hardware address that no host has."""
_FIRST = """\
import signal, socket, subprocess, sys
name, table, *folders = sys.argv[1:]
socket.sethostname(name)
mount = lambda *words: subprocess.run(["mount", *words], check=True)
mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt")
with open("/mnt/hosts", "w") as file:
    file.write(table)
mount("--bind", "/mnt/hosts", "/etc/hosts")
for here, there in zip(folders[::2], folders[1::2]):
    mount("--bind", here, there)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
sys.stdin.read()
"""
"""A host's first process. The kernel reaps what is left to it, and its input ends with whoever made it."""
_IN_FOLDER = 'cd "$0" && "$@"; exit $?'
"""A shell of this machine forks the program and waits: nsenter would stop when its program is stopped."""


@dataclass(frozen=True)
class MiniatureHost:
    """One of them.

    Attributes:
        name: Its own, as ``hostname`` says it there; the others resolve it.
        address: Of its end of the cable.
        pid: Of its first process, as this machine sees it; while it lives the host is there.
        switch: Pid of the switch's first process.
        ahead_s: Seconds by which its monotonic clock is ahead of this machine's.
    """

    name: str
    address: str
    pid: int
    switch: int
    ahead_s: int = 0

    def command(self, program: Sequence[str], *, folder: Path | None = None) -> list[str]:
        """Return the command line that runs a program on this host.

        Args:
            program: The program and its arguments.
            folder: Where it shall run; without it, where this process does.
        """
        enter = _enter(self.pid, *ENTER, *(["--time"] if self.ahead_s else []))
        return [*enter, "sh", "-c", _IN_FOLDER, str(folder or Path.cwd()), *program]

    def cut(self) -> None:
        """Pull the cable, at the switch."""
        _run(*_enter(self.switch, "--net"), "ip", "link", "set", self.name, "down")

    def mend(self) -> None:
        """Put the cable in again: TCP sends again what was lost."""
        _run(*_enter(self.switch, "--net"), "ip", "link", "set", self.name, "up")

    def lose_what_goes_to(self, other: MiniatureHost) -> None:
        """Lose what this host sends to another one from now on; the other way still works."""
        to_nowhere = ("lladdr", NOWHERE, "nud", "permanent", "dev", CABLE)
        _run(*_enter(self.pid, "--net"), "ip", "neigh", "replace", other.address, *to_nowhere)


def why_no_hosts(*, clocks: bool = False) -> str:
    """Return why this process cannot make hosts; empty: it can.

    Args:
        clocks: With clocks of their own.
    """
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if missing := [program for program in NEEDED if shutil.which(program) is None]:
        return f"there is no {missing[0]}"
    own = [*OWN, *(["--time"] if clocks else [])]
    link = ["ip", "link", "add", CABLE, "type", "veth", "peer", "name", "other"]
    tried = subprocess.run(["unshare", *own, *link], capture_output=True, check=False, timeout=START_S)
    return tried.stderr.decode().strip() if tried.returncode else ""


@contextlib.contextmanager
def hosts_on_a_switch(
    names: Sequence[str] = NAMES,
    *,
    ahead_s: Mapping[str, int] | None = None,
    folders: Mapping[str, Mapping[Path, Path]] | None = None,
) -> Iterator[tuple[MiniatureHost, ...]]:
    """Make hosts and cable them; on the way out they are gone, and what ran on them is dead.

    Args:
        names: Of the hosts, at most 15 characters each.
        ahead_s: Seconds by which a host's clock is ahead, by its name.
        folders: By its name, what a host sees in other places: a folder or file, and the place, which exists.

    Raises:
        RuntimeError, subprocess.SubprocessError: A host could not be made; none is left.
    """
    addresses = {name: f"{NETWORK}{number}" for number, name in enumerate(names, start=1)}
    table = "".join(f"{address} {name}\n" for name, address in addresses.items())
    table = f"127.0.0.1 localhost\n{table}"
    with contextlib.ExitStack() as stack:
        switch = _first_process(stack, "switch", table)
        _run(*_enter(switch, "--net"), "ip", "link", "add", BRIDGE, "up", "type", "bridge")
        made = []
        for name, address in addresses.items():
            ahead = (ahead_s or {}).get(name, 0)
            binds = [str(path) for pair in (folders or {}).get(name, {}).items() for path in pair]
            clock = ["--time", "--monotonic", str(ahead), "--boottime", str(ahead)] if ahead else []
            host = MiniatureHost(
                name, address, _first_process(stack, name, table, *binds, own=clock), switch, ahead
            )
            _cable(host)
            made.append(host)
        yield tuple(made)


def places_on(hosts: Sequence[MiniatureHost], folder: Path, **options: Unpack[Options]) -> Command:
    """Return hosts as ``launch(on=...)`` takes them: a pipe to each, which does not run over its cable.

    Args:
        hosts: Of the run, in the order of its ranks.
        folder: Gets the script that enters them.
        options: As ``Places`` has them.
    """
    enter = folder / "enter"
    ways = [f'{host.name}) shift; set -- {shlex.join(host.command([]))} "$@";;' for host in hosts]
    nobody = '*) echo "there is no host $1" >&2; exit 255;;'
    enter.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *ways, nobody, "esac", 'exec "$@"\n']))
    enter.chmod(0o700)
    return Command(f"{shlex.quote(str(enter))} {{host}}", [host.name for host in hosts], **options)


def _first_process(stack: contextlib.ExitStack, *arguments: str, own: Sequence[str] = ()) -> int:
    """Start what holds a host's namespaces, and return its pid."""
    command = ["unshare", *OWN, *own, sys.executable, "-SEc", _FIRST, *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    stack.callback(_end, process)
    out = process.stdout
    if out is None or not select.select([out], [], [], START_S)[0] or out.readline() != b"up\n":
        process.kill()
        said = process.communicate(timeout=START_S)[1].decode()
        raise RuntimeError(f"host {arguments[0]} did not come up: {said}")
    return int(psutil.Process(process.pid).children()[0].pid)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # and with it, by --kill-child, the first process and all below
    process.communicate(timeout=START_S)  # its pipes are held by the first process: at their end that is gone


def _cable(host: MiniatureHost) -> None:
    """Lead a cable from a host to the switch."""
    peer = ("peer", "name", CABLE, "netns", str(host.pid))
    at_switch, at_host = (_enter(pid, "--net") for pid in (host.switch, host.pid))
    _run(*at_switch, "ip", "link", "add", host.name, "type", "veth", *peer)
    _run(*at_switch, "ip", "link", "set", host.name, "master", BRIDGE, "up")
    _run(*at_host, "ip", "addr", "add", f"{host.address}/24", "dev", CABLE)
    for link in ("lo", CABLE):
        _run(*at_host, "ip", "link", "set", link, "up")


def _enter(pid: int, *spaces: str) -> list[str]:
    return ["nsenter", "--target", str(pid), *spaces]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=START_S)
