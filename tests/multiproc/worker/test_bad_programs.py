"""Programs that are not as one would like them: what is said of each, how soon, and that nothing is left."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from dataclasses import dataclass

import psutil
import pytest
from checkout import SUPPORT
from waiting import END_S

import ppwork as pp
from ppwork.launcher import script
from ppwork.process import PAST_LIMIT
from ppwork.records.calls import read_calls, worlds_inside
from ppwork.timeline.meetings import Meetings

pytestmark = pytest.mark.multiproc

BAD = SUPPORT / "broken" / "bad.py"
LIMIT_S = 30.0
STANDS_S = 8.0
"""Limit of a program that would stand for ever: long enough for its ranks to come there."""


@dataclass(frozen=True)
class Case:
    """One program of ``bad.py``.

    Attributes:
        pids: Number of processes that say which they are.
        finding: Words of the picture's sentence; nothing: there is no call to draw.
        failure: Words of the error, of which each line may have one.
        shown: Words of what stands under the cell.
    """

    pids: int
    finding: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    code: int = 0
    limit_s: float = LIMIT_S


CASES = {
    "exits_before": Case(2, shown=("neither rank printed anything",)),
    "one_exits_before": Case(
        2, ("Rank 1 waits for nobody: its program came to its end, before its first call.",),
        ("passed its limit of 8 s", "rank 0 waits for rank 1: init_process_group", "why rank 1 did not come"),
        code=PAST_LIMIT, limit_s=STANDS_S,
    ),
    "exits_at_once": Case(2, ("2 ranks, 4 calls with init",)),
    "one_exits_at_once": Case(
        2, ("Rank 1 waits for nobody: its program came to its end, after all_reduce",),
        ("Rank 1 waits for nobody: its program came to its end, after all_reduce",), code=1,
    ),
    "prints_lines": Case(2, shown=("rank 0: (99.9 MB before this are in ", "rank 1: the last line")),
    "prints_one_line": Case(2, shown=("rank 0: (99.9 MB before this are in ", "zzz... (65536 characters)")),
    "patches": Case(2, ("The program of ranks 0 and 1 puts functions of its own in place of send:",)),
    "forks": Case(3, ("2 ranks, 8 calls with init",)),
    "threads": Case(2, ("2 ranks, 10 calls with init",)),
    "reads": Case(
        2, ("its program ended with EOFError",),
        ('input("how many? ")', "Rank 0 raised EOFError", "a rank has no keyboard"), code=1,
    ),
    "changes_folder": Case(
        2, ("Rank 1 waits for nobody: its program ended with ValueError: no such thing",),
        ("in changes_folder", "Rank 1 raised ValueError: no such thing."), code=1,
    ),
    "hooks": Case(
        2, ("Rank 1 waits for nobody: its program ended with ValueError: said to nobody",),
        ("bad.py:", "Rank 1 raised ValueError: said to nobody, and showed nothing of it.", "sys.excepthook"),
        code=1,
    ),
    "redirects": Case(2, ("2 ranks, 6 calls with init",), shown=("neither rank printed anything",)),
    "ignores_signals": Case(
        2, ("Rank 1 waits for nobody: in code of its own",),
        ("passed its limit of 8 s", "rank 0 waits for rank 1: recv", "in ignores_signals"),
        code=PAST_LIMIT, limit_s=STANDS_S,
    ),
    "leaves_children": Case(
        2 + 3, ("Rank 1 waits for nobody: its program ended with ValueError",),
        ("Rank 1 raised ValueError: after the children.",), code=1,
    ),
    "closes_all": Case(2, ("What rank 0 called after all_reduce", "its program closed the recorder's file")),
}  # fmt: skip


@pytest.fixture
def bad(tmp_path):
    """Run one of them on two ranks, from a copy that it may delete; in ``pids`` processes say theirs."""

    def run(name: str, limit_s: float = LIMIT_S) -> pp.Run:
        program = shutil.copy(BAD, tmp_path / "bad.py")
        arguments = (name, str(tmp_path / "pids"))
        return pp.launch_script(
            program, nproc=2, arguments=arguments, out=tmp_path / "run", check=False, limit_s=limit_s
        )

    (tmp_path / "pids").mkdir()
    return run


def noted(tmp_path) -> list[int]:
    return [int(path.name.removeprefix("pid")) for path in (tmp_path / "pids").glob("pid*")]


def alive(pids: list[int], since: float) -> list[int]:
    """Those that are there, and have not come to bear the number of one that was."""
    there = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return [p.pid for p in there if p.status() != psutil.STATUS_ZOMBIE and p.create_time() < since]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_program_gets_a_clear_word_in_time_and_leaves_nothing(bad, tmp_path, name):
    case, start = CASES[name], time.monotonic()
    run = bad(name, case.limit_s)
    assert time.monotonic() - start < case.limit_s + END_S
    ended = time.time()
    pids = noted(tmp_path)
    own = tmp_path / "pids" / "own.txt"
    assert not own.exists() or own.read_text() == "mine"
    assert len(pids) == case.pids
    assert alive(pids, ended) == []
    # gloo's own thread aborts a rank whose connections are closed under it, if it comes before the exit.
    assert run.exit_code == case.code or (name == "closes_all" and run.exit_code == 1)
    said = str(run.failure or "")
    assert bool(said) == bool(case.failure)
    assert [words for words in case.failure if words not in said] == [], said
    assert [words for words in case.shown if words not in repr(run)] == []
    if case.finding:
        finding = pp.pictures.program(run).finding
        assert [words for words in case.finding if words not in finding] == []
    else:
        with pytest.raises(pp.PlanError, match="no call of torch"):
            pp.pictures.program(run)


def test_very_much_output_is_not_held_in_memory_to_show_its_end(bad):
    run = bad("prints_one_line")
    tracemalloc.start()
    try:
        assert len(repr(run)) < 5_000
        assert len(run._repr_html_()) < 5_000
        assert 4e6 < len(run.printed(0)) < 5e6
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40e6


def test_a_program_that_prints_for_ever_is_stopped_before_the_disk_is_full(bad, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "MOST_PRINTED", 2 << 20)
    run = bad("prints_for_ever")
    assert run.failure.what.startswith("Rank ")
    assert "printed more than 2 MiB, and the program was stopped." in run.failure.what
    assert alive(noted(tmp_path), time.time()) == []


def test_ranks_that_a_rank_starts_are_seen_as_a_world_of_their_own(bad, tmp_path):
    run = bad("spawns", 90.0)  # each imports torch
    assert len(noted(tmp_path)) == 2 + 3
    assert alive(noted(tmp_path), time.time()) == []
    assert [folder.name for folder in worlds_inside(run.run_dir)] == ["inside-rank0-000"]
    ranks = read_calls(run.run_dir)
    assert list(ranks) == [0, 1, 2]
    assert all(of_rank.left is not None and not of_rank.left.error for of_rank in ranks.values())
    met = Meetings(ranks)
    assert [meeting.name for meeting in met.meetings if not meeting.is_start] == ["all_reduce"]
    assert "3 ranks, 9 calls with init" in pp.pictures.program(run).finding


@pytest.mark.parametrize("name", ["hooks", "exits_before"])
def test_the_command_says_the_same_and_ends_with_a_code(tmp_path, command, capsys, name):
    (tmp_path / "pids").mkdir()
    words = ["--nproc", "2", "--out", str(tmp_path / "run")]
    code, said = command("trace", *words, str(BAD), "--", name, str(tmp_path / "pids"))
    assert code != 0
    expected = {"hooks": "Rank 1 raised ValueError: said to nobody", "exits_before": "no call of torch"}
    assert expected[name] in said
    assert alive(noted(tmp_path), time.time()) == []


FORK = """\
import os, sys
import torch
import torch.distributed as dist
port = sys.argv[1]
for world in range(2):
    children = []
    for rank in range(2):
        if (pid := os.fork()) == 0:
            dist.init_process_group("gloo", init_method=f"file://{port}{world}", rank=rank, world_size=2)
            dist.all_reduce(torch.ones(world + 1))
            dist.destroy_process_group()
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
"""


def test_forked_ranks_of_one_world_after_another_have_a_folder_each(tmp_path):
    program = tmp_path / "forks.py"
    program.write_text(FORK)
    run = pp.launch_script(program, nproc=1, arguments=(str(tmp_path / "store"),), out=tmp_path / "run")
    assert [folder.name for folder in worlds_inside(run.run_dir)] == ["inside-rank0-000", "inside-rank0-001"]
    picture = pp.pictures.program(run)
    assert "The program started 2 worlds of ranks, one after another; this is the last" in picture.finding
    assert "all_reduce SUM float32[2]" in str(picture.table)
    assert "all_reduce SUM float32[1]" in str(pp.pictures.program(worlds_inside(run.run_dir)[0]).table)
