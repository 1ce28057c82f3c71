"""The live view in a real kernel: it moves while the run goes, and a picture with a table takes its place."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.multiproc
WIDGET = "application/vnd.jupyter.widget-view+json"
LAUNCH = """
import ppwork as pp
from ppwork.workloads.times import synthetic
plan = pp.Plan(mesh_size=1, chunks=20, in_flight_depth=2, backend="gloo")
plan = synthetic(plan, encode_ms=5.0, decode_ms=5.0, stage1_ms=60.0, payload_mb=0.1)
run = pp.launch(plan, out={out!r})
print(run.summary["chunks"])
"""


def test_a_view_moves_and_leaves_a_table_and_a_timeline_with_its_finding(tmp_path, messages_of):
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
    assert '<img alt="Over chunks ' in stays["text/html"]
    assert "code 0" in stays["text/html"]
    assert "chunks 20, depth 2" in " ".join(stays["text/plain"].split())


def test_a_kernel_that_was_asked_to_be_quiet_shows_nothing(tmp_path, messages_of):
    seen = messages_of(
        LAUNCH.format(out=str(tmp_path / "run")), XDG_RUNTIME_DIR=str(tmp_path), PPWORK_NONINTERACTIVE="1"
    )
    kinds = {m["msg_type"] for m in seen}
    assert not kinds & {"display_data", "comm_open", "error"}
    assert [m["content"]["text"] for m in seen if m["msg_type"] == "stream"] == ["20\n"]


SCRIPT = """
import ppwork as pp
{call}pp.launch_script({file!r}, nproc=2, out={out!r}{more})
"""
PROGRAM = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("rank", dist.get_rank())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("more", ["", ", picture=False"])
def test_a_program_that_is_the_last_line_of_its_cell_is_shown_once(tmp_path, messages_of, more):
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    seen = messages_of(
        SCRIPT.format(call="", file=str(file), out=str(tmp_path / "run"), more=more),
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    (stays,) = [m["content"]["data"] for m in seen if m["msg_type"] == "update_display_data"]
    assert "rank 0: rank 0" in stays["text/html"]
    assert ("<img" in stays["text/html"]) == (not more)
    assert "execute_result" not in {m["msg_type"] for m in seen}


def test_a_program_that_nobody_has_seen_is_shown_as_the_value_of_its_cell(tmp_path, messages_of):
    """Quietly, and in a later cell: there it is asked for again."""
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    quiet = SCRIPT.format(call="", file=str(file), out=str(tmp_path / "run"), more="")
    seen = messages_of(quiet, XDG_RUNTIME_DIR=str(tmp_path), PPWORK_NONINTERACTIVE="1")
    (shown,) = [m["content"]["data"] for m in seen if m["msg_type"] == "execute_result"]
    assert "rank 1: rank 1" in shown["text/html"]
    later = SCRIPT.format(call="run = ", file=str(file), out=str(tmp_path / "again"), more="")
    messages_of(later, XDG_RUNTIME_DIR=str(tmp_path))
    seen = messages_of("run", XDG_RUNTIME_DIR=str(tmp_path))
    (shown,) = [m["content"]["data"] for m in seen if m["msg_type"] == "execute_result"]
    assert "rank 1: rank 1" in shown["text/html"]


HANGS = """
from unittest.mock import patch
from ppwork.launcher import standstill
text = '''
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() != 1:
    dist.all_reduce(torch.ones(4))
dist.barrier()
'''
shell = get_ipython()
shell.run_line_magic("load_ext", "ppwork")
with patch.object(standstill, "STILL_S", 1.5):
    shell.run_cell_magic("ranks", "3 --file my_hang.py --limit 12 --may-fail", text)
"""
STANDS = "rank 0 waits for rank 1: all_reduce SUM float32[4] at my_hang.py:6"


def test_a_cell_that_hangs_says_who_waits_where_and_until_when_long_before_its_limit(tmp_path, messages_of):
    """In the widgets, and in a text for a front end without widgets; nothing of it stays."""
    seen = messages_of(HANGS, tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    *during, stays = [m["content"]["data"] for m in seen if m["msg_type"] == "update_display_data"]
    notices = [data["text/plain"] for data in during if STANDS in data["text/plain"]]
    assert [data[WIDGET]["model_id"] for data in during] == [during[0][WIDGET]["model_id"]] * len(during)
    assert "rank 1 waits for ranks 0 and 2: barrier at my_hang.py:7" in notices[0]
    assert "stopped 12 s after its start" in notices[0]
    values = [m["content"]["data"].get("state", {}).get("value") for m in seen if m["msg_type"] == "comm_msg"]
    assert any(STANDS in str(value) for value in values)
    assert "No rank has printed" not in str(stays)
    told = "".join(m["content"]["text"] for m in seen if m["msg_type"] == "stream")
    assert "passed its limit of 12 s" in told
    assert "No rank has printed" not in told
