"""Sources and what is read off a run; against runs made by hand (made_runs.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from failure_records import record
from made_runs import made

from ppwork.errors import PlanError
from ppwork.lab.lesson import RankException, ends_of, evidence, in_common_ms, records_of
from ppwork.launcher.script import ScriptRun
from ppwork.pictures.source import lines_of, source_of
from ppwork.plan import Plan
from ppwork.records.failure import write_record
from ppwork.records.run import Run


def test_source_is_the_text_of_the_file_without_importing_it(tmp_path, monkeypatch):
    f = "@staticmethod\ndef f():\n    return 1"
    c = "class C:\n    def m(self):\n        pass"
    (tmp_path / "never_imported.py").write_text(f"raise SystemExit\n\n{f}\n\n{c}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert source_of("never_imported:f") == f
    assert source_of("never_imported:C") == c
    assert source_of("never_imported:C.m") == "def m(self):\n    pass"


@pytest.mark.parametrize(
    "path",
    [
        "ppwork.worker.loops",
        ":f",
        "ppwork.nothing:f",
        "no_such.module:f",
        "sys:exit",
        "ppwork.worker.loops:f",
    ],
)
def test_source_that_is_not_there_is_refused(path):
    with pytest.raises(PlanError):
        source_of(path)


def test_lines_of_a_module_begin_where_asked_and_lose_their_margin(tmp_path, monkeypatch):
    (tmp_path / "few_lines.py").write_text("def f():\n    for n in range(2):\n        g(n)\n    return n\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert lines_of("few_lines", "for n", 2) == "for n in range(2):\n    g(n)"
    assert lines_of("few_lines", "def", 1) == "def f():"


@pytest.mark.parametrize(
    ("module", "first", "said"),
    [
        ("ppwork.runtime.groups", "no such line", "0 lines of ppwork.runtime.groups begin with"),
        ("ppwork.runtime.groups", "return", r"\d\d? lines of ppwork.runtime.groups begin with 'return'"),
        ("no_such_module", "import", "0 lines of no_such_module"),
    ],
)
def test_lines_that_are_not_there_once_are_refused(module, first, said):
    with pytest.raises(PlanError, match=said):
        lines_of(module, first, 1)


PEER = (
    "RuntimeError: [/__w/gloo/pair.cc:553] Connection closed by peer [::1]:9. This is typically caused by x"
)


def test_end_of_each_rank_that_raised_is_its_line_and_its_error(tmp_path):
    errors = {
        0: "ValueError: 0 is not part of group <torch.distributed.ProcessGroup object at 0x7f2092d5aa70>",
        1: PEER,
    }
    for rank in range(3):
        folder = tmp_path / "job" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        head = 'Traceback (most recent call last):\n  File "/srv/me/mine.py", line 3, in <module>\n'
        ended = f"{head}    dist.send(x, 1)\n{errors.get(rank)}\n"
        (folder / "stderr.log").write_text(ended if rank in errors else "a warning\n")
    assert ends_of(ScriptRun(tmp_path, 1, nproc=3)) == {
        0: RankException("dist.send(x, 1)", "ValueError: 0 is not part of group"),
        1: RankException("dist.send(x, 1)", "RuntimeError: Connection closed by peer."),
    }


def test_end_without_a_line_of_the_program_has_its_error_only(tmp_path):
    folder = tmp_path / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(
        'Traceback (most recent call last):\n  File "<frozen runpy>", line 88, in _run_code\nKeyError: 3\n'
    )
    assert ends_of(ScriptRun(tmp_path, 1, nproc=1)) == {0: RankException("", "KeyError: 3")}


def test_time_in_common_is_for_each_chunk():
    """A decode of 16 ms falls into the next generate, for all of eight chunks but the last."""
    assert in_common_ms(made(overlapped=True)) == pytest.approx(7 * 16 / 8)
    assert in_common_ms(made()) == 0


@pytest.mark.parametrize(("overlapped", "early"), [(True, 7), (False, 0)])
def test_evidence_counts_envelopes_that_left_before_the_decode_in_front_of_them(overlapped, early):
    """Of eight chunks seven have one in front."""
    entries = made(overlapped=overlapped)
    run = SimpleNamespace(entries_by_rank=entries, summary={"period_ms": 66.0, "mesh_idle_ms": 3.0})
    seen = evidence(run)
    assert seen["left early"] == early
    assert seen["in common"] == in_common_ms(entries)
    assert (seen["period"], seen["mean idle"]) == (66.0, 3.0)
    assert seen["delay"] > 0


def test_records_are_told_by_rank_and_a_rank_without_one_is_named(tmp_path):
    Plan(mesh_size=2).save(tmp_path)
    write_record(
        tmp_path, record(rank=1, error_type="PeerLostError", what="It closed.", source="/srv/mine.py:3")
    )
    write_record(tmp_path, record(rank=2))
    assert records_of(Run(tmp_path, 1)) == [
        "rank 0 wrote no record",
        "rank 1 wrote: PeerLostError, at mine.py:3",
        "    It closed.",
        "rank 2 wrote: StageError",
        "    It broke.",
    ]
