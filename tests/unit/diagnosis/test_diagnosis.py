"""Why a run failed, told from what its ranks left: the cause first, the user's line first of all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import msgspec
import pytest
import torch
from captured_logs import CAPTURED, console
from made_runs import MS, ZERO, made
from typer.testing import CliRunner

from ppwork.cli.main import app
from ppwork.cli.runs import failure_line
from ppwork.diagnosis.report import Report
from ppwork.diagnosis.run_ends import BY_VERIFY, NOT_COMPARED, UNCHECKED
from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.diagnosis.runs import diagnose
from ppwork.diagnosis.waits import roots, waits_of
from ppwork.errors import PlanError, RunFailed, StageError
from ppwork.launcher import launch
from ppwork.pictures.run_table import rows_of
from ppwork.plan import Plan
from ppwork.process import ORPHANED, PAST_LIMIT, SECONDARY, STUCK, TORCHRUN_HUNG, TORCHRUN_STOPPED, UNWRITABLE
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK
from ppwork.protocol.envelope import Ids
from ppwork.protocol.topology import Topology
from ppwork.records.difference import difference_of
from ppwork.records.failure import FailureRecord, failure_file, record_of, write_record
from ppwork.records.flight import Collective, Flight, flight_file, flight_of
from ppwork.records.last_stacks import stacks_file
from ppwork.records.ledger import CollectiveCall, Ledger, line_of
from ppwork.records.pulse import Pulse, PulseState, PulseView
from ppwork.records.run import (
    FAILED_AT_END,
    NOTHING_RESET,
    STREAM_ENDED,
    SUMMARY_FILE,
    TORCHRUN_LOG,
    UNRELEASED,
    LaunchEnd,
    Run,
    log_file,
)
from ppwork.records.spans import RESULTS_DIFFER, Instant, Recorder, Span, span_file
from ppwork.records.threads import DeadThread, threads_file
from ppwork.worker.backend_wait import lend, tell_of_handles

REPORT = console("killed").read_text()
"""Rank 1 by SIGKILL; ranks 0 and 2 ended by torchrun's SIGTERM."""
WITHOUT_RANK_2 = """\
============================================================
ppwork FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 24410)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 3 (pid: 24409)
============================================================
"""
"""torchrun reports each of its ranks whose code is not 0."""
PIDS = Report.of(REPORT).pids


FAILED_NS = ZERO + 60_000 * MS
"""Long after the last of what a made run wrote."""


@pytest.fixture
def run(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(
        Plan(mesh_size=2, chunks=8, stage0="mine:Source", stage1="mine:Steps").to_json()
    )
    return tmp_path


def record(rank, **changes):
    fields = {
        "error_type": "StageError",
        "what": f"Rank {rank} broke.\nmore lines",
        "where": {"rank": rank, "chunk_index": 3},
        "check_first": "the traceback",
        "symptom": False,
        "at_ns": 5,
        "traceback": "",
    }
    return FailureRecord(rank=rank, **{**fields, **changes})


def symptom(rank, peer=None, **changes):
    where = {"rank": rank} if peer is None else {"rank": rank, "peer": peer}
    fields = {"error_type": "PeerLostError", "what": "The connection broke.", "where": where, "symptom": True}
    return record(rank, **{**fields, **changes})


def write_spans(run, entries_by_rank):
    for rank, entries in entries_by_rank.items():
        with Recorder(span_file(run, rank)) as recorder:
            for entry in entries:
                recorder.write(entry)


def report(run, code="-9", rank=1):
    text = REPORT.replace("exitcode  : -9 ", f"exitcode  : {code} ")
    (run / TORCHRUN_LOG).write_text(text.replace("rank      : 1 (local", f"rank      : {rank} (local"))


# Cause and symptom


def test_the_users_line_comes_first_then_the_cause_then_the_others_by_time(run):
    (run / "torchrun.log").write_text("")

    def step():
        raise ZeroDivisionError("its own bug")

    def stage():
        try:
            step()
        except ZeroDivisionError as error:
            raise StageError("The stage's step raised ZeroDivisionError: its own bug") from error

    try:
        stage()
    except StageError as error:
        cause = record_of(error, 2, {})
    write_record(run, cause)
    for rank, after_ms in ((0, 40), (1, 30)):
        write_record(run, symptom(rank, at_ns=cause.at_ns + after_ms * MS))
    found = diagnose(run, 1)
    lines = found.as_error().what.splitlines()
    line = step.__code__.co_firstlineno + 1
    assert lines == [
        f"{__file__}:{line}, in step, called at test_diagnosis.py:{line + 4}",
        '    raise ZeroDivisionError("its own bug")',
        "Rank 2 (follower) failed first: StageError: The stage's step raised ZeroDivisionError: its own bug",
        f"  log: {run / TORCHRUN_LOG}",
        "  then rank 1 after 0.030 s: PeerLostError: The connection broke.",
        "  then rank 0 after 0.040 s: PeerLostError: The connection broke.",
    ]
    assert found.as_error().headline == lines[2]
    assert found.cause == cause
    assert [one.rank for one in found.others] == [1, 0]
    assert found.as_error().where == {"rank": 2}
    assert repr(found) == found.text == str(found.as_error())
    assert found.text.splitlines()[-1].startswith("  check first: ")


def test_what_a_notice_repeats_is_not_said_again(run):
    """Each peer's line repeated the whole cause; a notice from a rank that left no record is all there is."""
    write_record(run, record(1, what="its own bug", at_ns=ZERO))
    said = "The session was ended by a peer (rank=1 role=leader): its own bug"
    for peer, line in ((1, "TerminalNotice: told by rank 1"), (2, f"TerminalNotice: {said}")):
        write_record(run, symptom(0, peer, error_type="TerminalNotice", what=said, at_ns=ZERO + 4 * MS))
        assert f"  then rank 0 after 0.004 s: {line}\n" in diagnose(run, 1).text


def test_of_ranks_that_made_the_same_mistake_none_is_called_the_first(run):
    """A step without `return` fails on every mesh rank; which one is the first is a race."""
    write_record(run, record(2, what="no return", source="my_stages.py:7", at_ns=ZERO))
    write_record(run, record(1, what="no return", source="my_stages.py:7", at_ns=ZERO + 3 * MS))
    write_record(run, symptom(0, at_ns=ZERO + 4 * MS))
    found = diagnose(run, 1)
    assert found.sentence == "Ranks 1 (leader) and 2 (follower) failed alike: StageError: no return"
    assert "  then rank 1 after 0.003 s: StageError: the same" in found.text
    assert found.cause.rank == 2
    write_record(run, record(1, what="no return", source="my_stages.py:9", at_ns=ZERO + 3 * MS))
    assert diagnose(run, 1).sentence == "Rank 2 (follower) failed first: StageError: no return"


def test_source_without_its_line_in_the_traceback_is_shown_alone(run):
    write_record(run, record(2, source="my_stages.py:7"))
    assert diagnose(run, 1).text.splitlines()[0] == "my_stages.py:7"


def test_log_of_the_first_rank_is_named_and_stands_in_for_a_hint(run):
    log_file(run, 1).touch()
    write_record(run, record(1, check_first=""))
    found = diagnose(run, 1)
    assert found.check_first == found.log == str(run / "rank1.log")


def test_killed_rank_comes_before_those_that_noticed(run):
    report(run)
    write_record(run, symptom(2, 1))
    found = diagnose(run, 1)
    assert (
        "Rank 1 (leader) failed first: RankDied: Rank 1 was killed by SIGKILL and left no record."
        in found.text
    )
    assert "then rank 2: PeerLostError" in found.text
    assert "rank 0 was ended by torchrun" in found.text
    assert found.cause.where == {"rank": 1}
    assert isinstance(found.as_error(), RunFailed)


def test_killed_rank_says_what_its_pulse_said_last(run):
    report(run)
    Pulse(run, 1).beat(PulseState.BUSY, "generate", {"call_id": 4, "chunk_index": 3}, 7)
    assert diagnose(run, 1).cause.where == {"rank": 1, "call_id": 4, "chunk_index": 3}
    assert diagnose(run, 1).cause.at_ns == 7


def test_cause_that_came_before_a_silent_death_is_the_first(run):
    """torchrun's last resort is SIGKILL, 30 s after the failure that it follows."""
    entries = made(2)
    write_spans(run, entries)
    report(run, rank=2)
    write_record(run, record(1, at_ns=ZERO))
    assert diagnose(run, 1).cause.rank == 1
    write_record(run, record(1, at_ns=ZERO + 10_000 * MS))
    assert diagnose(run, 1).cause.rank == 2


def test_rank_that_the_launcher_killed_is_no_cause(run):
    report(run)
    with (run / TORCHRUN_LOG).open("a") as log:
        log.write("ppwork: rank 1 (pid 7, sleeping) was there 1 s after the first death and was killed\n")
    write_record(run, symptom(2, at_ns=9))
    write_record(run, symptom(0, at_ns=8))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (1, "NoRecord")
    assert "did not leave and was killed by the launcher" in found.cause.what


@pytest.mark.parametrize(
    ("code", "said", "check"),
    [
        (7, "exited with code 7", "the end of its log"),
        (STUCK, "ended by its own watchdog", "the end of its log"),
        (UNWRITABLE, "could not write its records", "free space"),
    ],
)
def test_exit_code_of_a_rank_that_left_no_record_is_explained(run, code, said, check):
    report(run, code)
    found = diagnose(run, 1)
    assert said in found.cause.what
    assert check in found.check_first


def test_the_code_of_a_follower_is_the_programs_own_if_no_rank_knows_a_cause(run):
    """`os._exit(3)` in a step was told as "left because a peer did", of the rank that had failed first."""
    report(run, SECONDARY)
    write_record(run, symptom(2, at_ns=10**18))
    found = diagnose(run, 1)
    assert found.cause.rank != 2
    assert "exited with code 3 and left no record" in found.cause.what
    assert "because a peer did" not in found.text


@pytest.mark.parametrize("code", [SECONDARY, ORPHANED])
def test_exit_code_of_a_rank_that_followed_is_a_symptom(run, code):
    report(run, code)
    write_record(run, record(2, at_ns=10**18))
    assert diagnose(run, 1).cause.rank == 2


def test_offsets_of_the_hosts_clocks_put_records_in_order(run):
    ahead = 10_000 * MS
    with Recorder(span_file(run, 2)) as recorder:
        recorder.instant("clock", figures={"offset_ns": ahead, "error_ns": 0})
    write_record(run, record(2, at_ns=ahead + 4))
    write_record(run, record(1, at_ns=5))
    assert diagnose(run, 1).cause.rank == 2


def test_a_stages_own_call_of_the_backend_is_a_symptom_when_its_text_says_so(run):
    text = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    error = StageError("The stage's step raised")
    error.__cause__ = RuntimeError(text)
    assert record_of(error, 1, {}).symptom
    error.__cause__ = RuntimeError("CUDA out of memory")
    assert not record_of(error, 1, {}).symptom


# Ranks that could not speak


def test_stopped_rank_is_named_by_the_peer_that_noticed(run):
    what = "Rank 2 (follower), process 7, was stopped (SIGSTOP) and did not go on for 5.1 s; it was idle."
    write_record(
        run, symptom(0, 2, error_type="PeerFrozenError", what=what, at_ns=9, check_first="kill -CONT 7")
    )
    write_record(run, symptom(1, 2, error_type="PeerFrozenError", what=what, at_ns=8))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (2, "PeerFrozenError")
    assert found.cause.where == {"rank": 2, "peer": 1}
    assert found.text.splitlines()[0] == (
        "Rank 2 (follower) is the cause: it was stopped (SIGSTOP) and did not go on for 5.1 s; it was idle; "
        "rank 1 noticed (PeerFrozenError)."
    )
    assert "then rank 0: PeerFrozenError: the same\n" in found.text  # what it was is said above
    write_record(run, symptom(2, 1, at_ns=99))  # it went on
    assert diagnose(run, 1).cause.rank == 2


def test_a_stage_that_was_stopped_was_in_its_step_as_its_author_calls_it(run):
    what = "Rank 2 (follower), process 7, was stopped (SIGSTOP); it was last in generate, entered 1.2 s ago."
    write_record(run, symptom(1, 2, error_type="PeerFrozenError", what=what))
    assert "it was last in step, entered 1.2 s ago" in diagnose(run, 1).sentence


def test_stopped_rank_is_named_by_the_launcher_that_killed_it(run):
    line = "ppwork: rank 2 (pid 7, stopped) was there 1 s after the first death and was killed\n"
    (run / TORCHRUN_LOG).write_text(line)
    write_record(run, symptom(0, 1))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (2, "PeerFrozenError")
    assert "Rank 2 (follower) is the cause: it was stopped (SIGSTOP) and had to be killed." in found.text


@pytest.mark.parametrize(("began_ms", "beat_ms"), [(10, 20), (20, 10)])
def test_a_rank_seen_stopped_after_a_death_comes_behind_the_one_that_died(run, began_ms, beat_ms):
    """Its stop may have begun at any time; whose last entry is older says nothing of who died."""
    report(run, rank=0)
    with (run / TORCHRUN_LOG).open("a") as log:
        log.write("ppwork: rank 2 (pid 7, stopped) was there 1 s after the first death and was killed\n")
    Pulse(run, 0).beat(PulseState.IDLE, since_ns=ZERO + began_ms * MS)
    Pulse(run, 2).beat(PulseState.IDLE, since_ns=ZERO + beat_ms * MS)
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (0, "RankDied")
    assert "rank 2 was stopped (SIGSTOP), did not leave and was killed by the launcher" in found.text
    write_record(run, symptom(1, 2, error_type="PeerFrozenError", at_ns=ZERO, what="It did not run."))
    assert diagnose(run, 1).cause.rank == (0 if began_ms < beat_ms else 2), (
        "a peer had told of the stop: by time"
    )


def test_a_rank_that_the_launcher_killed_because_it_did_not_go_on_is_the_cause_of_a_later_death(run):
    report(run, rank=0)
    with (run / TORCHRUN_LOG).open("a") as log:
        log.write("ppwork: rank 2 (pid 7, stopped) did not go on for 6.1 s and was killed\n")
    Pulse(run, 0).beat(PulseState.IDLE, since_ns=ZERO + 20 * MS)
    Pulse(run, 2).beat(PulseState.IDLE, since_ns=ZERO + 10 * MS)
    assert diagnose(run, 1).cause.rank == 2


GIL = """\
Timeout (0:00:05)!
Thread 0x00007f86242856c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f8624df0b80 (most recent call first):
  File "/srv/me/stuck.py", line 6 in work
  File "/srv/me/stuck.py", line 7 in <module>
"""


def test_rank_that_held_the_interpreter_is_named_with_its_line(run):
    log_file(run, 2).write_text(GIL)
    report(run, 1, rank=2)
    what = "Rank 2 (follower), process 7, was there, and its interpreter did not run for 9 s."
    write_record(run, symptom(1, 2, error_type="PeerFrozenError", what=what))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (2, "StuckError")
    assert found.text.splitlines()[0] == "/srv/me/stuck.py:6, in work"
    log_file(run, 2).write_text("")
    assert diagnose(run, 1).cause.error_type == "PeerFrozenError"


def test_rank_that_gloo_aborted_is_named_with_the_sizes(run):
    aborted = [line for line in console("shapes").read_text().splitlines() if "preamble" in line]
    log_file(run, 2).write_text(aborted[0])
    report(run, -6, rank=2)
    assert "3336 bytes came into a buffer of 2668" in diagnose(run, 1).cause.what


def test_rank_that_crashed_is_named_with_its_line(run):
    text = console("hang-aborted").read_text().replace("[default2]:", "")
    log_file(run, 2).write_text(text)
    report(run, -6, rank=2)
    found = diagnose(run, 1)
    assert "Fatal Python error: Aborted" in found.cause.what
    assert found.text.splitlines()[0] == "/srv/me/missing.py:15, in <module>"


def test_a_ctrl_c_that_torchrun_passed_on_is_no_failure_of_a_rank(run):
    for rank in range(3):
        write_record(
            run, record(rank, error_type="KeyboardInterrupt", what="", source="me.py:3", at_ns=9 - rank)
        )
    found = diagnose(run)
    assert found.sentence.startswith("The run was interrupted: ranks 0, 1 and 2 got SIGINT")
    assert found.lines == ()
    assert "failed first" not in found.text
    write_record(run, symptom(0))
    failure_file(run, 1).unlink()
    found = diagnose(run)
    assert found.sentence.startswith("The run was interrupted: rank 2 got SIGINT")
    assert (found.cause.where["rank"], "alone" in found.check_first) == (2, True)


def test_a_keyboard_interrupt_that_a_loop_raised_itself_is_its_failure_with_its_line(run, tmp_path):
    (loop := tmp_path / "my_loop.py").write_text("def drive():\n    if True: raise KeyboardInterrupt\n")
    there = {"__name__": "mine"}
    exec(compile(loop.read_text(), str(loop), "exec"), there)  # noqa: S102  of this test
    with pytest.raises(KeyboardInterrupt) as caught:
        there["drive"]()
    write_record(run, record_of(caught.value, 0, {}))
    found = diagnose(run)
    at, text, *_ = found.text.splitlines()
    assert (at.partition(", called")[0], text) == (
        f"{loop}:2, in drive",
        "    if True: raise KeyboardInterrupt",
    )
    assert found.sentence == "Rank 0 (stage0) failed first: KeyboardInterrupt"


def test_of_a_crash_it_is_the_line_of_the_thread_that_crashed(run):
    """faulthandler shows every thread, the main one last."""
    text = "Fatal Python error: Segmentation fault\n\n"
    for thread, line in (("Current thread", 7), ("Thread", 30)):
        text += f"{thread} 0x0000{line} (most recent call first):\n"
        text += f'  File "/srv/me/stage.py", line {line} in f\n'
    log_file(run, 2).write_text(text)
    report(run, -11, rank=2)
    assert diagnose(run, 1).text.splitlines()[0] == "/srv/me/stage.py:7, in f"


def test_rank_that_failed_before_its_log_was_open_is_found_in_torchruns(run):
    text = console("raises").read_text()
    (run / TORCHRUN_LOG).write_text(text.replace("[default1]:", ""))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (1, "ValueError")
    assert found.text.splitlines()[0] == "/srv/me/raises.py:12, in load"


def test_symptoms_alone_lead_to_the_rank_without_a_record(run):
    write_record(run, symptom(0, 1, at_ns=7))
    write_record(run, symptom(1, 2, at_ns=6))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (2, "NoRecord")
    assert "left no record; rank 1 said first: PeerLostError" in found.cause.what


def test_symptoms_that_name_nobody_leave_the_silent_rank(run):
    write_record(run, symptom(0))
    write_record(run, symptom(2))
    assert diagnose(run, 1).cause.rank == 1


def test_symptoms_of_all_ranks_are_called_that(run):
    for rank in range(3):
        write_record(run, symptom(rank, (rank + 1) % 3, at_ns=rank))
    found = diagnose(run, 1)
    assert found.cause.rank == 0
    assert "Every record is a symptom; rank 0 (stage0) was the first" in found.text


def test_torn_and_foreign_files_are_named_and_read_past(run):
    write_record(run, record(1))
    failure_file(run, 2).write_bytes(failure_file(run, 1).read_bytes()[:40])
    span_file(run, 0).write_text("not a span\n")
    found = diagnose(run, 1)
    assert found.cause.rank == 1
    assert "what spans-rank0.jsonl says: it does not read" in found.unknown
    assert "what failure-rank2.json says: it does not read" in found.unknown


# Hangs


def cut(entries, *, rank, names):
    """Take from a made run what a rank did not come to in its last chunk."""
    last = max(entry.call_id for entry in entries[0] if entry.name == "encode")
    entries[rank] = [e for e in entries[rank] if not (e.call_id == last and e.name in names)]


def hanging(**kwargs):
    """A run whose last chunk is on its way: sent, received and broadcast, and in the generator."""
    entries = made(3, **kwargs)
    for rank in entries:
        entries[rank] = [e for e in entries[rank] if e.call_id < 3]
    cut(entries, rank=0, names=("receive", "decode", "emit"))
    cut(entries, rank=1, names=("generate", "result.send", "send_result"))
    cut(entries, rank=2, names=("generate",))
    # A result that is here says so; made runs have the receive only.
    for span in [e for e in entries[0] if e.name == "receive"]:
        entries[0].append(msgspec.structs.replace(span, name="receive"))
    return entries


def arrived(entries):
    entries[0] += [
        Instant("arrive", "up_pg", e.end_ns, call_id=e.call_id, chunk_index=e.chunk_index)
        for e in entries[0]
        if isinstance(e, Span) and e.name == "receive"
    ]
    return entries


def said(waits):
    return {wait.rank: (wait.call, wait.waits_for) for wait in waits}


def test_ranks_in_the_generator_wait_for_nobody_and_rank_zero_for_the_leader():
    waits = waits_of(Topology(2), arrived(hanging()))
    assert said(waits) == {
        0: ("result of call 2 on up_pg", (1,)),
        1: ("generate of call 2", ()),
        2: ("generate of call 2", ()),
    }
    assert roots(waits) == (1,)


def test_broadcast_that_never_ended_waits_for_the_follower():
    entries = arrived(hanging())
    cut(entries, rank=1, names=("broadcast",))
    cut(entries, rank=2, names=("receive",))
    entries[2] = [e for e in entries[2] if e.call_id < 1]
    entries[2] += [e for e in made(2)[2] if e.call_id == 1 and e.name == "receive"]
    waits = waits_of(Topology(2), entries)
    assert said(waits)[1] == ("broadcast of call 2 on mesh_pg", (2,))
    assert said(waits)[2] == ("generate of call 1", (1,))


def test_follower_that_computes_alone_waits_for_the_absent():
    entries = arrived(hanging())
    entries[1] = [e for e in made(3)[1] if e.call_id < 2]
    waits = waits_of(Topology(2), entries)
    assert said(waits)[1] == ("envelope after call 1 on down_pg", (0,))
    assert said(waits)[2] == ("generate of call 2", (1,))


def test_send_and_result_that_never_ended_wait_for_the_other_end():
    entries = arrived(hanging())
    cut(entries, rank=0, names=("send",))
    entries[1] = [e for e in made(3)[1] if not (e.name == "send_result" and e.call_id == 2) and e.call_id < 3]
    waits = waits_of(Topology(2), entries)
    assert said(waits)[0] == ("send of call 2 on down_pg", (1,))
    assert said(waits)[1] == ("send of the result of call 2 on up_pg", (0,))
    assert roots(waits) == ()


def test_rank_zero_between_chunks_waits_for_nobody():
    entries = made(3)
    for rank in entries:
        entries[rank] = [e for e in entries[rank] if e.call_id < 3]
    waits = waits_of(Topology(2), arrived(entries))
    assert said(waits) == {
        0: ("encode or decode", ()),
        1: ("envelope after call 2 on down_pg", (0,)),
        2: ("envelope after call 2 on mesh_pg", (1,)),
    }
    assert roots(waits) == (0,)
    assert str(waits[0]) == "rank 0 waits for nobody: encode or decode"
    assert str(waits[2]) == "rank 2 waits for rank 1: envelope after call 2 on mesh_pg"


def test_rank_that_had_not_begun_is_waited_for():
    entries = arrived(hanging())
    entries[2] = []
    cut(entries, rank=1, names=("broadcast",))
    waits = waits_of(Topology(2), entries)
    assert [wait.rank for wait in waits] == [0, 1]
    assert roots(waits) == (2,)


def test_peers_that_timed_out_lead_to_the_rank_that_they_waited_for(run):
    entries = arrived(hanging())
    cut(entries, rank=1, names=("broadcast",))
    entries[2] = [e for e in entries[2] if e.call_id < 1]
    write_spans(run, entries)
    for rank in (0, 1):
        late = symptom(rank, error_type="PeerTimeoutError", what="The peer stayed silent.", at_ns=FAILED_NS)
        write_record(run, late)
    for rank in (1, 2):
        flight = flight_of(rank, (CAPTURED / f"flight-rank{rank}.json").read_bytes())
        flight_file(run, rank).write_bytes(msgspec.json.encode(flight))
    found = diagnose(run, 1)
    assert found.cause.rank == 2
    assert "rank 1 waits for rank 2: broadcast of call 2 on mesh_pg" in found.text
    assert (
        "flight recorder, mesh_pg: rank 1 at collective 5 (broadcast), rank 2 at collective 5 (all_reduce)"
        in found.text
    )
    flight_file(run, 2).unlink()
    assert any("rank 2 was at: it left no flight record" in one for one in diagnose(run, 1).unknown)


def test_a_rank_that_was_stopped_waits_for_nobody_whatever_it_wrote_last(run):
    entries = arrived(hanging())
    cut(entries, rank=2, names=("receive",))  # it had come; the stop was before its span was written
    write_spans(run, entries)
    what = "Rank 2 (follower), process 7, was stopped (SIGSTOP) and did not go on for 5.1 s."
    write_record(run, symptom(0, 2, error_type="PeerFrozenError", what=what, at_ns=FAILED_NS))
    text = diagnose(run, 1).text
    assert "rank 1 waits for rank 2: step of call 2" in text
    assert "rank 2 waits for nobody: stood still\n" in text


def test_a_finish_that_fails_after_fewer_chunks_than_planned_is_shown_how_many_came(run):
    write_spans(run, {0: [Instant("emit", "main", ZERO + k, chunk_index=k) for k in range(3)], 1: [], 2: []})
    write_record(run, record(0, what="The stage's finish raised IndexError: list index out of range"))
    assert diagnose(run).seen == ("Only 3 of the plan's 8 chunks had come when `finish` was called",)
    write_record(run, record(0, what="The stage's decode raised IndexError: list index out of range"))
    assert diagnose(run).seen == ()


def test_results_by_other_names_are_told_below_a_run_that_failed_at_its_end(run):
    names = "rank 1 returned 'logp' float32[6], rank 2 returned 'lgp' float32[6]"
    write_spans(run, {0: [], 1: [Instant(RESULTS_DIFFER, "main", ZERO, chunk_index=5, text=names)], 2: []})
    write_record(run, record(0, what=f"{FAILED_AT_END}: results differ in chunk 5.", where={"rank": 0}))
    found = diagnose(run)
    assert found.sentence == f"{FAILED_AT_END}: results differ in chunk 5."
    assert names in found.text


def test_a_question_about_the_streams_end_stands_behind_what_is_known(run):
    ended = Instant(STREAM_ENDED, "main", ZERO, text="a forgotten `return`?")
    write_spans(run, {0: [ended], 1: [Instant(NOTHING_RESET, "main", ZERO, chunk_index=2)], 2: []})
    write_record(run, record(1))
    reset, question = diagnose(run, 1).seen
    assert (reset[:22], question) == ("At the cut of chunk 2 ", "a forgotten `return`?")


def test_a_stream_without_chunks_stands_before_what_its_finish_raised(run):
    asked = (
        "encode returned None for chunk 0, which ends the stream: a forgotten `return`? a.py:8 has no value"
    )
    ended = Instant(STREAM_ENDED, "main", ZERO, text=asked)
    write_spans(run, {0: [ended], 1: [], 2: []})
    raised = "The stage's finish raised ZeroDivisionError: division by zero"
    write_record(run, record(0, error_type="StageError", what=raised))
    found = diagnose(run, 1)
    assert f"StageError: {asked}. No chunk had come when the stage's finish raised Zero" in found.sentence
    assert found.text.count("a forgotten `return`?") == 1
    ended = Instant(STREAM_ENDED, "main", ZERO, text=asked.replace("chunk 0,", "chunk 4,"))
    write_spans(run, {0: [ended], 1: [], 2: []})
    assert diagnose(run, 1).sentence.endswith(f"StageError: {raised}")


def test_spans_that_an_error_ended_do_not_count_as_done(run):
    """The ranks that notice a stuck one leave their generate by an exception, and their spans end."""
    entries = arrived(hanging())
    failed_ns = ZERO + 10_000 * MS
    entries[1].append(Span("generate", "main", ZERO, failed_ns - MS, call_id=2, chunk_index=2))
    write_spans(run, entries)
    write_record(run, record(2, error_type="StuckError", at_ns=failed_ns))
    write_record(run, symptom(1, 2, at_ns=failed_ns + MS))
    waits = {wait.rank: (wait.call, wait.waits_for) for wait in diagnose(run, 1).waits}
    assert waits == {
        0: ("result of call 2 on up_pg", (1,)),
        1: ("step of call 2", (2,)),  # in a sum that needs rank 2
        2: ("step of call 2", ()),
    }


def test_of_two_ranks_that_are_stuck_in_code_of_their_own_none_waits_for_the_other(run):
    write_spans(run, arrived(hanging()))
    for rank in (1, 2):
        write_record(run, record(rank, error_type="StuckError", at_ns=FAILED_NS + rank * MS))
    assert {wait.rank: wait.waits_for for wait in diagnose(run, 1).waits} == {0: (1,), 1: (), 2: ()}


def test_a_rank_that_left_in_silence_ends_no_hang_and_nobody_waited(run):
    """Its peers heard of it at once; the waits of half a second before were over by then."""
    write_spans(run, made(8))
    log_file(run, 2).write_text("")
    for rank, peer in ((1, 2), (0, 1)):
        write_record(run, symptom(rank, peer, at_ns=ZERO + 800 * MS + rank))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type, found.waits) == (2, "NoRecord", ())
    assert "in chunk 7? os._exit, C++" in found.check_first
    (run / TORCHRUN_LOG).write_text(WITHOUT_RANK_2)
    found = diagnose(run, 1)
    assert found.cause.what.startswith("Rank 2 ended with exit code 0 and left no record; rank 0 said first:")
    assert "in chunk 7? os._exit(0), C++" in found.check_first


def test_chunk_of_a_silent_rank_is_the_newest_that_anything_shows(run):
    report(run)
    Pulse(run, 1).beat(PulseState.BUSY, "generate", {"call_id": 0, "chunk_index": 0}, 7)
    write_spans(run, hanging())
    assert diagnose(run, 1).cause.where == {"rank": 1, "call_id": 2, "chunk_index": 2, "cache_epoch": 0}


# The limit, torchrun, and runs that did not fail


def past_limit(run, entries, since_ms=60_000, behind=""):
    """The launcher's line, written so long after rank 0's last emission."""
    write_spans(run, entries)
    log = run / TORCHRUN_LOG
    log.write_text(f"ppwork: the run passed its limit and was stopped\n{behind}")
    last_ns = max(e.at_ns for e in entries[0] if e.name == "emit")
    wall_ns = last_ns + since_ms * MS + time.time_ns() - time.monotonic_ns()
    os.utime(log, ns=(wall_ns, wall_ns))


KILLED_THEN = (
    "E1201 13:53:48.208000 13829 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
    "(exitcode: -9) local_rank: 0 (pid: 13830) of binary: /srv/me/env/bin/python\n"
)
"""What torchrun had time to write when a slow machine's launcher had killed a rank, and not yet torchrun."""


@pytest.mark.parametrize("behind", ["", KILLED_THEN])
def test_run_past_its_limit_names_who_held_it_up(run, behind):
    past_limit(run, arrived(hanging()), behind=behind)
    for found in (diagnose(run, PAST_LIMIT), diagnose(run)):
        assert found.cause.error_type == "PastLimit"
        assert "2 of 8 chunks had been emitted, the last one 60.0 s before" in found.text
        assert "ranks 1 and 2: which of them goes on" in found.check_first
        assert "rank 0 waits for rank 1: result of call 2 on up_pg" in found.text


STACKS = """\
Thread 0x00007f16ff499b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f16ff499b81 (most recent call first):
{inside}  File "/srv/me/stages.py", line {line} in step
  File "/srv/me/env/lib/python3.11/site-packages/ppwork/worker/loops.py", line 216 in run_chunk
"""
IN_A_SUM = """\
  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
"""


def test_of_ranks_in_the_generator_the_one_outside_of_a_collective_holds_up_the_run(run):
    past_limit(run, arrived(hanging()))
    log_file(run, 1).write_text(STACKS.format(inside=IN_A_SUM, line=8))
    log_file(run, 2).write_text(STACKS.format(inside="", line=30))
    found = diagnose(run)
    assert found.cause.where == {"rank": 2, "call_id": 2, "chunk_index": 2, "cache_epoch": 0}
    assert found.text.splitlines()[0] == "/srv/me/stages.py:30, in step"
    log_file(run, 2).unlink()
    found = diagnose(run)
    assert found.cause.where == {}
    assert "ranks 1 and 2: which of them goes on" in found.check_first


def test_the_first_rank_that_a_slow_torchrun_ended_after_the_limit_is_not_one_that_died(run):
    past_limit(run, arrived(hanging()))
    log, at_ns = run / TORCHRUN_LOG, (run / TORCHRUN_LOG).stat().st_mtime_ns
    log.write_text(log.read_text() + REPORT.replace("exitcode  : -9", "exitcode  : -15"))
    os.utime(log, ns=(at_ns, at_ns))
    assert diagnose(run).cause.error_type == "PastLimit"


def test_run_past_its_limit_that_was_still_going_on_is_told_apart(run):
    past_limit(run, arrived(hanging()), since_ms=150)
    found = diagnose(run, PAST_LIMIT)
    assert "still going on" in found.check_first
    assert found.cause.where == {}


def fed_by(run, *died):
    """A run whose source said ``NOT_YET`` until its limit, with a heartbeat behind its last chunk."""
    entries = arrived(made(2))
    beat = {"call_id": 2, "chunk_index": 1}
    for rank, lane in ((1, "down_pg"), (2, "mesh_pg")):
        entries[rank].append(Span("receive", lane, ZERO, ZERO + 9_000 * MS, **beat))
    past_limit(run, entries)
    Pulse(run, 0).beat(PulseState.BUSY, "encode", {"chunk_index": 2}, ZERO, paused_s=14.8)
    if died:
        threads_file(run, 0).write_bytes(msgspec.json.encode(died))


def test_a_source_without_anything_to_encode_is_told_with_the_thread_that_died_and_once(run):
    at = {"source": "/srv/me/stages.py:10", "at_ns": 1}
    fed_by(run, DeadThread(rank=0, name="camera", error="RuntimeError: camera lost", **at))
    found = diagnose(run)
    assert found.text.startswith(
        "/srv/me/stages.py:10\n"
        "Rank 0 had nothing to encode for 15 s: its thread 'camera' died at /srv/me/stages.py:10 of "
        "RuntimeError: camera lost, and encode said NOT_YET. The run passed its limit and was stopped; "
        "2 of 8 chunks"
    )
    assert found.text.count("thread 'camera' died") == 1
    assert "let encode raise it" in found.check_first
    # A heartbeat is no chunk: who has computed all that came waits for rank 0.
    assert "rank 1 waits for rank 0: envelope after call 2 on down_pg" in found.text
    assert "waits for nobody: step" not in found.text


def test_a_run_with_chunks_behind_it_is_not_said_to_have_begun_none(run):
    fed_by(run)
    found = diagnose(run)
    assert "none had begun" not in found.text
    assert "rank 1 waits for rank 0: envelope after call 2 on down_pg" in found.text


def test_of_an_error_in_a_helpers_file_the_line_that_called_it_is_named(run):
    what = """Traceback (most recent call last):
  File "/srv/me/env/lib/python3.11/site-packages/ppwork/worker/loops.py", line 9, in run_chunk
  File "/srv/me/prog.py", line 36, in step
    return self.net(tensors)
  File "/srv/me/model.py", line 32, in __call__
    self.part(x)
  File "/srv/me/model.py", line 23, in part
    return x @ w
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""
    write_record(run, record(1, traceback=what, source="/srv/me/model.py:23"))
    lines = diagnose(run, 1).lines
    assert lines == (
        "/srv/me/model.py:23, in part, called at model.py:32, called at prog.py:36",
        "    return x @ w",
    )


OURS = '  File "/srv/me/env/lib/python3.11/site-packages/ppwork/worker/loops.py", line 9, in encode_chunk\n'
IN_HELPER = (
    """Traceback (most recent call last):
  File "/srv/me/stages.py", line 30, in encode
    self.other()
  File "/srv/me/stages.py", line 50, in other
    {}["x"]
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
"""
    + OURS
    + """  File "/srv/me/stages.py", line 31, in encode
    self.checked()
  File "/srv/me/stages.py", line 12, in checked
    boom()
  File "/srv/me/stages.py", line 6, in boom
    raise RuntimeError("planted")
RuntimeError: planted

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/me/stages.py", line 80, in main
    run_stage0(plane, Mic(context))
"""
)


@pytest.mark.parametrize("stack", [IN_HELPER, IN_HELPER[IN_HELPER.rindex(OURS) : IN_HELPER.index("Runtime")]])
def test_of_an_error_in_a_helper_of_the_same_file_the_lines_that_called_it_are_named(run, stack):
    """Else all three methods that call it have the same report; what called the stage leads nowhere."""
    write_record(run, record(1, traceback=stack, source="/srv/me/stages.py:6"))
    place, _ = diagnose(run, 1).lines
    assert place == "/srv/me/stages.py:6, in boom, called at stages.py:12, called at stages.py:31"


def test_a_call_of_itself_is_no_caller(run):
    again = '  File "/srv/me/stages.py", line 6, in step\n    return self.step(x)\n'
    write_record(run, record(1, traceback=OURS + 4 * again, source="/srv/me/stages.py:6"))
    assert diagnose(run, 1).lines == ("/srv/me/stages.py:6, in step", "    return self.step(x)")


def test_run_past_its_limit_before_any_chunk_says_so(run):
    (run / TORCHRUN_LOG).write_text("ppwork: the run passed its limit and was stopped\n")
    found = diagnose(run)
    assert "0 of 8 chunks" in found.text
    assert "none had begun" in found.check_first


@pytest.mark.parametrize(
    ("code", "said_of_it"), [(TORCHRUN_STOPPED, "was stopped (SIGSTOP)"), (-9, "was killed by SIGKILL")]
)
def test_end_of_torchrun_itself_is_the_cause_of_symptoms(run, code, said_of_it):
    assert f"torchrun {said_of_it}" in diagnose(run, code).text
    write_record(run, symptom(1, 2))
    found = diagnose(run, code)
    assert f"torchrun {said_of_it}" in found.text
    assert found.cause.where == {}


def test_run_without_any_record_shows_the_end_of_torchruns_log(run):
    assert diagnose(run, 2).text.startswith("torchrun ended with code 2 and no rank left a record.")
    (run / TORCHRUN_LOG).write_bytes(b"\n".join(b"line %d \xff" % n for n in range(9)) + b"\n")
    for found in (diagnose(run, 2), diagnose(run)):
        assert "line 8" in found.text
        assert "line 4" in found.text
        assert "line 3" not in found.text
        assert found.check_first == str(run / TORCHRUN_LOG)


def test_run_that_ended_well_did_not_fail(run):
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8, "max_abs_diff": 0.0}))
    for found in (diagnose(run), diagnose(run, 0)):
        assert found.cause is None
        assert found.text == "Nothing failed: the run emitted 8 chunks."
        assert found.check_first == ""
        assert found.to_dict()["failed"] is False
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 5}))
    open_question = f"  not known: {NOT_COMPARED}{BY_VERIFY}"
    assert diagnose(run).text == (f"No rank failed, and the run emitted 5 of 8 chunks.\n{open_question}")
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8, "dropped_chunks": [4, 5, 6]}))
    said = "the run emitted 8 chunks; a flush made chunks 4 to 6 stale"  # a loop may have used them
    assert diagnose(run).text == f"Nothing failed: {said}{UNCHECKED}.\n{open_question}"


def test_a_loop_that_releases_no_result_leaves_open_how_long_its_decodes_took(run):
    (run / SUMMARY_FILE).write_text('{"chunks": 8, "max_abs_diff": 0.0}')
    write_spans(run, {0: [Instant(UNRELEASED, "main", ZERO, 1, 1, 0)]})
    found = diagnose(run, 0)
    assert found.unknown == (
        "how long its decodes took: from chunk 1 on its loop called no `release_result` after a result",
    )
    assert not found.is_odd


def test_results_that_differ_stand_above_a_good_end(run):
    """A reader stops at "Nothing failed"; which of the results was right nobody knows."""
    (run / SUMMARY_FILE).write_text('{"chunks": 8}')
    shapes = "rank 1 returned 'y' float32[4], rank 2 returned 'y' float32[5]"
    write_spans(run, {2: [Instant(RESULTS_DIFFER, "main", ZERO, 4, 4, 0, text=shapes)]})
    found = diagnose(run, 0)
    assert found.cause is None
    assert found.sentence.startswith(
        "Mesh ranks returned different results in chunk 4: the leader's were sent"
    )
    assert shapes in found.sentence
    assert found.seen == ("No rank failed: the run emitted 8 chunks.",)
    assert "came with a cut" not in found.sentence
    assert "Nothing failed" not in found.text
    above = [name for name, _ in rows_of(Run(run, 0))]
    assert above[0] != "results"  # the summary does not tell of it yet
    (run / SUMMARY_FILE).write_text('{"chunks": 8, "results_differ": [4]}')
    assert [name for name, _ in rows_of(Run(run, 0))][:2] == ["results", "ranks"]
    write_spans(run, {0: [Span("encode", "main", 1, 2, at, at, at // 4) for at in range(8)]})
    said = "Chunk 4 came with a cut: did each of them reset its cache there?"
    assert said in diagnose(run, 0).sentence


# Without a summary


@pytest.mark.parametrize(("doing", "where"), [("finish", "in finish"), ("", "behind its last chunk")])
def test_a_rank_zero_that_ends_itself_behind_its_last_chunk_is_named(run, doing, where):
    """All chunks had come, torchrun saw no failure, and the advice was: did any rank run?"""
    write_spans(run, made(8))
    pulse = Pulse(run, 0)
    pulse.beat(PulseState.BUSY, doing, {"call_id": 8, "chunk_index": 7, "cache_epoch": 0}, ZERO)
    what = f"Rank 0 ended {where}, after 8 chunks, with exit code 0 and without a summary."
    for found in (diagnose(run, 0).as_error(), launch._failure(Run(run, 0), 0.0, lambda: None)):
        assert what in found.what
        assert found.check_first.startswith("what ends a process without an exception there? os._exit")
    pulse.leave(0)
    assert "Rank 0 left no summary" in diagnose(run, 0).text
    assert "was it removed?" in diagnose(run, 0).check_first
    (run / SUMMARY_FILE).write_text("{cut")
    assert "does not read" in launch._failure(Run(run, 0), 0.0, lambda: None).what


def test_a_collective_that_nobody_waited_for_is_told_also_of_a_run_that_ended_well(run):
    """Its sums may be wrong, and the run did not notice."""
    (run / SUMMARY_FILE).write_text('{"chunks": 8}')
    lend(torch.ones(1), "mine.py:9: dist.all_reduce(y, async_op=True)")  # let go at once
    with Recorder(span_file(run, 1)) as recorder:
        tell_of_handles(Ids(5, 5, 0), recorder)
    span_file(run, 2).write_bytes(span_file(run, 1).read_bytes())
    found = diagnose(run, 0)
    assert found.cause is None
    assert found.seen == (
        "Ranks 1 and 2 let go of a handle that nobody had waited for, at mine.py:9: "
        "its tensor may have been used too early",
    )


@pytest.mark.processes
def test_a_thread_that_died_is_told_also_of_a_run_that_goes_on_or_ended_well(run, tmp_path):
    """A source whose reader has gone never has a chunk again, and nothing raises."""
    (reader := tmp_path / "my_reader.py").write_text(
        "import threading\n\ndef read():\n    raise OSError('the sensor is gone')\n\n"
        "thread = threading.Thread(target=read)\nthread.start()\nthread.join()\n"
    )
    died = subprocess.run([sys.executable, reader], capture_output=True, check=True, timeout=60).stderr
    log_file(run, 0).write_bytes(died)
    what = "OSError: the sensor is gone, and the rank went on without it"
    line = f"A thread of rank 0 died at {reader}:4 of {what}"
    assert line in diagnose(run).text
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8, "max_abs_diff": 0.0}))
    assert diagnose(run).text == f"Nothing failed: the run emitted 8 chunks.\n{line}"


def test_a_line_number_that_no_file_has_is_no_frame_of_a_record(run):
    """A folder may come from anybody; Python refuses to read so many digits."""
    text = f'Traceback (most recent call last):\n  File "my.py", line {"9" * 5000}, in read\nOSError: gone\n'
    write_record(run, record(0, traceback=text))
    assert diagnose(run).cause.rank == 0


def test_run_whose_output_differed_is_told_from_one_that_ended_well(run):
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8, "max_abs_diff": None}))
    differed = "the output differed from the single-process reference"
    assert f"{differed} in number, in shape or by a NaN." in diagnose(run).text
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8, "max_abs_diff": 0.25}))
    assert f"{differed} by 0.25." in diagnose(run).text


@pytest.mark.parametrize("foreign", ["0.0", [], {"worst": 0.0}])
def test_a_difference_that_is_no_number_is_named_as_not_known(run, foreign):
    """A folder may come from anybody; a text ended ``diagnose`` in a TypeError."""
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8, "max_abs_diff": foreign}))
    found = diagnose(run)
    assert found.cause is None
    assert "max_abs_diff" in " ".join(found.unknown)


def test_run_that_was_to_be_verified_and_was_not_is_not_called_well(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(Plan(mesh_size=2, chunks=8, verify=True).to_json())
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8}))
    assert "8 chunks; they were not compared" in diagnose(tmp_path).text
    LaunchEnd(exit_code=0, what="The single-process reference was killed by SIGKILL.").save(tmp_path)
    assert "reference was killed by SIGKILL" in diagnose(tmp_path).text


def test_run_whose_torchrun_was_killed_is_told_so_later_too(run):
    """All chunks were emitted; only the launcher knows of torchrun."""
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8}))
    LaunchEnd(exit_code=-9, what="torchrun was killed by SIGKILL").save(run)
    assert diagnose(run).cause.error_type == "TorchrunKilled"
    LaunchEnd(exit_code=TORCHRUN_HUNG).save(run)
    assert "torchrun did not leave" in diagnose(run).text


def test_a_page_that_shows_no_failure_says_that_there_was_one_also_without_a_rank_s_record(run):
    (run / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 8}))
    assert failure_line(run) == "", "it goes on"
    LaunchEnd(exit_code=0).save(run)
    assert failure_line(run) == ""
    LaunchEnd(exit_code=-9, what="torchrun was killed by SIGKILL").save(run)
    assert failure_line(run).startswith("This run failed: torchrun was killed by SIGKILL")


def test_pause_of_the_whole_job_is_no_fault_of_the_rank_whose_bound_ran_out(run):
    stack = STACKS.format(inside="", line=8)
    (run / TORCHRUN_LOG).write_text(
        f"[rank2]: Timeout (0:00:49)!\n{stack}ppwork: the launcher did not run for 60.3 s\n"
    )
    log_file(run, 2).write_text(f"Timeout (0:00:49)!\n{stack}")
    found = diagnose(run, 1)
    assert "The job was paused for 60.3 s" in found.text
    assert found.cause.where == {}
    (run / TORCHRUN_LOG).write_text("ppwork: the launcher did not run for 1.2 s\n")  # shorter than any bound
    assert diagnose(run, 1).cause.where["rank"] == 2


def test_rank_that_was_ended_from_outside_is_told_from_those_that_torchrun_ended(run):
    report = REPORT.replace("exitcode  : -9", "exitcode  : -15")
    (run / TORCHRUN_LOG).write_text(report)
    found = diagnose(run, 1)
    assert "Rank 1 was ended by SIGTERM." in found.text
    assert "rank 2 was ended by torchrun" in found.text


def test_rank_that_was_interrupted_is_told_also_when_torchrun_saw_another_one_first(run):
    """A slow torchrun finds several ranks gone at one look; it sends SIGINT only if it got one itself."""
    report = REPORT.replace("exitcode  : -15", "exitcode  : -2", 1)
    (run / TORCHRUN_LOG).write_text(report.replace("exitcode  : -9", "exitcode  : 70"))
    interrupted = next(rank for rank, code in Report.of(report).codes.items() if code == -2)
    write_record(run, symptom(1, interrupted))
    assert f"Rank {interrupted} was ended by SIGINT." in diagnose(run, 1).text
    signalled = "SignalException: Process 7 got signal: 2\n"
    (run / TORCHRUN_LOG).write_text(signalled + (run / TORCHRUN_LOG).read_text())
    assert "was ended by SIGINT" not in diagnose(run, 1).text


def test_run_that_goes_on_or_lost_its_launcher_is_not_called_failed_by_a_rank(run):
    (run / SUMMARY_FILE).write_text("{cut")
    found = diagnose(run)
    assert "ppwork ps" in found.check_first
    assert found.cause.where == {}


# The command


def test_command_takes_a_run_a_log_folder_or_a_console(run, tmp_path):
    write_record(run, record(1))
    assert diagnose(run).cause.rank == 1
    assert diagnose(console("raises")).cause.rank == 1
    assert diagnose(console("raises")).to_dict()["waits"][0] == {
        "rank": 0,
        "call": "all_reduce at /srv/me/raises.py:18",
        "waits_for": (1,),
    }
    with pytest.raises(PlanError):
        diagnose(tmp_path / "nowhere")
    with pytest.raises(PlanError):
        diagnose(tmp_path / "nowhere")


def test_a_source_that_holds_nothing_is_told_and_the_others_are_read(run, tmp_path):
    """Whoever gives a folder and its console, as the page advises, may have only one of them."""
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    alone = diagnose(console("raises"))
    for sources in ([nowhere, console("raises")], [empty, console("raises"), nowhere]):
        found = diagnose(sources)
        assert (found.cause, found.lines, found.waits) == (alone.cause, alone.lines, alone.waits)
        told = [line for line in found.seen if line not in alone.seen]
        assert len(told) == len(sources) - 1
        assert f"{nowhere} is not there" in " ".join(told)
    assert any(f"{empty} is empty" in line for line in told)
    write_record(run, record(1))
    found = diagnose([run, nowhere])
    assert found.cause == diagnose(run).cause
    assert f"{nowhere} is not there" in found.text
    assert f"No run began in {empty}:" in diagnose([empty, nowhere]).text
    with pytest.raises(PlanError, match="cannot be read"):
        diagnose([nowhere, empty])


def test_a_folder_that_a_refused_start_left_empty_is_no_bad_input(tmp_path):
    """The path was right: it sounded as if it were not."""
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--exit-code"])
    assert done.exit_code == 1
    assert (
        f"No run began in {tmp_path}: its start was refused, or not all ranks have joined yet" in done.output
    )
    assert "check first: what the ranks said on the console" in done.output
    assert diagnose(tmp_path).to_dict()["cause"]["error_type"] == "NotBegun"


def test_command_prints_text_or_json_and_refuses_what_is_none_of_these(tmp_path):
    found = diagnose(console("raises"))
    done = CliRunner().invoke(app, ["diagnose", str(console("raises"))])
    assert (done.exit_code, done.output) == (0, found.text + "\n")
    done = CliRunner().invoke(app, ["diagnose", str(console("raises")), "--json"])
    assert json.loads(done.output)["cause"]["rank"] == 1
    assert json.loads(done.output)["check_first"] == found.check_first
    done = CliRunner().invoke(app, ["diagnose", str(console("raises")), "--exit-code"])
    assert (done.exit_code, done.output) == (1, found.text + "\n")
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path / "nowhere")])
    assert isinstance(done.exception, PlanError)


def test_a_rank_zero_that_is_killed_in_a_step_had_begun_it_and_in_none_it_waited_for_the_oldest(run):
    """At depth 3 it encodes chunk 5 when it has emitted chunk 2."""
    report(run, rank=0)
    entries = arrived(made(8))
    entries[0] = [
        e for e in entries[0] if e.chunk_index < (5 if e.name in ("encode", "envelope.send") else 3)
    ]
    write_spans(run, entries)
    newest_ns = max(entry.end_ns for entry in entries[0])
    pulse = Pulse(run, 0)
    pulse.beat(PulseState.BUSY, "encode", {"chunk_index": 3}, newest_ns - 100)  # a quarter of a second ago
    pulse.begin("encode", {"chunk_index": 5}, newest_ns + 1)
    assert diagnose(run, 1).cause.where == {"rank": 0, "chunk_index": 5}
    assert RunEvidence.read(run).at_chunk(0) == "encode of chunk 5"
    pulse.begin("", None, newest_ns + 2)
    assert diagnose(run, 1).cause.where["chunk_index"] == 3
    assert RunEvidence.read(run).at_chunk(0) == "chunk 3"


def test_a_sigterm_is_torchruns_where_it_says_so_or_had_a_reason_and_else_somebodys(run):
    """It sends none to a rank that was gone when it looked; the others had only lost their peer."""
    text = REPORT.replace("exitcode  : -9 ", f"exitcode  : {SECONDARY} ")
    for rank, peer in ((1, 2), (0, 1)):
        write_record(run, symptom(rank, peer, at_ns=ZERO + rank))
    not_to_2 = "".join(line for line in text.splitlines(keepends=True) if f"process {PIDS[2]} c" not in line)
    to_nobody = text.replace("closing signal", "")
    for told in (not_to_2, to_nobody):
        (run / TORCHRUN_LOG).write_text(told)
        found = diagnose(run, 1)
        assert found.cause.rank == 2
        assert "Rank 2 got SIGTERM and left no record; torchrun sends it when another" in found.cause.what
        assert found.check_first.startswith("who sent it?")
    (run / TORCHRUN_LOG).write_text(text)
    assert "Rank 2 was ended by torchrun and left no record" in diagnose(run, 1).cause.what


def test_pulse_tells_what_a_rank_was_at_before_its_first_chunk(run):
    Pulse(run, 2).beat(PulseState.STARTING, "import torch")
    (run / TORCHRUN_LOG).write_text("ppwork: the run passed its limit and was stopped\n")
    assert "rank 2 was running when its time was up (last: import torch)" in diagnose(run).text


def at_work(pulses=(), *entries):
    """Return what is known of a rank: chunk and nanosecond of its pulse, then name, lane, chunk and end."""
    beats = [SimpleNamespace(ids={"chunk_index": chunk}, since_ns=ns) for chunk, ns in pulses]
    spans = [Span(name, lane, 0, ns, chunk, chunk, 0) for name, lane, chunk, ns in entries]
    return SimpleNamespace(
        pulses=dict.fromkeys(range(3), *beats) if beats else {},
        entries=dict.fromkeys(range(3), spans),
        topology=Topology(2),
    )


def test_a_rank_is_at_the_step_of_its_main_thread_and_not_at_what_its_lanes_have():
    """At depth 3 the lanes of a mesh rank that dies in chunk 4 have taken chunk 6."""
    ahead = [("receive", "down_pg", chunk, 10 * chunk) for chunk in range(7)]
    ahead += [("mesh.broadcast", "main", chunk, 10 * chunk + 1) for chunk in range(7)]
    ended = ("generate", "main", 3, 70)
    for pulses in ((), [(2, 50)], [(4, 71)]):
        for rank in (1, 2):
            assert RunEvidence.ids_of(at_work(pulses, *ahead, ended), rank)["chunk_index"] == 4
    assert RunEvidence.ids_of(at_work((), *ahead[:4], ended), 1)["chunk_index"] == 3  # it waited for the next
    assert RunEvidence.ids_of(at_work((), *ahead), 1)["chunk_index"] == 0
    killed_at_once = at_work((), *ahead)
    killed_at_once.entries[2] = [Span("generate", "main", 0, 70, 3, 3, 0)]
    assert RunEvidence.ids_of(killed_at_once, 2)["chunk_index"] == 4
    assert RunEvidence.ids_of(at_work(), 1) == {}


def test_rank_zero_is_at_what_it_encodes_or_decodes_whatever_has_left():
    sent = [("envelope.send", "main", 6, 60), ("send", "down_pg", 6, 61)]
    assert RunEvidence.ids_of(at_work([(4, 62)], *sent), 0) == {"chunk_index": 4}
    decoded = ("decode", "main", 4, 70)
    for pulses in ((), [(4, 62)]):  # the beat is older than what was written
        assert RunEvidence.ids_of(at_work(pulses, *sent, decoded), 0)["chunk_index"] == 4


def test_a_run_its_folder_and_the_folders_name_get_one_diagnosis(run):
    write_record(run, symptom(0, at_ns=7))
    texts = {diagnose(what, 1).text for what in (run, str(run), Run(run, 1))}
    assert len(texts) == 1


# Mesh ranks that made different collectives


def flown(run, rank, number):
    """Leave the flight record of a rank that began so many sums."""
    collective = Collective("tp_pg", number, "all_reduce", ended=True)
    flight_file(run, rank).write_bytes(msgspec.json.encode(Flight(rank, [collective])))


def generated(run, calls_by_rank):
    """Leave mesh ranks that received calls 0 to 3 and computed so many of them."""
    received = [Span("receive", "mesh_pg", ZERO, ZERO + k, call_id=k, chunk_index=k) for k in range(4)]
    spans = {
        rank: [Span("generate", "main", ZERO, ZERO + MS, call_id=k, chunk_index=k) for k in range(calls)]
        for rank, calls in calls_by_rank.items()
    }
    write_spans(run, {rank: [*received, *of_rank] for rank, of_rank in spans.items()})


def in_sum(rank, call, **changes):
    where = {"rank": rank, "group": "tp_pg", "call_id": call, "chunk_index": call}
    return symptom(rank, **{"where": where, "at_ns": FAILED_NS, **changes})


def no_rank_is_blamed(found):
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert "--compare-collectives -1" in found.check_first
    assert "failed first" not in found.text
    return found.sentence


def test_a_sum_of_ones_own_over_the_group_of_the_envelopes_is_named_with_its_line(run):
    """A functional collective on one rank, which was given the mesh's ranks; nothing compares it."""
    generated(run, {1: 3, 2: 3})
    flown(run, 1, 12)
    kinds = (("mesh_pg", 9, "broadcast"), ("mesh_pg", 10, "all_reduce"), ("tp_pg", 11, "all_reduce"))
    flight = Flight(2, [Collective(group, number, kind, ended=True) for group, number, kind in kinds])
    flight_file(run, 2).write_bytes(msgspec.json.encode(flight))
    for rank, line in ((1, "model.py:29"), (2, "faults.py:22")):
        write_record(run, in_sum(rank, 3, error_type="PeerTimeoutError", source=f"/me/{line}"))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert found.sentence.startswith(
        "Rank 2 made all_reduce at faults.py:22 on mesh_pg, the group that carries"
    )
    assert found.cause.where == {"rank": 2, "group": "mesh_pg", "call_id": 3, "chunk_index": 3}
    assert "`plane.tp.group`" in found.check_first
    assert "waits for nobody" not in found.text


def test_a_wait_behind_the_answer_to_a_chunk_is_no_collective_of_that_chunk(run):
    """In a loop of one's own: the default group right after `reply`; both numbers are of sums before."""
    generated(run, {1: 4, 2: 4})
    late = in_sum(1, 3, error_type="PeerTimeoutError")
    write_record(run, msgspec.structs.replace(late, source="my_loop.py:14"))
    flown(run, 1, 43)
    flown(run, 2, 42)
    found = diagnose(run, 1)
    assert "Rank 1 waited in a collective between its answer to chunk 3 and the next one" in found.text
    assert "my_loop.py:14" in found.text
    assert "left one out" not in found.text


def test_a_sum_too_few_on_one_rank_is_the_first_thing_said_of_the_hang(run):
    generated(run, {1: 3, 2: 4})
    write_record(
        run, symptom(2, error_type="PeerTimeoutError", at_ns=FAILED_NS, check_first=SILENT_PEER_CHECK)
    )
    write_record(run, in_sum(1, 3, error_type="PeerTimeoutError"))
    write_record(run, symptom(0, at_ns=FAILED_NS + MS))
    flown(run, 1, 43)
    flown(run, 2, 42)
    found = diagnose(run, 1)
    said = no_rank_is_blamed(found)
    assert "Rank 2 ended chunk 3 with collective 42 of tp_pg, and rank 1 was in collective 43" in said
    assert "rank 2 left one out, or the other made one more" in said
    assert (found.cause.where["chunk_index"], found.cause.where["group"]) == (3, "tp_pg")
    # As many on both: something came between them, and the stages are not to blame.
    flown(run, 2, 43)
    found = diagnose(run, 1)
    assert found.cause.error_type == "PeerTimeoutError"
    assert "ppwork diagnose" not in found.text  # this is one


def test_a_sum_too_few_on_a_leader_that_left_in_order_does_not_blame_who_waits(run):
    generated(run, {1: 4, 2: 3})
    write_record(run, in_sum(2, 3))
    flown(run, 2, 42)
    said = no_rank_is_blamed(diagnose(run, 1))
    assert "Rank 2 was in a collective of chunk 3, which rank 1 had ended before it left" in said


@pytest.mark.parametrize("aborted", [1, 2])
def test_a_rank_that_gloo_aborted_in_a_sum_is_not_called_the_wrong_one(run, aborted):
    generated(run, {1: 3, 2: 3})
    line = next(one for one in console("shapes").read_text().splitlines() if "preamble" in one)
    stack = 'Thread 0x1 (most recent call first):\n  File "/s/my.py", line 7 in step'
    log_file(run, aborted).write_text(f"{line}\nFatal Python error: Aborted\n\n{stack}\n")
    report(run, -6, rank=aborted)
    write_record(run, in_sum(3 - aborted, 3, source="/s/model.py:45"))
    found = diagnose(run, 1)
    said = no_rank_is_blamed(found)
    assert "The mesh ranks passed different sizes to one collective of chunk 3" in said
    assert "Which rank is wrong is not known" in said
    assert f"rank {aborted} was at my.py:7" in said.replace("Rank", "rank")
    assert f"rank {3 - aborted} was at model.py:45" in said.replace("Rank", "rank")
    assert found.lines[0].startswith("/s/my.py:7")
    assert "anybody else" not in found.text
    assert (found.cause.where["chunk_index"], found.cause.where["group"]) == (3, "tp_pg")


@pytest.mark.parametrize(
    ("call", "told"), [(4, "already in chunk 4: it made fewer"), (2, "still in chunk 2: it made more")]
)
def test_of_a_rank_in_another_chunk_than_the_aborted_one_the_number_of_calls_is_told(run, call, told):
    """It was said as a fact that sizes differed; a functional collective had been left out."""
    generated(run, {1: 3, 2: 3})
    line = next(one for one in console("shapes").read_text().splitlines() if "preamble" in one)
    stack = 'Thread 0x1 (most recent call first):\n  File "/s/my.py", line 7 in step'
    log_file(run, 1).write_text(f"{line}\nFatal Python error: Aborted\n\n{stack}\n")
    report(run, -6, rank=1)
    write_record(run, in_sum(2, call, source="/s/model.py:45"))
    said = no_rank_is_blamed(diagnose(run, 1))
    assert said.startswith("In chunk 3 gloo brought ")
    assert f"Rank 2 was {told} collectives before, or sizes differ. Which rank is wrong" in said


def test_a_rank_that_failed_before_its_peer_ended_the_chunk_is_no_mismatch(run):
    """The span of an error ends, too: only a chunk that ended long before the error was computed."""
    generated(run, {1: 3, 2: 3})
    late = Span("generate", "main", ZERO, FAILED_NS - MS, call_id=3, chunk_index=3)
    with Recorder(run / "more") as recorder:
        recorder.write(late)
    span_file(run, 2).write_bytes(span_file(run, 2).read_bytes() + (run / "more").read_bytes())
    write_record(run, in_sum(1, 3))
    write_record(run, in_sum(2, 3))
    write_record(run, symptom(0, at_ns=FAILED_NS + MS))
    flown(run, 1, 43)
    flown(run, 2, 42)
    assert diagnose(run, 1).cause.error_type == "PeerLostError"


def called(run, rank, *calls):
    ledger = Ledger(run, rank)
    for number, call in enumerate(calls, 1):
        ledger.write(number, line_of(number, call.to_bytes()))
    ledger.close()


def test_of_a_rank_that_was_killed_the_last_collective_is_told(run):
    """It left no record and no stack, and had written down its calls."""
    second = CollectiveCall(3, 2, "all_reduce float32[4]", "loop.py:7: all_reduce(x, group=tp)\nloop.py:20")
    called(
        run, 2, CollectiveCall(3, 1, "all_reduce float32[4]", "loop.py:7: all_reduce(x, group=tp)"), second
    )
    report(run, -9, rank=2)
    write_record(run, symptom(1, at_ns=FAILED_NS))
    text = diagnose(run, 1).text
    assert text.startswith("Rank 2 (follower) failed first: RankDied: Rank 2 was killed by SIGKILL")
    assert "  rank 2 was in or behind all_reduce float32[4], collective 2 of chunk 3 at loop.py:7\n" in text
    called(run, 2, second, CollectiveCall(3, 2, site="loop.py:7: all_reduce(x, group=tp)"))
    said = "  rank 2 had ended chunk 3 after 2 collectives, the last at loop.py:7, and began no other\n"
    assert said in diagnose(run, 1).text


def test_mesh_ranks_that_wait_for_rank_0_in_a_group_of_the_jobs_are_named_with_their_line(run):
    """They are in nobody's way: before, the first of them was said to have failed."""
    everybody = CollectiveCall(3, 1, "all_reduce float32[4] on the default group", "loop.py:9: all_reduce(x)")
    own = CollectiveCall(2, 1, "all_reduce float32[4]", "loop.py:7: all_reduce(x, group=tp)")
    for rank in (1, 2):
        called(run, rank, own, everybody)
    write_record(run, symptom(0, 1, error_type="PeerTimeoutError", check_first=SILENT_PEER_CHECK))
    found = diagnose(run, 1)
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert found.cause.what.splitlines() == [
        "Ranks 1 and 2 last called all_reduce float32[4] on the default group, the job's own, in chunk 3; "
        "rank 0, which is in that group, waited for the result of the chunk.",
        "  ranks 1 and 2 at loop.py:9: all_reduce(x)",
    ]
    assert found.cause.where == {"chunk_index": 3}
    assert "plane.tp.group" in found.check_first
    called(run, 2, own, everybody, CollectiveCall(3, 1))  # rank 0 had been there
    assert "the job's own" not in diagnose(run, 1).text
    called(run, 2, own, everybody)
    write_record(run, symptom(0, 1))  # the leader is gone: nobody waited to the end
    assert "the job's own" not in diagnose(run, 1).text


def test_a_rank_that_came_after_the_one_that_noticed_is_told_too_and_the_odd_one_is_named_first(run):
    """Who noticed saw two of three, and nobody is said to have failed first."""
    (run / Plan.FILE_NAME).write_bytes(Plan(mesh_size=3, chunks=8).to_json())
    usual, odd = (
        CollectiveCall(3, 1, f"all_reduce float32[{rows}]", f"my_stages.py:{line}: all_reduce(x)")
        for rows, line in ((4, 9), (5, 7))
    )
    two = difference_of({1: [usual], 2: [odd]})
    write_record(run, record(1, what=two.what, between=two.ranks, source="my_stages.py:9"))
    called(run, 1, usual)
    called(run, 2, odd)
    said = "Ranks 1 and 2 differ at collective 1 of chunk 3: rank 1 called"
    assert diagnose(run, 1).text.startswith(said)
    called(run, 3, usual)
    found = diagnose(run, 1)
    assert found.sentence.startswith(
        "Rank 2 differs from ranks 1 and 3 at collective 1 of chunk 3: rank 2 called"
    )
    assert found.lines == ()
    assert found.cause.between == (2, 1, 3)


def test_rank_0_that_torchrun_ended_in_its_own_collective_is_named_by_its_pulse(run):
    """Before its first send, when the bounds of the mesh had passed."""
    for rank, doing in enumerate(("barrier (my_loop.py:41)", "", "")):
        Pulse(run, rank).beat(PulseState.IDLE, doing, since_ns=rank)
    calls = ("/torch/distributed/distributed_c10d.py", 1, "barrier"), ("/me/my_loop.py", 41, "drive")
    shown = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in calls)
    stacks_file(run, 0).write_text(f"Thread 0x1 (most recent call first):\n{shown}")
    for rank in (1, 2):
        write_record(run, symptom(rank, error_type="PeerTimeoutError", at_ns=FAILED_NS + rank))
    found = diagnose(run)
    assert (found.cause.error_type, found.cause.source) == ("CollectiveMismatch", "/me/my_loop.py:41")
    assert "Rank 0 waited in barrier (my_loop.py:41) for ranks 1 and 2, and not one of them" in found.sentence


def test_a_rank_that_torchrun_ended_before_it_spoke_does_not_hide_the_one_that_was_killed(run, monkeypatch):
    """Two ranks had no record, and the survivor that had lost its peer stood in the first line."""
    for rank in range(3):
        Pulse(run, rank).beat(PulseState.BUSY, "generate", {"chunk_index": 3})
    monkeypatch.setattr(PulseView, "process", lambda self: None)
    stacks_file(run, 0).write_text(
        'Thread 0x1 (most recent call first):\n  File "/me/my_loop.py", line 7 in f\n'
    )
    stacks_file(run, 2).write_bytes(b"")
    write_record(run, symptom(1, error_type="PeerLostError", at_ns=FAILED_NS))
    found = diagnose(run)
    assert (found.cause.rank, found.cause.error_type) == (2, "NoRecord")
    assert "rank 0 got SIGTERM" in found.text


def test_of_two_ranks_with_a_sigterm_the_one_that_got_it_before_any_failure_is_named_unless_a_copy_hides_it(
    run, monkeypatch
):
    """torchrun had ended rank 0 before that one could write."""
    for rank in range(3):
        Pulse(run, rank).beat(PulseState.BUSY, "generate", {"chunk_index": 3})
    monkeypatch.setattr(PulseView, "process", lambda self: None)
    left = 'Thread 0x1 (most recent call first):\n  File "/me/my_loop.py", line 7 in f\n'
    failed_ns, since_ns = time.monotonic_ns(), time.time_ns() - time.monotonic_ns()
    write_record(run, symptom(1, error_type="PeerLostError", at_ns=failed_ns))
    for rank, late_ns in ((0, 100_000_000), (2, -30_000_000)):
        stacks_file(run, rank).write_text(left)
        os.utime(stacks_file(run, rank), ns=(0, since_ns + failed_ns + late_ns))
    found = diagnose(run)
    assert (found.cause.rank, found.cause.source) == (2, "/me/my_loop.py:7")
    assert (
        "Rank 2 got SIGTERM and left no record; torchrun sends it when another rank fails, and no rank"
        in (found.sentence)
    )
    assert found.check_first.startswith("who sent it?")
    assert "rank 0 got SIGTERM" in found.text
    copied_ns = since_ns + failed_ns + 60_000_000_000
    os.utime(failure_file(run, 1), ns=(0, copied_ns))
    assert diagnose(run).cause.rank == 1


def test_ranks_that_are_gone_without_a_record_are_not_said_to_go_on(run, monkeypatch):
    """A job of somebody else's torchrun, which has no log of ours."""
    for rank in range(3):
        Pulse(run, rank).beat(PulseState.BUSY, "generate", {"chunk_index": 3})
    assert "goes on" in diagnose(run).sentence  # they are this process
    monkeypatch.setattr(PulseView, "process", lambda self: None)
    found = diagnose(run)
    assert found.cause.error_type == "RanksGone"
    assert "all without a record and without stacks: as when their torchrun is killed" in found.sentence
    assert "who killed torchrun?" in found.check_first
    left = 'Thread 0x1 (most recent call first):\n  File "/me/my_loop.py", line 7 in serve\n'
    stacks_file(run, 0).write_bytes(b"")
    for rank in (1, 2):
        stacks_file(run, rank).write_text(left)
    found = diagnose(run)  # SIGKILL leaves nothing
    assert "Rank 0 left without a record and without stacks" in found.sentence
    assert "ranks 1 and 2 got SIGTERM" in found.sentence
    assert "rank 2 (last: generate), at /me/my_loop.py:7" in found.text
    stacks_file(run, 0).write_text(left)
    assert "Ranks 0, 1 and 2 got SIGTERM, and no rank had failed before" in diagnose(run).sentence
    for rank in range(3):
        stacks_file(run, rank).unlink()
    called(run, 1, CollectiveCall(3, 4, "all_reduce float32[4]", "my_stages.py:9: all_reduce(x)"))
    called(run, 2, CollectiveCall(3, 3, site="my_stages.py:7: all_reduce(w)"))
    said = diagnose(run).sentence
    assert "Ranks 1 and 2 differ in chunk 3: rank 1 called all_reduce float32[4] as collective 4 (my" in said
    assert "rank 2 ended it after 3" in said
    assert "\n  rank 1 at my_stages.py:9: all_reduce(x)" in said
    assert "\n  rank 2, last at my_stages.py:7: all_reduce(w)" in said


@pytest.mark.parametrize("source", ["for layer in layers:", "while True:"])
def test_a_loop_of_which_a_rank_made_a_turn_less_is_named_by_its_own_line(run, tmp_path, source):
    """It said "a loop around net.py:3", the line of the sum, which was known."""
    net = tmp_path / "net.py"
    net.write_text(f"def forward(x):\n    {source}\n        dist.all_reduce(x)\n")
    trace = f'Traceback (most recent call last):\n  File "{net}", line 3, in forward\n'
    check = "does a loop around net.py:3 or loop.py:37 make as many turns on all ranks? is a collective"
    write_record(run, record(1, traceback=trace, check_first=f"{check} behind a flag?"))
    named = "does the loop at net.py:2, around net.py:3, make as many turns on all ranks? is a collective"
    is_for = source.startswith("for")
    assert f"check first: {named if is_for else check} behind a flag?" in diagnose(run, 1).text
