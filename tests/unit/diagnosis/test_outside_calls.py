"""Ranks that waited in a call of their own loop, outside of any chunk: with call and line, not blamed."""

from __future__ import annotations

import os

import pytest
from made_runs import MS, ZERO
from typer.testing import CliRunner

from ppwork.cli.main import app
from ppwork.diagnosis.runs import diagnose
from ppwork.plan import Plan
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK
from ppwork.records.failure import FailureRecord, failure_file, write_record
from ppwork.records.last_stacks import stacks_file
from ppwork.records.ledger import CollectiveCall, Ledger, line_of
from ppwork.records.pulse import Pulse
from ppwork.records.run import SUMMARY_FILE
from ppwork.records.spans import Instant, Recorder, Span, span_file

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
FAILED_NS = ZERO + 60_000 * MS


@pytest.fixture
def run(tmp_path):
    """A folder of a loop with two mesh ranks, under a torchrun that keeps no log."""
    Plan(mesh_size=2).save(tmp_path)
    return tmp_path


def stood(
    run,
    rank,
    call,
    *lines,
    error_type="PeerTimeoutError",
    check_first="the peer's log",
    after_ms=None,
    **where,
):
    """Leave the record of a rank whose call broke: its line last, and those that called it before."""
    after_ms = rank if after_ms is None else after_ms
    names = ["<module>", "serve", "total"]
    frames = [
        f'  File "/me/prog.py", line {n}, in {name}' for n, name in zip([60, *lines], names, strict=False)
    ]
    frames += [f'  File "{TORCH}", line 5356, in {call}'] if call else []
    traceback = "\n".join(["Traceback (most recent call last):", *frames, "RuntimeError: it broke", ""])
    write_record(
        run,
        FailureRecord(
            rank=rank,
            error_type=error_type,
            what="The connection broke during a call of the loop.",
            where={"rank": rank, "role": "leader" if rank == 1 else "follower", **where},
            check_first=check_first,
            symptom=True,
            at_ns=FAILED_NS + after_ms * MS,
            traceback=traceback,
            source=f"/me/prog.py:{lines[-1]}",
        ),
    )


def ended(run, rank, chunk, operation=""):
    """Leave a mesh rank's ledger, whose last line is the end of a chunk, or a collective of it."""
    ledger = Ledger(run, rank)
    ledger.write(1, line_of(1, CollectiveCall(chunk, 2, operation).to_bytes()))
    ledger.close()


def spans(run, rank, *entries):
    with Recorder(span_file(run, rank)) as recorder:
        for entry in entries:
            recorder.write(entry)


def left(run, rank):
    Pulse(run, rank).leave(0)


AT = {"call_id": 7, "chunk_index": 7}


def stream_of_eight(run):
    spans(run, 0, Instant("emit", "main", ZERO, **AT))
    (run / SUMMARY_FILE).write_text("{}")


def test_ranks_that_waited_behind_their_last_chunk_do_not_make_a_failure_of_a_rank_that_left_well(run):
    stream_of_eight(run)
    left(run, 0)
    for rank in (1, 2):
        ended(run, rank, 7)
        stood(run, rank, "barrier", 42, error_type="PeerLostError", **AT)
    found = diagnose(run)
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert found.sentence == (
        "Ranks 1 and 2 waited in barrier (prog.py:42) after the last chunk (7), and rank 0 did not come: "
        "it had left with code 0."
    )
    assert found.text.startswith("/me/prog.py:42, in serve\n")
    assert "os._exit" not in found.text


def test_one_rank_alone_behind_the_last_chunk_made_no_other_collective_in_it(run):
    stream_of_eight(run)
    for rank in (0, 1):
        left(run, rank)
    ended(run, 1, 7)
    ended(run, 2, 7)
    spans(run, 1, Span("generate", "main", ZERO, ZERO + MS, **AT))
    stood(run, 2, "all_reduce", 43, 33, error_type="PeerLostError", **AT)
    found = diagnose(run)
    assert (
        "Rank 2 waited in all_reduce (prog.py:33, called at prog.py:43) after the last chunk"
        in found.sentence
    )
    assert "ranks 0 and 1 did not come: they had left with code 0" in found.sentence
    assert "ompare" not in found.text
    # In the chunk itself it is another matter.
    ended(run, 2, 7, "all_reduce float32[4]")
    assert "after the last chunk" not in diagnose(run).text


FIRST = {"call_id": 0, "chunk_index": 0}


def one_chunk_sent(run):
    """Leave what the lanes wrote down: the first chunk came to both mesh ranks."""
    spans(
        run,
        0,
        Span("encode", "main", ZERO, ZERO + MS, **FIRST),
        Instant("envelope.send", "main", ZERO, **FIRST),
    )
    for rank in (1, 2):
        spans(run, rank, Span("receive", "mesh_pg", ZERO, ZERO + MS, **FIRST))
    stood(run, 0, "", 10, **FIRST)  # in a call of the plane


def test_mesh_ranks_in_a_call_before_their_first_chunk_wait_for_rank_0_there_and_not_in_the_chunk(run):
    one_chunk_sent(run)
    for rank in (1, 2):
        stood(run, rank, "barrier", 31)
    found = diagnose(run)
    assert found.cause.error_type == "CollectiveMismatch"
    assert found.sentence == (
        "Ranks 1 and 2 waited in barrier (prog.py:31) before their first chunk, and rank 0 did not come."
    )
    assert found.text.startswith("/me/prog.py:31, in serve\n")
    assert "rank 2 waits for rank 0: barrier (prog.py:31)" in found.text
    assert "generate" not in found.text
    assert "log of" not in found.text


def test_a_mesh_rank_alone_in_a_call_before_its_first_chunk_is_named_with_where_the_other_was(run):
    one_chunk_sent(run)
    stood(run, 1, "all_reduce", 42, 35, **FIRST)
    stood(run, 2, "barrier", 32)
    found = diagnose(run)
    assert "Rank 2 waited in barrier (prog.py:32) before its first chunk, and not all ranks" in found.sentence
    assert "rank 1 was in all_reduce (prog.py:35, called at prog.py:42) of chunk 0" in found.sentence
    assert "rank 1 waits for rank 2: generate of call 0" in found.text
    # A rank that left no word may have held up the others in code of its own.
    failure_file(run, 1).unlink()
    assert "first chunk" not in diagnose(run).sentence
    # One that left well has no record, and is in no call.
    left(run, 1)
    sentence = diagnose(run).sentence
    assert sentence.endswith(
        "Rank 2 waited in barrier (prog.py:32) before its first chunk, and not all ranks of that group came."
    )


def test_rank_0_alone_in_a_collective_is_named_whoever_wrote_first(run):
    """A mesh rank that loses its peer may write before that peer says that its bound passed."""
    for rank in (1, 2):
        came = Span("receive", "mesh_pg", ZERO, ZERO + MS, **AT)
        spans(run, rank, came, Span("generate", "main", ZERO, ZERO + MS, **AT))
    stood(run, 0, "all_reduce", 37, after_ms=20, **AT)
    stood(run, 1, "", 60, after_ms=10, peer=0, **AT)
    stood(run, 2, "", 60, error_type="PeerLostError", after_ms=0, peer=1, **AT)
    found = diagnose(run)
    assert found.sentence.startswith(
        "Rank 0 waited in all_reduce (prog.py:37) for ranks 1 and 2, and not one"
    )
    assert found.text.startswith("/me/prog.py:37, in serve\n")
    # Of a rank that left no word nobody knows whether it was gone first.
    failure_file(run, 1).unlink()
    assert "waited in all_reduce" not in diagnose(run).sentence


def test_a_message_within_the_mesh_is_named_with_its_peer_and_where_that_was(run):
    for rank in (1, 2):
        spans(run, rank, Span("receive", "mesh_pg", ZERO, ZERO + MS, **AT))
    stood(run, 0, "", 10, peer=1, **AT)
    stood(run, 1, "recv", 42, error_type="StageError", peer=2, **AT)
    stood(run, 2, "all_reduce", 43, 33, **AT)
    found = diagnose(run)
    assert found.sentence == "Rank 1 waited in recv (prog.py:42) for rank 2; rank 2 was at prog.py:33."
    assert found.text.startswith("/me/prog.py:42, in serve\n")
    assert "rank 1 waits for rank 2: recv (prog.py:42)" in found.text
    assert "rank 2 waits for rank 1: generate of call 7" in found.text
    # Whose record has no peer, as that of a `recv` from anybody, waited for one of the mesh.
    stood(run, 1, "recv", 42, error_type="StageError", **AT)
    assert "for another mesh rank; rank 2 was at" in diagnose(run).sentence
    # A rank that left no word may be the one that failed.
    failure_file(run, 2).unlink()
    assert "waited in recv" not in diagnose(run).sentence


WAIT = ("/site-packages/ppwork/worker/backend_wait.py", 40, "framed_wait")


def aborted(run, rank, thread, inside=(TORCH, 3252, "all_reduce")):
    """Leave the stacks of a rank that was aborted in a sum of its chunk."""
    calls = inside, ("/me/prog.py", 33, "total"), ("/me/model.py", 32, "__call__")
    shown = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in calls)
    lane = (
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 331 in wait\n'
    )
    text = f"Fatal Python error: Aborted\n\n{lane}\n{thread} (most recent call first):\n{shown}"
    stacks_file(run, rank).write_text(text)


@pytest.mark.parametrize(
    ("checked", "advice"),
    [
        (2, "make a functional collective, one by a method of a group, one in a thread"),
        (0, "without `compare_collectives=0`"),
    ],
)
def test_a_rank_that_gloo_aborted_in_a_call_is_not_called_the_wrong_one(run, checked, advice):
    Plan(mesh_size=2, compare_collectives=checked).save(run)
    spans(run, 2, Span("receive", "mesh_pg", ZERO, ZERO + MS, **AT))
    aborted(run, 2, "Thread 0x2")
    stood(run, 1, "all_reduce", 43, 33, error_type="PeerLostError", call_id=6, chunk_index=6)
    found = diagnose(run)
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert "gloo aborted rank 2 in all_reduce (prog.py:33, called at model.py:32)" in found.sentence
    assert "Rank 1 was in all_reduce (prog.py:33, called at prog.py:43)." in found.sentence
    assert "which rank is wrong is not known" in found.sentence
    assert found.lines == ()
    assert advice in found.check_first
    assert "--compare-collectives" not in found.text


def test_a_rank_that_gloo_aborted_in_the_wait_of_a_groups_method_has_its_line_and_the_others(run):
    spans(run, 2, Span("receive", "mesh_pg", ZERO, ZERO + MS, **AT))
    aborted(run, 2, "Thread 0x2", WAIT)
    stood(run, 1, "all_reduce", 43, 33, error_type="PeerLostError", call_id=6, chunk_index=6)
    found = diagnose(run)
    assert found.cause.error_type == "CollectiveMismatch", found.text
    assert "gloo aborted rank 2 in the wait for a handle (prog.py:33)" in found.sentence
    assert "Rank 1 was in all_reduce (prog.py:33, called at prog.py:43)." in found.sentence
    assert "one by a method of a group" in found.check_first


def test_a_rank_whose_own_thread_aborted_died(run):
    aborted(run, 2, "Current thread 0x2")
    stood(run, 1, "all_reduce", 43, 33, error_type="PeerLostError", **AT)
    found = diagnose(run)
    assert (found.cause.rank, found.cause.error_type) == (2, "RankDied")


def test_a_loop_is_not_told_to_run_with_an_exchange_that_it_has_not(run):
    for rank in (1, 2):
        ended(run, rank, 7, "all_reduce float32[4]" * (rank - 1))
    left(run, 1)
    spans(run, 1, Span("receive", "main", ZERO, ZERO, **AT), Span("generate", "main", ZERO, ZERO + MS, **AT))
    spans(run, 2, Span("receive", "main", ZERO, ZERO, **AT))
    stood(run, 2, "all_reduce", 43, 33, error_type="PeerLostError", **AT)
    found = diagnose(run)
    assert "Rank 2 was in a collective of chunk 7, which rank 1 had ended before it left" in found.sentence
    assert "ompare" not in found.check_first.replace("are compared", "")


@pytest.mark.parametrize(
    ("left_there", "named"), [(True, "stacks-rank2.txt"), (False, "what rank 2 printed")]
)
def test_a_rank_without_a_log_is_looked_for_in_what_it_left(run, left_there, named):
    spans(
        run,
        0,
        Span("encode", "main", ZERO, ZERO + MS, **FIRST),
        Instant("envelope.send", "main", ZERO, **FIRST),
    )
    spans(run, 1, Instant("mesh.broadcast", "main", ZERO, **FIRST))
    for rank in (0, 1):
        stood(run, rank, "", 10, peer=rank + 1, check_first=SILENT_PEER_CHECK, **FIRST)
    if left_there:
        stacks_file(run, 2).write_text(
            'Thread 0x1 (most recent call first):\n  File "/me/prog.py", line 7 in serve\n'
        )
    check = diagnose(run).check_first
    assert check == f"{named}: the others waited for it, and it waited for nobody"


def test_results_of_a_loop_that_differ_are_not_looked_for_where_a_loop_has_nothing(run):
    spans(run, 2, Instant("results.differ", "main", ZERO, **AT))
    (run / SUMMARY_FILE).write_text('{"chunks": 8}')
    said = diagnose(run).sentence
    assert said.startswith("Mesh ranks returned different results in chunk 7: the leader's were sent.")
    assert "passes to `reply`" in said
    assert "--digests" not in said
    assert "log" not in said


@pytest.mark.parametrize(
    ("chunk", "shapes", "is_first"), [(7, True, True), (6, True, False), (7, False, False)]
)
def test_an_answer_of_another_shape_stands_before_the_error_that_rank_0_made_of_it(
    run, chunk, shapes, is_first
):
    """Rank 0's decode was named as the first to fail, and its traceback as what to look at."""
    differs = "rank 1 returned 'x' float32[3], rank 2 returned 'x' float32[4]"
    text = differs if shapes else "a sample of what rank 2 returned is not what rank 1 returned"
    spans(run, 2, Instant("results.differ", "main", ZERO, text=text, **AT))
    where = {"rank": 0, "role": "stage0", "chunk_index": chunk}
    what = "RuntimeError: shape '[4]' is invalid"
    facts = {"rank": 0, "error_type": "StageError", "what": what, "where": where, "symptom": False}
    write_record(run, FailureRecord(**facts, check_first="the traceback", at_ns=FAILED_NS, traceback=""))
    found = diagnose(run)
    error = f"failed: StageError: {what}"
    then = f"Mesh ranks returned different results of chunk 7, {differs}; the leader's were sent. Rank 0"
    assert found.sentence.startswith(then) == is_first, found.text
    assert found.sentence.endswith(
        f"(stage0), which got them, {error}" if is_first else f"failed first: StageError: {what}"
    )
    assert found.text.count("Mesh ranks returned different results") == 1
    assert found.check_first.startswith("which rank is right is not known" if is_first else "the traceback")
    assert (found.cause.rank, found.cause.where["rank"]) == (0, 0)


@pytest.mark.parametrize(("sent", "said"), [(7, "; its loop sent no more."), (8, ".")])
def test_a_loop_that_sent_fewer_chunks_than_planned_is_said_to_have_lost_none(run, sent, said):
    """ "7 of 8 chunks" read as if a result had been lost on its way, which ``shutdown`` refuses."""
    (run / Plan.FILE_NAME).write_bytes(Plan(mesh_size=2, chunks=8).to_json())
    leaves = [Instant("envelope.send", "main", ZERO, k, k, 0) for k in range(sent)]
    bye = Instant("envelope.send", "main", ZERO, sent, sent - 1, 0)
    spans(run, 0, *leaves, bye)
    (run / SUMMARY_FILE).write_text('{"chunks": 7}')
    found = diagnose(run)
    assert found.sentence == f"No rank failed, and the run emitted 7 of 8 chunks{said}"
    assert found.is_odd


@pytest.mark.parametrize(
    ("count", "said", "code"),
    [(8, "Nothing failed: the run emitted 8", 0), (7, "No rank failed, and the run emitted 7 of 8", 1)],
)
def test_a_loop_that_sent_fewer_chunks_than_planned_is_told_and_is_an_error_where_one_asks(
    run, count, said, code
):
    """Nothing told of it anywhere: a job in CI passed. (One more than planned is refused.)"""
    (run / Plan.FILE_NAME).write_bytes(Plan(mesh_size=2, chunks=8).to_json())
    spans(run, 0, *(Instant("envelope.send", "main", ZERO, k, k, 0) for k in range(count)))
    (run / SUMMARY_FILE).write_text(f'{{"chunks": {count}}}')
    for option, expected in (("--strict", code), ("--exit-code", 0)):
        done = CliRunner().invoke(app, ["diagnose", str(run), option])
        assert done.stdout.startswith(f"{said} chunks")
        assert done.exit_code == expected


def test_a_mesh_rank_that_waits_between_two_chunks_is_in_that_call_and_not_in_the_next_chunk(run):
    after = {"call_id": 8, "chunk_index": 8}
    for rank in (1, 2):
        came = [Span("receive", "mesh_pg", ZERO, ZERO + MS, **ids) for ids in (AT, after)]
        spans(run, rank, *came, Span("generate", "main", ZERO, ZERO + MS, **AT))
    stood(run, 1, "barrier", 43, **AT)
    stood(run, 2, "all_reduce", 41, 33, **after)
    found = diagnose(run)
    assert (
        "Rank 1 waited in barrier (prog.py:43) between its answer to chunk 7 and the next" in found.sentence
    )
    assert "rank 1 waits for rank 2: barrier (prog.py:43)" in found.text
    assert "rank 2 waits for rank 1: generate of call 8" in found.text


def test_rank_0_that_had_sent_nothing_is_asked_for_no_chunk_that_left_last(run):
    """It looped before its first ``send``; which chunk was the last to leave was asked."""
    program = run / "prog.py"
    program.write_text("def drive(plane):\n    while True:\n        pass\n")
    stacks_file(run, 0).write_text(
        f'Current thread 0x1 (most recent call first):\n  File "{program}", line 2 in drive\n'
    )
    left(run, 0)
    for rank in (1, 2):
        stood(run, rank, "", 38, check_first=SILENT_PEER_CHECK, peer=0 if rank == 1 else 1)
    os.utime(program, (0, 0))
    found = diagnose(run)
    assert found.sentence.startswith("Rank 0 (stage0) failed first: NoRecord: Rank 0 had sent no chunk when")
    assert found.text.startswith(f"{program}:2, in drive\n    while True:\n")
    assert found.check_first == "stacks-rank0.txt: where it stood; its first `send` may take timeout_s"
    # Its program was changed since: what stands in that line now is not what ran.
    os.utime(program)
    os.utime(run / Plan.FILE_NAME, (0, 0))
    assert diagnose(run).text.startswith(f"{program}:2, in drive\nRank 0")


def test_a_mesh_rank_that_has_not_asked_for_its_first_chunk_is_in_no_chunk(run):
    one_chunk_sent(run)
    Pulse(run, 2).leave(0)
    stood(run, 1, "all_reduce", 42, **FIRST)
    found = diagnose(run)
    assert "rank 1 waits for rank 2: generate of call 0" in found.text
    assert "rank 2 waits for nobody: its loop, before the first chunk" in found.text
