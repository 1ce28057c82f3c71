"""Logs that were once misread, by the number of the finding: A1 to A14 of an attack, B3 of an adopter."""

from __future__ import annotations

import os
import signal
import time

import pytest
from captured_logs import CAPTURED, log_dir
from made_logs import GLOO_LOST, folder, report, said, traceback

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import EARLIER, MAX_BYTES, read_job
from ppwork.diagnosis.report import Report, attempts_of
from ppwork.diagnosis.stacks import tracebacks

LINEAR_S = 10.0
"""CPU seconds for a log that took a minute or more when readers were quadratic; now it is below one."""


def test_a1_a_progress_bar_in_front_of_a_traceback_hides_nothing(tmp_path):
    bar = " 40%|####  | 4/10 [00:04<00:05]" + traceback(1, 9, "step()", "ValueError: NaN in batch 4")
    for console in ("", report(1, r1=1)):
        found = said(folder(tmp_path / f"with {len(console)}", "", bar, "", console=console))
        assert found.cause.rank == 1
        assert "ValueError: NaN in batch 4" in found.sentence
        assert found.cause.source == "/t/a.py:9"


def test_a2_nothing_failed_is_not_said_without_exit_codes(tmp_path):
    text = (
        "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    reached = traceback(2, 8, "dist.all_reduce(x)", text)
    found = said(folder(tmp_path / "reached", "", "", reached, console=report(2, r2=1)))
    assert found.cause is not None
    assert "successfully reached monitoredBarrier" in found.text
    silent = said(folder(tmp_path / "silent", "loading\n", "", ""))
    assert "Nothing failed" not in silent.text
    assert "none has exit codes" in silent.text


def test_a3_what_was_only_logged_does_not_outrank_an_exit_code(tmp_path):
    logged = "ERROR:root:flash attention is not available\n"
    logged += traceback(
        2, 8, "import flash_attn", "ModuleNotFoundError: No module named flash_attn", prefix=""
    )
    found = said(folder(tmp_path, "", "", logged, console=report(1, r0=-15, r1=-9, r2=-15)))
    assert (found.cause.rank, found.cause.error_type) == (1, "RankDied")
    assert "SIGKILL" in found.sentence


def test_a3_two_causes_are_both_named_and_which_was_first_is_left_open(tmp_path):
    full = traceback(1, 5, "save()", "OSError: disk quota exceeded")
    gone = traceback(2, 7, "open(path)", "FileNotFoundError: /ckpt/part1")
    found = said(folder(tmp_path, "", full, gone, console=report(2, r0=-15, r1=-15, r2=1)))
    assert found.sentence == (
        "Rank 2 raised FileNotFoundError: /ckpt/part1. Rank 1 raised OSError: disk quota exceeded."
    )
    assert found.unknown == ("which of ranks 1 and 2 was the first",)


def test_a4_the_stores_key_names_the_rank_that_never_joined(tmp_path):
    error = "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/2"
    waiting = [traceback(rank, 8, "dist.init_process_group()", error, prefix="") for rank in (0, 1)]
    found = said(folder(tmp_path, *waiting, ""))
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
    assert "MASTER_PORT" in found.check_first


def test_a5_the_barriers_of_detail_do_not_hide_an_exception(tmp_path):
    waits = traceback(
        0, 12, "dist.all_reduce(x)", "RuntimeError: Rank 1 failed to pass monitoredBarrier in 5000 ms"
    )
    raised = traceback(1, 10, "x = load()", "ValueError: image 17 is truncated")
    found = said(folder(tmp_path, waits, raised, ""))
    assert found.sentence == "Rank 1 raised ValueError: image 17 is truncated."


def test_a6_a_backward_that_lost_a_peer_was_in_a_call(tmp_path):
    backward = [traceback(rank, 11, "loss.backward()", GLOO_LOST) for rank in (0, 1)]
    barrier = traceback(2, 12, "dist.barrier()", "RuntimeError: Timed out waiting 6000ms", inside="barrier")
    found = said(folder(tmp_path, *backward, barrier))
    assert (found.cause.rank, found.cause.error_type) == (2, "CollectiveMismatch")
    assert "rank 0 in backward at /t/a.py:11" in found.sentence


def test_a7_an_exception_that_bears_no_rank_is_shown_with_the_exit_code(tmp_path):
    log = tmp_path / "plain.log"
    error = traceback(0, 6, "import tok", "ModuleNotFoundError: No module named tok", prefix="")
    log.write_text(error + report(1, r0=-15, r1=1))
    found = said(log)
    assert (found.cause.rank, found.cause.source) == (1, "/t/a.py:6")
    assert "No module named tok" in found.sentence


@pytest.mark.parametrize(
    "error", ["ConnectionResetError: [Errno 104] Connection reset by peer", "TimeoutError: timed out"]
)
def test_a8_a_ranks_own_time_out_or_reset_is_its_own(tmp_path, error):
    lost = [traceback(rank, 3, "dist.barrier()", GLOO_LOST, inside="barrier") for rank in (0, 2)]
    found = said(folder(tmp_path, lost[0], traceback(1, 5, "fetch()", error), lost[1]))
    assert found.cause.rank == 1
    assert error in found.sentence


def test_a9_a_rank_without_a_traceback_shows_its_last_lines(tmp_path):
    found = said(folder(tmp_path, "", "no licence for this host\n", "", console=report(1, r0=-15, r1=1)))
    assert found.cause.rank == 1
    assert "no licence for this host" in found.text


def test_a9_the_traceback_before_a_long_tail_is_read(tmp_path):
    early = traceback(1, 9, "step()", "ValueError: NaN in batch 4")
    found = said(folder(tmp_path, "", early + "junk after it\n" * (3 * MAX_BYTES // 14), ""))
    assert found.sentence == "Rank 1 raised ValueError: NaN in batch 4."
    retries = "".join(traceback(1, n, "step()", f"OSError: try {n}", prefix="") for n in range(4 * EARLIER))
    log = tmp_path / "x/attempt_0/1/stderr.log"
    log.write_text(retries + "junk\n" * MAX_BYTES)
    errors = read_job(tmp_path).ranks[1].errors
    assert errors[-1].message.startswith(f"try {4 * EARLIER - 1}")
    assert len(errors) == EARLIER


def test_a10_an_earlier_attempt_with_a_cause_comes_before_later_ones_without(tmp_path):
    full = traceback(1, 4, "save()", "OSError: No space left on device")
    lost = traceback(0, 3, "dist.barrier()", GLOO_LOST, inside="barrier")
    folder(tmp_path, "", full, "", attempt=0)
    for attempt in (2, 10):
        folder(tmp_path, lost, "", "", attempt=attempt)
    job = read_job(tmp_path)
    assert len(job.earlier) == 2
    found = diagnose_job(job)
    assert found.cause.rank == 1
    assert "Attempt 0: Rank 1 raised OSError: No space left on device" in found.sentence


def test_a10_the_console_of_a_job_that_was_restarted_is_cut_into_attempts():
    console = (CAPTURED / "mishaps" / "restarts.txt").read_text()
    first, last = attempts_of(console)
    assert "No space left" in first
    assert "No space left" not in last
    assert Report.of(first).codes == {1: 1}
    twice = report(1, r1=1) + "failed (exitcode: 1) local_rank: 1 (pid: 2)\n"
    assert attempts_of(twice * 2) == [twice * 2], "two hosts that wrote into one file"


def test_a10_two_hosts_with_one_log_dir_are_one_job(tmp_path):
    lost = [traceback(rank, 3, "dist.barrier()", GLOO_LOST, inside="barrier") for rank in (2, 3)]
    raised = traceback(1, 5, "load()", "ValueError: shard 7 is empty")
    folder(tmp_path, traceback(0, 3, "dist.barrier()", GLOO_LOST), raised, run="job_aaa")
    folder(tmp_path, *lost, run="job_bbb")
    for log in tmp_path.glob("job_aaa/*/*/*.log"):
        log.touch()  # both wrote until the end
    job = read_job(tmp_path)
    assert sorted(job.ranks) == [0, 1, 2, 3]
    assert diagnose_job(job).cause.rank == 1


def test_a10_an_older_job_in_the_same_log_dir_is_left_alone(tmp_path):
    folder(tmp_path, "", traceback(1, 5, "load()", "ValueError: the older one"), run="none_aaa")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    folder(tmp_path, traceback(0, 5, "load()", "ValueError: the newer one"), "", run="none_bbb")
    assert "the newer one" in said(tmp_path).sentence
    assert "the older one" not in said(tmp_path).text


def test_a11_ranks_that_torchrun_ended_first_are_not_called_absent(tmp_path):
    error = "DistNetworkError: The client socket has timed out after 5000ms: connect to (h, 29777)."
    late = traceback(2, 8, "dist.init_process_group()", error, prefix="")
    found = said(folder(tmp_path, "", "", late, console=report(2, r0=-15, r1=-15, r2=1)))
    assert found.cause.where == {}
    assert "never came" not in found.sentence
    assert "29777" in found.text


def test_a12_two_ranks_that_send_in_one_broadcast_do_not_agree_on_the_root(tmp_path):
    found = said(log_dir(CAPTURED / "mishaps" / "bcast_src.txt", tmp_path))
    assert sorted(found.cause.where.values()) == [0, 1]
    assert "root" in found.check_first


def test_a12_two_that_send_to_each_other_first_are_told_the_cure(tmp_path):
    late = "RuntimeError: [h/x.cc:90] Timed out waiting 3000ms for send operation to complete"
    waits = "RuntimeError: [h/x.cc:90] Timed out waiting 3000ms for recv operation to complete"
    both = [traceback(rank, 7, "dist.send(x, 1 - rank)", late, inside="send") for rank in (0, 1)]
    third = traceback(2, 11, "dist.barrier()", waits, inside="barrier")
    found = said(folder(tmp_path, *both, third, console=report(0, r0=1, r1=1, r2=1)))
    assert found.cause.error_type == "Unmatched"
    assert found.check_first.startswith("do both send first? then let one receive first")
    assert "wrong peer or tag" not in found.text


def test_a12_a_message_that_nobody_took_is_named_with_its_line(tmp_path):
    found = said(log_dir(CAPTURED / "mishaps" / "tags.txt", tmp_path))
    assert found.cause.error_type == "Unmatched"
    assert set(found.cause.where.values()) == {0, 1}
    assert "for a message that nobody took" in found.sentence
    assert "for a message that never came" in found.sentence
    assert "isend" not in found.check_first
    assert "tag" in found.check_first


@pytest.mark.parametrize(
    "text",
    [
        traceback(1, 9, "step()", "OSError: try", prefix="[default1]:") * 30_000,
        "\n" * 2_000_000,
        "[rank1]: Traceback (most recent call last):\n" * 100_000,
        "  rank      : 1\n" * 200_000,
        "terminate called after throwing an instance of 'a'\n" * 100_000,
        '  File "a.py", line 1\n' * 200_000,
        "x" * 4_000_000,
        "[PG 0 GUID 0 Rank 1] failure detected by watchdog at work: 1 " * 40_000 + "\n",
        "[Rank 1] watchdog CollectiveFingerPrint( --local_rank=1' " * 40_000 + "\n",
        "ValueError: no\n" * 200_000,
        'ValueError: no\n  File "a.py", line 1\n' * 100_000,
        'Traceback (most recent call last):\n  File "a.py", line 1\n' + '  File "a.py", line 2\n' * 200_000,
        "Root Cause (first observed failure):\n" * 100_000,
        "in store based barrier connectFullMesh failed with remote=[ Worker proc a" * 40_000 + "\n",
        'ERROR x.py:1]   File "a.py", line 1\n' * 50_000 + 'File "a.py", line 1\nx\n' * 50_000,
        "Expected to have finished reduction in the prior iteration [E1 a.cpp:1] AError " * 30_000 + "\n",
    ],
    ids=["retries", "blank lines", "heads", "report", "terminate", "frames", "one line", "watchdog", "words",
         "cut errors", "cut tracebacks", "recursion", "root causes", "words of torch", "prefixed calls",
         "last resorts"],
)  # fmt: skip
def test_a13_readers_are_linear(tmp_path, text):
    log = tmp_path / "a.log"
    log.write_text(text + report(1, r1=1))
    start = time.process_time()
    assert said(log).cause.rank == 1
    assert time.process_time() - start < LINEAR_S


def test_a14_who_raised_the_same_is_told_from_who_raised_something_else(tmp_path):
    same = [traceback(rank, 5, "check()", "ValueError: hidden size 100") for rank in (0, 1)]
    other = traceback(2, 7, "load()", "KeyError: 'bias'")
    found = said(folder(tmp_path, *same, other, console=report(0, r0=1, r1=1, r2=1)))
    assert found.sentence == (
        "Rank 0 raised ValueError: hidden size 100. So did rank 1. Rank 2 raised KeyError: 'bias'."
    )


def test_a14_the_users_line_in_a_data_loaders_worker_is_shown(tmp_path):
    found = said(log_dir(CAPTURED / "mishaps" / "loader_raises.txt", tmp_path))
    assert "ValueError: image 2 is truncated" in found.sentence
    assert found.lines[1].strip() == 'raise ValueError("image 2 is truncated")'


def test_b3_errors_of_ppwork_in_anybodys_log_are_symptoms_that_name_their_peer(tmp_path):
    notice = "ppwork.errors.TerminalNotice: The session was ended by a peer (origin unknown): RuntimeError\n"
    ended = traceback(0, 8, "plane.receive()", notice + "  where: rank=0 group=up_pg peer=1")
    lost = traceback(1, 9, "plane.step()", "ppwork.errors.PeerLostError: It broke.\n  where: rank=1 peer=2")
    bug = traceback(2, 3, "f()", "ValueError: my bug on the follower")
    raised = said(folder(tmp_path / "raised", ended, lost, bug))
    assert raised.sentence == "Rank 2 raised ValueError: my bug on the follower."
    silent = said(folder(tmp_path / "silent", ended, lost, ""))
    assert (silent.cause.rank, silent.cause.error_type) == (2, "NeverCame")


LOGURU = """\
2026-11-20 10:00 | ERROR | caught
Traceback (most recent call last):

  File "/t/a.py", line 20, in <module>
    main()
    └ <function main>

> File "/t/a.py", line 7, in load
    raise ValueError(shard)
                     └ 3

ValueError: shard 3 is empty
"""
RICH = """\
╭─── Traceback (most recent call last) ───╮
│ /t/a.py:7 in load                       │
│                                         │
│ ❱ 7 │   raise ValueError(shard)         │
╰─────────────────────────────────────────╯
ValueError: shard 3 is empty
"""
SYNTAX = """\
  File "/t/a.py", line 7
    lr = = 3
         ^
SyntaxError: invalid syntax
"""
LOGGER = """\
ERROR 11-18 14:16:34 [core.py:7] Traceback (most recent call last):
ERROR 11-18 14:16:35 [core.py:7]   File "/t/a.py", line 7, in f
ERROR 11-18 14:16:35 [core.py:7]     g()
ERROR 11-18 14:16:35 [core.py:7] KeyError: 1
INFO 11-18 14:16:36 [core.py:7] leaving
"""
TERMINATE = """\
terminate called after throwing an instance of 'std::out_of_range'
  what():  map::at
"""
FORMS = {
    LOGURU: ("ValueError", "shard 3 is empty", "/t/a.py:7"),
    RICH: ("ValueError", "shard 3 is empty", "/t/a.py:7"),
    SYNTAX: ("SyntaxError", "invalid syntax", "/t/a.py:7"),
    LOGGER: ("KeyError", "1", "/t/a.py:7"),
    TERMINATE: ("std::out_of_range", "map::at", None),
}


@pytest.mark.parametrize(
    ("text", "expected"), FORMS.items(), ids=["loguru", "rich", "syntax", "logger", "terminate"]
)
def test_every_form_of_an_exception_is_read(text, expected):
    (error,) = tracebacks(text)
    assert (error.error, error.message, error.users.at if error.users else None) == expected


def test_an_exception_group_is_read_with_what_is_in_it():
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/t/a.py", line 15, in <module>\n'
        "  | ExceptionGroup: unhandled errors (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/t/a.py", line 7, in load\n'
        "    | ValueError: shard 0 is corrupt\n"
        "    +------------------------------------\n"
    )
    (group,) = tracebacks(text)
    assert [part.error for part in group.chain] == ["ValueError", "ExceptionGroup"]


BATCH = "for w in dist.batch_isend_irecv([P2POp(dist.isend, x, 1), P2POp(dist.irecv, y, 2)]): w.wait()"
RECV_LATE = "RuntimeError: [h/x.cc:78] Timed out waiting 5000ms for recv operation to complete"


def test_a15_who_left_after_its_own_calls_is_not_blamed_for_messages_without_their_other_half(tmp_path):
    waits = [traceback(rank, 7, BATCH, GLOO_LOST) for rank in (1, 2)]
    found = said(folder(tmp_path / "batch", "done 0\n", *waits))
    assert found.sentence == (
        "Ranks 1 and 2 stood in wait at /t/a.py:7 for a message without its other half; rank 0 had left."
    )
    assert found.lines[0].startswith("/t/a.py:7")
    assert found.cause.where == {}
    assert found.check_first.startswith("peer and tag of that line")
    assert any("whether rank 0 ended well" in question for question in found.unknown)
    both = [
        traceback(0, 7, "dist.recv(x, 1 - rank)", GLOO_LOST, inside="recv"),
        traceback(1, 7, "dist.recv(x, 1 - rank)", RECV_LATE, inside="recv"),
    ]
    found = said(folder(tmp_path / "recv", *both, "done 2\n", console=report(1, r0=1, r1=1)))
    assert found.sentence.endswith("for a message that never came; rank 2 had ended with code 0.")
    assert found.check_first.startswith("do both receive first?")
    assert "rank 2" not in found.check_first  # their lines name each other
    lines = [both[0].replace("1 - rank", "other"), both[1].replace("1 - rank", "other")]
    found = said(folder(tmp_path / "other", *lines, "done 2\n", console=report(1, r0=1, r1=1)))
    assert "did rank 2 begin it with isend, and leave before its `wait()`?" in found.check_first


def test_a15_two_that_receive_from_each_other_do_not_wait_for_one_that_ended_well(tmp_path):
    both = [traceback(rank, 7, "dist.recv(x, 1 - rank)", RECV_LATE, inside="recv") for rank in (0, 1)]
    found = said(folder(tmp_path, *both, "done 2\n", console=report(0, r0=1, r1=-15)))
    assert found.cause.error_type == "Unmatched"
    assert found.cause.where == {}
    assert found.sentence.endswith("for a message that never came; rank 2 had ended with code 0.")
    assert found.check_first.startswith("do both receive first?")


@pytest.mark.parametrize("line", ["dist.recv(x, 0, tag=2)", "dist.send(x, 0)"])
def test_a15_two_in_messages_are_not_said_to_wait_for_a_third_whose_end_no_report_tells(tmp_path, line):
    call = line[5:9]
    halves = [
        traceback(0, 6, "dist.send(x, 1, tag=1)", RECV_LATE.replace("recv", "send"), inside="send"),
        traceback(1, 7, line, RECV_LATE.replace("recv", call), inside=call),
    ]
    found = said(folder(tmp_path, *halves, "done 2\n"))
    assert (found.cause.error_type, found.cause.where) == ("Unmatched", {})
    assert found.sentence.endswith("; rank 2 left no word.")
    (of_rank_2,) = [question for question in found.unknown if "whether rank 2 ended well" in question]
    assert "give a file with what the console showed" in of_rank_2
    assert [wait.waits_for for wait in found.waits] == [(1,), (0,)]  # as their lines say
    assert "isend, and leave" not in found.check_first


def test_a15_all_in_the_wait_of_messages_are_asked_for_their_peers(tmp_path):
    waits = [traceback(rank, 7, BATCH, RECV_LATE) for rank in (0, 1)]
    found = said(folder(tmp_path, *waits))
    assert found.cause.error_type == "Unmatched"
    assert found.check_first.startswith("peer and tag of that line")
    assert "DETAIL" not in found.text


def test_a15_a_wait_that_may_be_a_collectives_blames_nobody(tmp_path):
    found = said(folder(tmp_path, traceback(0, 7, "handle.wait()", GLOO_LOST), "done 1\n"))
    assert found.cause.where == {}
    assert found.lines[0].startswith("/t/a.py:7")
    assert found.check_first.startswith("of an isend or irecv: peer and tag")
    assert "which call made the handle that was waited for" in found.unknown


def test_a16_a_barrier_of_the_others_is_not_the_line_of_a_rank_that_was_sent_too_much(tmp_path):
    aborted = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at gloo/pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 32\n"
    )
    rest = [traceback(rank, 64, "dist.barrier()", GLOO_LOST, inside="barrier") for rank in (0, 2)]
    found = said(folder(tmp_path, rest[0], aborted, rest[1], console=report(1, r0=1, r1=-6, r2=1)))
    assert found.cause.rank == 1
    assert found.text.startswith("Rank 1 was sent a message of 64 bytes where it expected 32")
    assert "in which call it was: ranks 0 and 2 were in barrier" in found.unknown
    assert found.check_first.startswith("start with PYTHONFAULTHANDLER=1")


def test_a17_what_a_rank_alone_printed_is_shown_where_only_symptoms_are_left(tmp_path):
    """It had passed over an exception of its own, and left out one collective."""
    ends = [traceback(rank, 220, "dist.barrier()", RECV_LATE, inside="barrier") for rank in range(3)]
    begun = "[W1128 10:30:00 socket.cpp:{}] noise\nepoch 1\n"
    words = [
        f"{begun.format(rank)}{own}"
        for rank, own in enumerate((f"skip {RECV_LATE}\n", "skip bad batch\n", ""))
    ]
    found = said(folder(tmp_path, *(word + end for word, end in zip(words, ends, strict=True))))
    assert found.cause.error_type == "OnlySymptoms"
    assert found.seen[-2:] == ("rank 1 alone printed last:", "  skip bad batch")
    assert "epoch 1" not in found.text
    assert "noise" not in found.text
    assert found.check_first.startswith("did a rank that printed something else pass over an exception")


def test_a18_who_raised_the_same_itself_waits_for_nobody(tmp_path):
    error = "ValueError: Global rank 0 is not part of group"
    both = [
        traceback(rank, 242, "dist.broadcast(x, 0, group=g)", error, inside="broadcast") for rank in (1, 2)
    ]
    found = said(folder(tmp_path, traceback(0, 243, "dist.barrier()", GLOO_LOST, inside="barrier"), *both))
    assert found.sentence.endswith("So did rank 2.")
    assert [(wait.rank, wait.waits_for) for wait in found.waits] == [(0, (1,))]
    assert "rank 2, in broadcast at /t/a.py:242: ValueError" in found.text


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGBUS", "SIGABRT", "SIGILL"])
def test_a19_a_crash_without_a_stack_gets_the_advice_that_shows_its_line(tmp_path, name):
    crashed = -signal.Signals[name]
    console = report(1, r0=-15, r1=crashed, r2=-15)
    advice = "start with PYTHONFAULTHANDLER=1"
    found = said(folder(tmp_path / "silent", "", "", "", console=console))
    assert found.sentence.startswith(f"Rank 1 was killed by {name}")
    assert found.check_first.startswith(advice)  # its log is empty, and tells nothing
    found = said(folder(tmp_path / "spoke", "", "loading the library\n", "", console=console))
    assert found.check_first.startswith(f"the end of its log; {advice}")
    stack = (
        "Fatal Python error: it crashed\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/t/a.py", line 8 in load\n'
    )
    found = said(folder(tmp_path / "shown", "", stack, "", console=console))
    assert advice not in found.check_first
    assert found.cause.source == "/t/a.py:8"


def test_a20_a_rank_that_left_before_its_group_is_told_from_one_that_was_never_started(tmp_path):
    error = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/1"
    waiting = [traceback(rank, 14, "dist.init_process_group()", error, prefix="") for rank in (0, 2)]
    console = report(0, r0=1, r2=1)
    left = said(folder(tmp_path / "left", waiting[0], "", waiting[1], console=console))
    assert left.cause.rank == 1
    assert "it had ended with code 0: torchrun's report lists the others only" in left.sentence
    assert left.check_first.startswith("which path of this rank ends the program early")
    # Without the report, or where the rank has no log, it may never have been started.
    for place, texts, said_by in (("a", (waiting[0], "", waiting[1]), ""), ("b", (waiting[0],), console)):
        unsure = said(folder(tmp_path / place, *texts, console=said_by))
        assert unsure.cause.rank == 1
        assert "ended with code 0" not in unsure.sentence
        assert unsure.check_first.startswith("was it started, with this MASTER_ADDR")
        assert unsure.check_first.endswith("did it end before it came there?")


AGENT = "/site-packages/torch/distributed/elastic/agent/server/api.py"
KILLED_KERNEL = (
    f"W1128 15:26:36.525000 17589 {AGENT}:753] Received 2 death signal, shutting down workers\n"
    "W1128 15:26:36.527000 17589 /x/api.py:1028] Sending process 17592 closing signal SIGINT\n"
    f'Traceback (most recent call last):\n  File "{AGENT}", line 745, in run\n'
)


def test_a21_torchruns_own_traceback_is_no_ranks_also_where_it_is_cut_off(tmp_path):
    for cut in (KILLED_KERNEL, KILLED_KERNEL.partition("Traceback")[0]):
        found = said(folder(tmp_path / str(len(cut)), "", "rank 1\n", "", console=cut))
        assert found.cause.error_type == "Stopped", found.text
        assert found.sentence.startswith("torchrun was ended from outside by SIGINT; no rank failed before")
        assert AGENT not in found.text
    alone = KILLED_KERNEL[KILLED_KERNEL.index("Traceback") :]
    found = said(folder(tmp_path / "alone", "", "", "", console=f"{alone}torch/distributed/\n"))
    assert found.sentence.startswith("The traceback of torchrun itself is cut off before its error")
    assert found.cause.where == {}
