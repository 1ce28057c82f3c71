"""What a live view reads of a run that goes, from the files that the ranks write."""

from __future__ import annotations

import pytest

from ppwork.lab import live
from ppwork.lab.live import RunProgress
from ppwork.launcher.view import NoView
from ppwork.plan import Plan
from ppwork.records.pulse import Pulse, PulseState, PulseView
from ppwork.records.run import Run, log_file
from ppwork.records.spans import Recorder, span_file
from ppwork.records.tail import LOG_BYTES, SpanTail, last_lines

PLAN = Plan(mesh_size=2, chunks=8)


@pytest.fixture
def recorder(tmp_path):
    with Recorder(span_file(tmp_path, 1)) as recording:
        yield recording


def generated(recorder, chunk):
    recorder.add_span("generate", 1, end_ns=2, ids={"call_id": chunk, "chunk_index": chunk, "cache_epoch": 0})


def test_a_tail_returns_each_entry_once_and_waits_for_the_rest_of_a_line(tmp_path):
    path = tmp_path / "spans"
    tail = SpanTail(path)
    assert tail.read() == []
    line = b'{"type":"instant","name":"emit","lane":"main","at_ns":5}\n'
    path.write_bytes(line + line[:10])
    assert [entry.name for entry in tail.read()] == ["emit"]
    assert tail.read() == []
    path.write_bytes(line + line)
    assert [entry.name for entry in tail.read()] == ["emit"]


def test_last_lines_are_whole_lines_that_say_something(tmp_path):
    path = tmp_path / "log"
    assert last_lines(path, 2) == []
    path.write_text("one\n\ntwo \nthree\n\n")
    assert last_lines(path, 2) == ["two", "three"]
    path.write_text("x" * LOG_BYTES + "\nwhole\n")
    assert last_lines(path, 2) == ["whole"]


def test_chunks_are_counted_where_the_work_was_done(tmp_path, recorder):
    """A follower's or a reference's spans do not count, and the count never falls."""
    facts = RunProgress(PLAN, tmp_path)
    facts.look()
    assert facts.done == {"stage 0, encode": 0, "stage 1, generate": 0, "stage 0, decode": 0}
    generated(recorder, 0)
    generated(recorder, 1)
    recorder.add_span("decode", 1, end_ns=2, ids={"call_id": 1, "chunk_index": 1, "cache_epoch": 0})
    facts.look()
    assert facts.done == {"stage 0, encode": 0, "stage 1, generate": 2, "stage 0, decode": 0}


def test_each_rank_says_what_it_is_in_and_a_dead_one_that_it_is_gone(tmp_path, monkeypatch):
    ids = {"call_id": 4, "chunk_index": 3, "cache_epoch": 0}
    Pulse(tmp_path, 0).beat(PulseState.BUSY, "encode", ids, since_ns=1)
    leader = Pulse(tmp_path, 1)
    leader.beat(PulseState.SLOW, "generate", ids, since_ns=1)
    log_file(tmp_path, 0).write_text("+1000ms r0 INFO joined as <stage0>\n")
    facts = RunProgress(PLAN, tmp_path)
    first, slow, absent = facts.look()
    assert (first.role, first.state, first.doing) == ("stage0", "busy", "encode, chunk 3")
    assert slow.doing.startswith("generate, chunk 3, for ")
    assert (absent.state, absent.doing) == ("not started", "")
    leader.leave(3)
    assert facts.look()[1].doing == "code 3"
    assert "joined as &lt;stage0&gt;" in live.log_lines([first])
    monkeypatch.setattr(PulseView, "process", lambda _: None)
    gone = facts.look()[0]
    assert (gone.state, gone.doing) == ("gone", "was in encode, chunk 3")


def test_what_stays_of_a_run_that_never_began_is_its_ranks(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(PLAN.to_json())
    ended = live.Ended(Run(tmp_path, 1))
    assert "did not finish" in repr(ended)
    assert ended._repr_html_().count("not started") == PLAN.world_size


def test_outside_a_notebook_nothing_is_shown(tmp_path):
    assert isinstance(live.view_of(RunProgress(PLAN, tmp_path), live=None), NoView)
