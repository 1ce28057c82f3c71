"""What a live view reads of a run that goes, from the files that the ranks write."""

from __future__ import annotations

import time

import msgspec
import pytest
from made_calls import MS, MadeCalls

from ppwork.errors import RunFailed
from ppwork.lab import live
from ppwork.lab.job import JobProgress
from ppwork.lab.progress import RunProgress, ScriptProgress
from ppwork.launcher.job import JOB_FILE, Job, JobRecord
from ppwork.launcher.view import NoView
from ppwork.plan import Plan
from ppwork.records.clocks import CLOCK, HOST
from ppwork.records.hosts import HostRecord, HostsRecord
from ppwork.records.pulse import Pulse, PulseState, PulseView
from ppwork.records.run import Run, log_file
from ppwork.records.spans import Recorder, span_file
from ppwork.records.tail import CALLS, LOG_BYTES, SpanTail, last_lines

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
    monkeypatch.setattr(PulseView, "here", False)  # its process cannot be looked at
    assert facts.look()[0].state == "busy"
    silent = RunProgress(PLAN, tmp_path, over=True).look()[0]
    assert (silent.state, silent.doing) == ("silent", "was in encode, chunk 3")


def test_what_stays_of_a_run_that_never_began_is_its_ranks(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(PLAN.to_json())
    ended = live.EndedView(Run(tmp_path, 1))
    assert "did not finish" in repr(ended)
    assert ended._repr_html_().count("not started") == PLAN.world_size


def test_what_stays_of_a_run_that_failed_is_drawn_to_its_end(tmp_path, recorder):
    (tmp_path / Plan.FILE_NAME).write_bytes(PLAN.to_json())
    for chunk in range(20):
        generated(recorder, chunk)
    failed = Run(tmp_path, 1, RunFailed("a cable was pulled", check_first="the cable"))
    assert [row[0] for row in live.last_timeline(failed).table.rows][:5] == ["15", "16", "17", "18", "19"]
    assert live.last_timeline(Run(tmp_path, 0)).table.rows[0][0] == "0"


def test_outside_a_notebook_nothing_is_shown(tmp_path):
    assert isinstance(live.view_of(RunProgress(PLAN, tmp_path), live=None), NoView)


def test_lanes_and_table_show_the_same_chunk_though_the_pulse_is_older(tmp_path, recorder):
    leader = Pulse(tmp_path, 1)
    leader.beat(PulseState.BUSY, "generate", {"call_id": 2, "chunk_index": 2, "cache_epoch": 0}, since_ns=1)
    facts = RunProgress(PLAN, tmp_path)
    assert facts.look()[1].doing == "generate, chunk 2"
    assert [(bar.word, bar.end_ns) for bar in facts.bars] == [("generate 2", None)]
    for chunk in (2, 3, 4):
        generated(recorder, chunk)
    assert facts.look()[1].doing == "generate, chunk 4"
    assert facts.done["stage 1, generate"] == 5
    assert [bar.word for bar in facts.bars] == ["generate 2", "generate 3", "generate 4"]


def test_bars_of_other_hosts_stand_by_the_beats_and_then_by_what_the_ranks_measured(tmp_path, recorder):
    """The launcher knows a clock to half a round trip of a pipe, the ranks know each other's far better."""
    hosts = [
        HostRecord(name=name, ranks=ranks, offset_ns=ahead_ns)
        for name, ranks, ahead_ns in (("a", (0,), 5_000_000), ("b", (1, 2), 9_000_000_000))
    ]
    HostsRecord(hosts=tuple(hosts)).save(tmp_path)
    recorder.add_span(
        "generate",
        9_500_000_000,
        end_ns=9_600_000_000,
        ids={"call_id": 0, "chunk_index": 0, "cache_epoch": 0},
    )
    facts = RunProgress(PLAN, tmp_path)
    facts.look()
    assert [(bar.start_ns, bar.end_ns) for bar in facts.bars] == [(500_000_000, 600_000_000)]
    recorder.instant(f"{HOST}b", figures={"rank": 1.0})
    recorder.instant(CLOCK, figures={"offset_ns": 9_000_000_000.0})
    facts.look()
    assert [bar.start_ns for bar in facts.bars] == [495_000_000]


def test_a_programs_lanes_are_its_last_calls_and_its_table_the_one_it_stands_in(tmp_path):
    facts = ScriptProgress(tmp_path, 2, limit_s=120.0)
    facts.look()
    assert facts.bars == []
    made = MadeCalls(tmp_path, 2, head_bytes=4000, tail_bytes=2000)
    for number in range(100):  # more than the files hold
        made.send(0, 1, number, number + 0.5)
        facts.look()
    made.recv(1, 0, 100, None, line=9)
    first, second = facts.look()
    assert (first.doing, second.doing) == ("", "recv float32[4] from 0 (prog.py:9)")
    assert [bar.start_ns for bar in facts.bars if bar.rank == 0] == [n * MS for n in range(100 - CALLS, 100)]
    assert [(bar.word, bar.end_ns) for bar in facts.bars if bar.rank == 1] == [("recv", None)]


def test_a_node_that_booted_while_we_waited_has_its_bars_where_they_end(tmp_path, monkeypatch):
    """Until there is a bar nothing says how far its clock is behind ours."""
    record = JobRecord(plan=Plan(), nodes=2, asked=(), options={}, limit_s=1.0, job_id="4711")
    (tmp_path / JOB_FILE).write_bytes(msgspec.json.encode(record))
    ours = [10_000_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: ours[0])
    facts = JobProgress(Job("4711", tmp_path))
    with Recorder(span_file(tmp_path, 1)) as recorder:
        facts.look()
        ours[0] += 300_000_000_000
        ids = {"call_id": 0, "chunk_index": 0, "cache_epoch": 0}
        recorder.add_span("generate", 80_000_000_000, end_ns=80_000_001_000, ids=ids)
        facts.look()
    (bar,) = facts.bars
    assert facts.now_ns == bar.end_ns
