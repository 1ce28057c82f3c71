"""A program of one's own on N ranks, from Python and from a cell: shown, explained, and never left behind."""

from __future__ import annotations

import re
import time

import pytest
from waiting import END_S, wait_for

import ppwork as pp
from ppwork.launcher import standstill
from ppwork.launcher.view import QUIET_VARIABLE
from ppwork.process import PAST_LIMIT, WARM_VARIABLE

pytestmark = pytest.mark.multiproc
PROGRAM = """\
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if "raise" in sys.argv and rank == 1:
    raise ValueError("boom")
while "spin" in sys.argv and rank == 1: pass
total = torch.ones(1) * rank
dist.all_reduce(total)
print("sum", total.item())
dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    return path


def test_a_rank_that_raises_is_named_with_the_users_line_and_what_became_of_the_others(program, tmp_path):
    start = time.monotonic()
    with pytest.raises(pp.RunFailed) as failed:
        pp.launch_script(program, nproc=3, arguments=("raise",), out=tmp_path / "run")
    assert time.monotonic() - start < END_S
    assert failed.value.what.startswith(f"{program}:8")
    assert "Rank 1 raised ValueError: boom" in failed.value.what
    assert failed.value.where == {"rank": 1}
    # They may still be in init_process_group. torchrun looks every 0.1 s, and ends who has not come to
    # the closed connection.
    became = r"rank ([02])(?: waits for rank 1: (?:all_reduce|init_process_group)|: was killed by SIGTERM)"
    others = re.findall(became, failed.value.what)
    assert sorted(others) == ["0", "2"]


def test_a_program_that_measures_its_own_is_not_recorded_and_its_failure_is_still_told(program, tmp_path):
    run = pp.launch_script(
        program, nproc=2, arguments=("raise",), out=tmp_path / "run", check=False, record=False
    )
    assert "Rank 1 raised ValueError: boom" in run.failure.what
    assert list(run.run_dir.glob("calls*")) == []


def test_a_message_that_is_too_long_has_both_sides_from_the_calls_and_asks_for_no_other_run(tmp_path):
    path = tmp_path / "long.py"
    path.write_text("""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.send(torch.ones(4), dst=1)
else:
    dist.recv(torch.zeros(2), src=0)
dist.destroy_process_group()
""")
    run = pp.launch_script(path, nproc=2, out=tmp_path / "run", check=False)
    said = str(run.failure)
    assert "Rank 1 was sent a message of 16 bytes where it expected 8" in said
    assert "A send of float32[4] (rank 0, long.py:6) met a receive of float32[2] (rank 1, long.py:8)." in said
    assert "shape and dtype" in run.failure.check_first
    assert "not known" not in said
    assert "DETAIL" not in said


def test_a_program_past_its_limit_is_stopped_and_the_rank_that_never_came_is_named(
    program, tmp_path, monkeypatch, capsys
):
    """On a console it is said before that it stands still: who waits where, and until when."""
    monkeypatch.setattr(standstill, "STILL_S", 1.5)
    monkeypatch.delenv(QUIET_VARIABLE, raising=False)
    limit_s = 12.0
    start = time.monotonic()
    run = pp.launch_script(
        program, nproc=2, arguments=("spin",), out=tmp_path / "run", check=False, limit_s=limit_s
    )
    assert time.monotonic() - start < limit_s + END_S
    assert run.exit_code == PAST_LIMIT
    assert run.failure.what.startswith("The program passed its limit")
    assert run.failure.where == {"rank": 1}
    assert f"{program}:9" in run.failure.what
    assert "  rank 1 waits for nobody: in code of its own at mine.py:9, after init_pro" in run.failure.what
    said = capsys.readouterr().err
    assert "rank 0 waits for rank 1: all_reduce SUM float32[1] at mine.py:11" in said
    assert "stopped 12 s after its start" in said


def test_a_limit_that_is_too_short_for_a_start_is_told_as_that(program, tmp_path, monkeypatch):
    monkeypatch.setenv(WARM_VARIABLE, "0")  # warm ranks may print before a busy launcher stops them
    run = pp.launch_script(program, nproc=2, out=tmp_path / "run", check=False, limit_s=0.01)
    assert run.exit_code == PAST_LIMIT
    assert run.failure.what.startswith("No rank had begun when the program passed its limit of 0.01 s.")
    assert "a longer limit" in run.failure.check_first


def test_the_code_of_a_cell_runs_on_ranks_and_shows_what_they_printed(tmp_path, messages_of):
    cell = "get_ipython().run_line_magic('load_ext', 'ppwork')\n"
    cell += f"get_ipython().run_cell_magic('ranks', '2 --file cell.py', {PROGRAM!r})"
    seen = messages_of(cell, tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    # The live view's place has the program at its end; there is no second copy of it.
    (result,) = [m["content"]["data"] for m in seen if m["msg_type"] == "update_display_data"]
    assert not [m for m in seen if m["msg_type"] == "execute_result"]
    assert result["text/plain"] == "rank 0: sum 1.0\nrank 1: sum 1.0"
    # The picture of its calls stands below what it printed.
    assert result["text/html"].startswith("<pre>rank 0: sum 1.0")
    assert '<img alt="2 ranks, 6 calls with init' in result["text/html"]
    assert (tmp_path / "cell.py").read_text().startswith(PROGRAM)
    wait_for((tmp_path / "runs").exists)


def test_a_cell_that_fails_shows_where_its_ranks_stood_above_the_error(tmp_path, messages_of):
    cell = "get_ipython().run_line_magic('load_ext', 'ppwork')\n"
    cell += f"get_ipython().run_cell_magic('ranks', '2 --file cell.py raise', {PROGRAM!r})"
    seen = messages_of(cell, tmp_path, XDG_RUNTIME_DIR=str(tmp_path), PPWORK_NONINTERACTIVE="1")
    (shown,) = [m["content"]["data"] for m in seen if m["msg_type"] == "display_data"]
    assert "its program ended with ValueError: boom" in shown["text/html"]
    (error,) = [m["content"] for m in seen if m["msg_type"] == "error"]
    assert error["ename"] == "RunFailed"
