"""sshd on hosts in miniature, and an ssh that knows their keys: nothing of this user's own is touched.

Skipped, with the reason, where a program of it is missing. ``make hosts`` installs none: Debian's package
would leave a server running on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hosts import no_hosts
from waiting import wait_for

from ppwork.launcher.torchrun import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ppwork.faults.hosts import MiniatureHost

PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
"""Where sshd is on no user's path."""
_missing = [name for name in ("ssh", "ssh-keygen", "sshd") if shutil.which(name, path=PLACES) is None]
no_sshd = no_hosts or (f"there is no {_missing[0]} (apt-get install openssh-server)" if _missing else "")
needs_sshd = pytest.mark.skipif(bool(no_sshd), reason=f"no sshd on hosts in miniature here: {no_sshd}")
"""Marks a test whose hosts are reached by ssh."""
_SERVER = """\
ListenAddress {address}
HostKey {folder}/key-{name}
AuthorizedKeysFile {folder}/key.pub
SetEnv TMPDIR={folder}/tmp-{name}
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
_CLIENT = """\
User root
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""
_START = "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec {sshd} -D -e -f {config}"
"""Its folder is the host's own: on this machine there may be none."""


@contextlib.contextmanager
def sshd_on(hosts: Sequence[MiniatureHost], folder: Path) -> Iterator[dict[str, str]]:
    """Start an sshd on each of these hosts; yield the environment in which ``ssh`` reaches them.

    Args:
        hosts: That are to be reached.
        folder: For keys, and ``tmp-NAME`` for what a host writes.
    """
    sshd = shutil.which("sshd", path=PLACES)
    (folder / "config").write_text(_CLIENT.format(folder=folder))
    known = []
    for name in ("key", *(f"key-{host.name}" for host in hosts)):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=20)
    with contextlib.ExitStack() as stack:
        for host in hosts:
            (folder / f"tmp-{host.name}").mkdir()
            known.append(f"{host.name} {(folder / f'key-{host.name}.pub').read_text()}")
            config = folder / f"sshd-{host.name}"
            config.write_text(_SERVER.format(address=host.address, folder=folder, name=host.name))
            log = stack.enter_context((folder / f"sshd-{host.name}.log").open("wb"))
            start = ["sh", "-c", _START.format(sshd=sshd, config=config)]
            stack.enter_context(running(host.command(start), {**os.environ}, log))
        (folder / "known_hosts").write_text("".join(known))
        (folder / "bin").mkdir()
        ssh = folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        ssh.chmod(0o700)

        def up() -> bool:
            logs = [(folder / f"sshd-{host.name}.log").read_text() for host in hosts]
            return all("listening on" in text for text in logs)

        wait_for(up, 20)
        yield {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
