"""Cells in a notebook's kernel, and everything that each published."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkout import SUPPORT
from jupyter_client.manager import KernelManager
from waiting import END_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyter_client import BlockingKernelClient

SETTLED = """\
import os
os.chdir({folder!r})
os.environ.pop("PPWORK_NONINTERACTIVE", None)
os.environ.update({environment!r})
"""


class SocketKernelManager(KernelManager):
    """A kernel that is reached by sockets in a folder of its own.

    Jupyter finds a free port and leaves it again; ranks beside it take ports all the time, and when the
    kernel binds it, a second later, the port may be somebody else's.
    """

    def __init__(self, **traits: object) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="kernel-")
        connection = str(Path(self._sockets.name, "kernel.json"))
        super().__init__(transport="ipc", connection_file=connection, **traits)

    def cleanup_resources(self, restart: bool = False) -> None:
        super().cleanup_resources(restart=restart)
        if not restart:
            self._sockets.cleanup()


def start_new_kernel(**options: object) -> tuple[KernelManager, BlockingKernelClient]:
    """Start a kernel, options as for `Popen`; returns what ends it and what talks to it, once it answers."""
    manager = SocketKernelManager()
    manager.start_kernel(**options)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=2 * END_S)
    except RuntimeError:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        raise
    return manager, client


@contextmanager
def kernel() -> Iterator[Callable[..., list[dict]]]:
    """Start a kernel; yield what runs a cell in it, with a folder and variables, and returns its messages."""
    manager, client = start_new_kernel(env={**os.environ}, cwd=str(SUPPORT))

    def messages_of(code: str, folder: object = SUPPORT, **environment: str) -> list[dict]:
        settled = SETTLED.format(folder=str(folder), environment=environment)
        messages, asked = [], client.execute(settled + code)
        while True:
            message = client.get_iopub_msg(timeout=2 * END_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages

    try:
        yield messages_of
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
