"""The live view in a real kernel: it moves while the run goes, and a picture with a table takes its place."""

from __future__ import annotations

import os

import pytest
from conftest import END_S, HERE
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.multiproc
WIDGET = "application/vnd.jupyter.widget-view+json"
LAUNCH = """
import ppwork as pp
from ppwork.options import synthetic
plan = pp.Plan(mesh_size=1, chunks=20, in_flight_depth=2, backend="gloo")
plan = synthetic(plan, "5,5", 60.0, 0.1, jitter=0.0)
run = pp.launch(plan, out={out!r})
print(run.summary["chunks"])
"""


def messages_of(code, **environment):
    """Run one cell in a kernel of its own and return everything that it published."""
    manager, client = start_new_kernel(env={**os.environ, **environment}, cwd=str(HERE))
    try:
        seen, asked = [], client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=2 * END_S)
            seen.append(message)
            ended = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            if ended and message["parent_header"].get("msg_id") == asked:
                return seen
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_a_view_moves_and_leaves_a_table_and_a_timeline_with_its_finding(tmp_path):
    seen = messages_of(LAUNCH.format(out=str(tmp_path / "run")), XDG_RUNTIME_DIR=str(tmp_path))
    (shown,) = [m["content"]["data"] for m in seen if m["msg_type"] == "display_data"]
    assert WIDGET in shown
    states = [m["content"]["data"].get("state", {}) for m in seen if m["msg_type"] == "comm_msg"]
    counts = [state["value"] for state in states if isinstance(state.get("value"), int)]
    assert len(set(counts)) > 3
    assert max(counts) <= 20
    assert any("generate, chunk" in str(state.get("value")) for state in states)
    (stays,) = [m["content"]["data"] for m in seen if m["msg_type"] == "update_display_data"]
    assert WIDGET not in stays
    assert '<img alt="Over chunks 1 to 19 the period is' in stays["text/html"]
    assert "code 0" in stays["text/html"]
    assert "chunks     20, depth 2" in stays["text/plain"]


def test_a_kernel_that_was_asked_to_be_quiet_shows_nothing(tmp_path):
    seen = messages_of(
        LAUNCH.format(out=str(tmp_path / "run")), XDG_RUNTIME_DIR=str(tmp_path), PPWORK_NONINTERACTIVE="1"
    )
    kinds = {m["msg_type"] for m in seen}
    assert not kinds & {"display_data", "comm_open", "error"}
    assert [m["content"]["text"] for m in seen if m["msg_type"] == "stream"] == ["20\n"]
