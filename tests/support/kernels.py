"""Cells in a notebook's kernel, and everything that each published."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from checkout import SUPPORT
from jupyter_client.manager import start_new_kernel
from waiting import END_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETTLED = """\
import os
os.chdir({folder!r})
os.environ.pop("PPWORK_NONINTERACTIVE", None)
os.environ.update({environment!r})
"""


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
