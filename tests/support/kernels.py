"""One cell in a notebook's kernel, and everything that it published."""

from __future__ import annotations

import os

from checkout import SUPPORT
from jupyter_client.manager import start_new_kernel
from waiting import END_S


def messages_of(code, **environment):
    """Run one cell in a kernel of its own and return everything that it published."""
    manager, client = start_new_kernel(env={**os.environ, **environment}, cwd=str(SUPPORT))
    try:
        messages, asked = [], client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=2 * END_S)
            messages.append(message)
            ended = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            if ended and message["parent_header"].get("msg_id") == asked:
                return messages
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
