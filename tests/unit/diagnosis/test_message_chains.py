"""Rank 0 feeds rank 1 by messages; ranks 1 and 2 have a group: the end of the chain is named."""

from __future__ import annotations

import linecache

import pytest
from made_logs import GLOO_LOST, folder, report, said, traceback

from ppwork.diagnosis import source_numbers
from ppwork.diagnosis.call_texts import is_of_all_ranks
from ppwork.diagnosis.ended_ranks import INTERRUPTED
from ppwork.diagnosis.source_numbers import Numbers, peer_in_line, tag_in_line
from ppwork.diagnosis.stacks import Frame

SEND, RECV = "if rank == 0: dist.send(x, 1); dist.recv(x, 1)", "if rank == 1: dist.recv(x, 0)"
BROADCAST = "dist.broadcast(x, 1, group=mesh)"


def late(call):
    half = "send" if call == "send" else "recv"
    return f"RuntimeError: [h/x.cc:78] Timed out waiting 6000ms for {half} operation to complete"


def stood(rank, line, source, call, error=None):
    return traceback(rank, line, source, error or late(call), inside=call)


FEEDS = stood(0, 5, SEND, "send")
AWAITS_RESULT = stood(0, 5, SEND, "recv")
IN_BROADCAST = stood(1, 8, BROADCAST, "broadcast")


def waits(found):
    return {wait.rank: wait.waits_for for wait in found.waits}


def test_two_that_stood_in_different_calls_of_the_group_are_named_and_not_who_feeds_them(tmp_path):
    other = stood(2, 9, "dist.all_reduce(x, group=mesh)", "all_reduce")
    for sends in (FEEDS, AWAITS_RESULT):
        path = tmp_path / str(sends == FEEDS)
        found = said(folder(path, sends, IN_BROADCAST, other, console=report(0, r0=1, r1=1, r2=1)))
        assert found.cause.error_type == "CollectiveMismatch", found.text
        assert "rank 1 in broadcast at /t/a.py:8; rank 2 in all_reduce at /t/a.py:9" in found.sentence
        assert not found.lines[0].startswith("/t/a.py:5")
        assert waits(found)[0] == (1,)
        assert 0 not in waits(found).get(1, ())
        assert 0 not in waits(found).get(2, ())


@pytest.mark.parametrize("silent", [False, True])
def test_who_may_have_sent_too_much_in_a_sum_of_the_mesh_is_told_where_it_is_one_rank(tmp_path, silent):
    """Rank 1 showed no line of its own, and was all that one heard of."""
    gloo = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    gloo += "  what():  [enforce fail at pair.cc:444] op.preamble.length <= op.nbytes. 512 vs 256\n"
    summed = stood(2, 9, "dist.all_reduce(x, group=mesh)", "all_reduce", GLOO_LOST)
    logs = [AWAITS_RESULT, gloo, summed, *([""] if silent else [])]
    found = said(
        folder(tmp_path, *logs, console=report(1, r1=-6, r0=1, r2=1, **({"r3": -15} if silent else {})))
    )
    twice = "512 bytes where it expected 256, twice as many, as of float64 for float32, and gloo aborted it."
    assert found.sentence == f"Rank 1 was sent a message of {twice}", found.text
    sender = "if in that all_reduce, rank 2 sent it, at /t/a.py:9"
    assert any(sender in each for each in found.unknown) != silent, found.text


@pytest.mark.parametrize("code", [-15, -9])
def test_a_rank_that_never_came_to_the_group_is_named_at_the_end_of_the_chain(tmp_path, code):
    job = folder(tmp_path, AWAITS_RESULT, IN_BROADCAST, "", console=report(0, r0=1, r1=1, r2=code))
    found = said(job)
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame"), found.text
    assert waits(found) == {0: (1,), 1: (2,)}
    assert ("SIGKILL" in found.sentence) == (code == -9)


def test_the_receiver_that_never_came_is_named_and_the_group_is_not_said_to_wait_for_the_sender(tmp_path):
    third = stood(2, 8, BROADCAST, "broadcast")
    found = said(folder(tmp_path, FEEDS, "", third, console=report(0, r0=1, r1=-15, r2=1)))
    assert (found.cause.rank, found.cause.error_type) == (1, "NeverCame"), found.text
    assert waits(found) == {0: (1,)}  # whether rank 0 is in the group of rank 2 no log tells
    assert "rank 2, in broadcast at /t/a.py:8" in found.text


def test_what_a_thread_of_the_rank_that_never_came_died_of_is_shown(tmp_path):
    died = traceback(2, 4, "f()", "RuntimeError: reader died", prefix="")
    died = f"Exception in thread Thread-1 (f):\n{died}"
    job = folder(tmp_path, AWAITS_RESULT, IN_BROADCAST, died, console=report(0, r0=1, r1=1, r2=-15))
    found = said(job)
    assert found.cause.rank == 2
    assert "in a thread or child: RuntimeError: reader died at /t/a.py:4" in found.text
    assert found.check_first.startswith("the error that its log had")


def test_a_rank_that_ended_well_before_the_group_was_done_is_named(tmp_path):
    first = stood(0, 5, SEND, "recv", GLOO_LOST)
    second = stood(1, 8, BROADCAST, "broadcast", GLOO_LOST)
    found = said(folder(tmp_path, first, second, "done\n", console=report(0, r0=1, r1=1)))
    assert (found.cause.rank, found.cause.error_type) == (2, "LeftEarly"), found.text
    assert waits(found) == {0: (1,), 1: (2,)}


def test_who_sends_to_a_rank_that_has_ended_well_is_asked_for_its_steps(tmp_path):
    found = said(folder(tmp_path, stood(0, 5, SEND, "send", GLOO_LOST), "", "", console=report(0, r0=1)))
    assert (found.cause.error_type, found.cause.where) == ("Unmatched", {}), found.text
    assert found.check_first.startswith("does rank 0 make more steps than ranks 1 and 2?")


@pytest.mark.parametrize("rest", [BROADCAST, "dist.barrier()"])
def test_a_collective_of_all_and_a_message_to_one_of_it_wait_for_each_other(tmp_path, rest):
    call = "barrier" if "barrier" in rest else "broadcast"
    job = folder(
        tmp_path,
        stood(0, 6, "dist.barrier()", "barrier"),
        stood(1, 7, RECV, "recv"),
        stood(2, 6 if call == "barrier" else 8, rest, call),
        console=report(1, r0=1, r1=1, r2=1),
    )
    found = said(job)
    assert (found.cause.rank, found.cause.where["peer"]) == (1, 0), found.text
    assert "rank 1 stood in recv at /t/a.py:7 for a message of rank 0 that never came" in found.sentence
    assert "which all ranks have to make" in found.sentence
    assert found.lines[0].startswith("/t/a.py:6")
    assert waits(found) == ({2: (1,)} if call == "barrier" else {})  # of the group no log tells


def test_two_senders_in_one_broadcast_of_the_group_do_not_agree_on_the_root(tmp_path):
    roots = [
        stood(rank, 8, "dist.broadcast(x, rank, group=mesh)", "broadcast", late("send")) for rank in (1, 2)
    ]
    found = said(folder(tmp_path, FEEDS, *roots))
    assert found.cause.where == {"rank": 1, "peer": 2}, found.text
    assert found.sentence == "Ranks 1 and 2 were in broadcast, and it did not end: each of them sent."
    assert "do they agree on the root" in found.check_first
    assert waits(found) == {0: (1,)}


def test_a_message_whose_line_names_no_peer_is_not_blamed_where_the_others_differ(tmp_path):
    first = stood(0, 5, "dist.send(x, dst=after)", "send")
    other = stood(2, 9, "dist.barrier(group=mesh)", "barrier")
    found = said(folder(tmp_path / "differ", first, IN_BROADCAST, other))
    assert found.cause.error_type == "CollectiveMismatch", found.text
    assert 0 not in {*waits(found)}
    found = said(folder(tmp_path / "agree", first, IN_BROADCAST, stood(2, 8, BROADCAST, "broadcast")))
    assert found.cause.error_type == "Unmatched"
    assert any("for whom it waited" in question for question in found.unknown)
    assert not found.waits


def test_two_that_name_each_other_are_asked_for_tags_and_for_lost_handles(tmp_path):
    first = stood(0, 5, "dist.send(x, 1, tag=4)", "send")
    found = said(
        folder(tmp_path / "tags", first, stood(1, 7, RECV, "recv"), IN_BROADCAST.replace("rank1", "rank2"))
    )
    assert found.check_first == "the tags: 4 on rank 0, 0 on rank 1"
    assert waits(found) == {}
    found = said(folder(tmp_path / "lost", FEEDS, stood(1, 7, RECV, "recv"), ""))
    assert "whose handle was not kept" in found.check_first, found.text


def test_a_message_to_a_rank_that_does_not_exist_is_told_from_one_that_was_not_started(tmp_path):
    error = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/9"
    first = stood(0, 5, "dist.send(x, 9)", "send", error)
    job = folder(tmp_path, first, stood(1, 7, RECV, "recv"), "", console=report(0, r0=1, r1=-15, r2=-15))
    found = said(job)
    assert (found.cause.rank, found.cause.error_type) == (0, "NoSuchRank")
    assert found.sentence == "Rank 0 was in send, and no rank 9 had joined."
    assert found.lines[0].startswith("/t/a.py:5")
    assert "started" not in found.check_first


def test_ranks_that_one_broadcast_sent_too_much_are_not_said_to_have_raised_it(tmp_path):
    longer = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
        "/g/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 8. Received data size "
        "doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
    )
    root = stood(0, 6, "dist.broadcast_object_list(names, 0)", "broadcast_object_list", GLOO_LOST)
    job = folder(tmp_path, root, longer, longer, console=report(1, r0=-15, r1=-6, r2=-6))
    found = said(job)
    assert found.sentence == (
        "Ranks 1 and 2 were sent a message of 16 bytes where they expected 8, and gloo aborted them."
    )
    assert found.lines[0].startswith("/t/a.py:6")
    assert found.check_first.startswith(
        "a broadcast: has its root a tensor, or a list of objects, like theirs?"
    )


def test_a_batch_that_only_receives_is_known_for_it(tmp_path):
    batch = "[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1 - rank)])]"
    both = [traceback(rank, 7, batch, late("recv")) for rank in (0, 1)]
    found = said(folder(tmp_path, *both, stood(2, 8, BROADCAST, "broadcast")))
    assert (found.cause.rank, found.cause.where["peer"]) == (0, 1), found.text
    assert found.check_first.startswith("do both receive first?")


def stage(rank, half, error=None, more=""):
    """A stage of a pipeline, in ``send`` to the next one or in ``recv`` of the one before."""
    source = f"dist.{half}(x, rank {'+' if half == 'send' else '-'} 1{more})"
    return stood(rank, 20 + (half == "send") + 2 * bool(more), source, half, error)


def test_stages_before_and_behind_two_that_do_not_meet_follow_from_them(tmp_path):
    behind = stage(2, "recv", more=", tag=7")
    found = said(folder(tmp_path, stage(0, "send"), stage(1, "send"), behind, stage(3, "recv")))
    assert (found.cause.rank, found.cause.where["peer"]) == (1, 2), found.text
    assert found.check_first == "the tags: 0 on rank 1, 7 on rank 2"
    assert waits(found) == {0: (1,), 3: (2,)}


def test_a_stage_that_left_out_a_message_and_one_that_waits_for_it_are_the_pair(tmp_path):
    barriers = [stood(rank, 30, "dist.barrier()", "barrier") for rank in (0, 1)]
    found = said(folder(tmp_path, *barriers, stage(2, "recv"), stage(3, "recv")))
    assert (found.cause.rank, found.cause.where["peer"]) == (2, 1), found.text
    assert waits(found) == {0: (2,), 3: (2,)}


def test_a_stage_that_never_came_is_named_and_each_other_one_waits_for_its_neighbour(tmp_path):
    job = folder(
        tmp_path, stage(0, "send"), stage(1, "send"), "", stage(3, "recv"),
        console=report(0, r0=1, r1=1, r2=-15, r3=1),
    )  # fmt: skip
    found = said(job)
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame"), found.text
    assert waits(found) == {0: (1,), 1: (2,), 3: (2,)}


def test_a_stage_that_ended_well_between_two_that_wait_for_it_left_early(tmp_path):
    lost = [stage(0, "send", GLOO_LOST), "done\n", stage(2, "recv", GLOO_LOST), stage(3, "recv", GLOO_LOST)]
    found = said(folder(tmp_path, *lost, console=report(0, r0=1, r2=1, r3=1)))
    assert (found.cause.rank, found.cause.error_type) == (1, "LeftEarly"), found.text


def test_peers_that_no_line_tells_blame_nobody(tmp_path):
    barriers = [stood(rank, 30, "dist.barrier()", "barrier") for rank in (0, 1)]
    halves = [stood(rank, 16, "dist.recv(x, src=before)", "recv") for rank in (2, 3)]
    found = said(folder(tmp_path / "recv", *barriers, *halves))
    assert found.cause.where == {}
    assert not found.waits
    handles = [traceback(rank, 41 + rank % 2, "work.wait()", late("recv")) for rank in range(3)]
    found = said(folder(tmp_path / "wait", *handles, stood(3, 50, "dist.all_reduce(x)", "all_reduce")))
    assert found.cause.where == {}, found.text
    assert "for whom ranks 0, 1 and 2 waited" in found.unknown
    assert not found.waits
    assert "`ppwork trace PROGRAM`" in found.check_first


def test_a_rank_in_code_of_its_own_is_named_and_not_those_that_wait_for_each_other(tmp_path):
    computes = traceback(2, 38, "x = heavy(x)", "KeyboardInterrupt")
    job = folder(
        tmp_path, stood(0, 22, "dist.recv(x)", "recv", "KeyboardInterrupt"),
        stood(1, 81, "dist.barrier()", "barrier", late("barrier")), computes,
    )  # fmt: skip
    found = said(job)
    assert found.cause.rank == 2, found.text
    assert found.lines[0].startswith("/t/a.py:38")


def test_who_waits_in_a_plane_waits_for_its_peer_and_not_for_the_rank_that_failed(tmp_path):
    """Their logs have the lines of the program alone, and none of ppwork."""
    result = traceback(0, 23, "result, good = plane.receive_result()", GLOO_LOST)
    failed = traceback(2, 9, "x[7]", "IndexError: index 7 is out of range")
    asks = traceback(1, 35, "for chunk in plane.chunks():", GLOO_LOST)
    found = said(folder(tmp_path, result, asks, failed, console=report(2, r0=1, r1=1, r2=1)))
    assert found.cause.rank == 2
    assert waits(found) == {0: (1,), 1: (0,)}


def test_of_a_job_that_was_interrupted_it_is_said_first_that_nothing_may_be_wrong(tmp_path):
    """Ranks of a healthy job are in different calls, too."""
    key = "KeyboardInterrupt"
    feeds = stood(0, 22, "dist.recv(x, 1)", "recv", key)
    sums = [stood(rank, 8, "dist.all_reduce(x, group=mesh)", "all_reduce", key) for rank in (1, 2)]
    apart = stood(2, 9, BROADCAST, "broadcast", key)
    for name, ranks in (("well", (feeds, *sums)), ("apart", (feeds, sums[0], apart))):
        found = said(folder(tmp_path / name, *ranks))
        assert found.sentence.startswith(f"{INTERRUPTED} If it stood still: "), found.text
        assert ("broadcast" in found.sentence) == (name == "apart")
        assert "errors about" not in found.text
    hung = said(folder(tmp_path / "hung", feeds, stood(1, 8, BROADCAST, "broadcast"), apart))
    assert "interrupted" not in hung.sentence, "a bound had passed before"


def test_what_gloo_says_of_an_abort_is_no_exception_of_the_rank(tmp_path):
    """torchrun saw another rank first, which C++ ended when it had lost the aborted one."""
    enforced = (
        "  what():  [enforce fail at x/pair.cc:456] op.preamble.length <= op.nbytes. 1152 vs 720. Received"
    )
    abort = f"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n{enforced}\n"
    lost = f"{stood(1, 57, 'dist.all_reduce(t, group=g)', 'all_reduce', GLOO_LOST)}terminate called\n"
    ranks = stood(0, 29, "dist.recv(mel, 1)", "recv", GLOO_LOST), lost, abort
    found = said(folder(tmp_path, *ranks, console=report(1, r0=1, r1=-6, r2=-6)))
    assert (found.cause.rank, found.cause.error_type) == (2, "SizeMismatch"), found.text
    assert found.sentence.startswith("Rank 2 was sent a message of 1152 bytes where it expected 720")


def test_what_the_logs_have_beside_the_calls_is_not_asked_for(tmp_path):
    server = stood(0, 22, "dist.recv(x)", "recv")
    barriers = [stood(rank, 30, "dist.barrier()", "barrier") for rank in (1, 2)]
    job = folder(tmp_path / "skipped", server, *barriers)
    (job / "x" / "attempt_0" / "2" / "stdout.log").write_text("round 2 skipped\n")
    assert "round 2 skipped" in said(job).text  # who recv is for, no line tells
    lost = [stage(0, "send", GLOO_LOST), "", stage(2, "recv", GLOO_LOST)]
    job = folder(tmp_path / "given", *lost, console="W1 torch/distributed/run.py:1 started\n")
    (how,) = [question for question in said(job).unknown if "whether rank 1 ended well" in question]
    assert "give a file" not in how
    longer = "gloo::EnforceNotMet: op.preamble.length <= op.nbytes. 32 vs 16.\n"
    found = said(folder(tmp_path / "longer", stage(0, "send", GLOO_LOST), longer, ""))
    assert "which rank sent it; rank 0 stood in a send to it" in found.unknown, found.text


@pytest.mark.parametrize(
    ("line", "call", "peer"),
    [
        ("if r == 0: dist.send(x, 1); dist.recv(x, 2)", "recv", 2),
        ("dist.send(f(x, (1, 2)), dst=3, tag=1)", "send", 3),
        ("dist.send(x, rank + 1)", "send", 2),
        ("dist.recv(x, src=(rank - 2) % world_size)", "recv", 3),
        ("dist.recv(x, (dist.get_rank() + 3) % dist.get_world_size())", "recv", 0),
        ("dist.recv(x, rank % 0)", "recv", None),
        ("dist.send(x, after)", "send", None),
        ("dist.send(x, peers[rank])", "send", None),
        ("dist.send(x, True)", "send", None),
        ("dist.send(x, 1); dist.send(y, 2)", "send", None),
        ("dist.send(x,", "send", None),
        ("dist.send(*args)", "send", None),
        ("dist.send(x, group_dst=1)", "send", None),
        ("dist.broadcast(x, 1)", "broadcast", None),
    ],
)
def test_peer_of_a_message_is_read_only_where_its_line_tells(line, call, peer):
    assert peer_in_line(line, call, Numbers(1, 4)) == peer


@pytest.mark.parametrize(
    ("line", "call", "is_of_all"),
    [
        ("dist.barrier()", "barrier", True),
        ("dist.barrier(mesh)", "barrier", False),
        ("dist.all_reduce(x.sum(), dist.ReduceOp.MAX)", "all_reduce", True),
        ("dist.all_reduce(x, dist.ReduceOp.MAX, mesh)", "all_reduce", False),
        ("dist.all_reduce(x, **how)", "all_reduce", False),
        ("dist.broadcast(x, 1, group=mesh)", "broadcast", False),
        ("dist.broadcast(x,", "broadcast", False),
        ("sync(x)", "all_reduce", False),
    ],
)
def test_collective_of_all_ranks_is_one_whose_line_gives_no_group(line, call, is_of_all):
    assert is_of_all_ranks(line, call) is is_of_all


PROGRAM = """\
me, n = dist.get_rank(), int(os.environ["WORLD_SIZE"])
after = (me + 1) % n
def give(x, other, tag=0):
    dist.send(x, other, tag=tag)
def main(other):
    either = 0
    either += 1
    before = me - 1
    give(x, before)
    give(x, other=after, tag=3)
    dist.send(x, either)
    dist.send(x, other)
    dist.send(x, self.peer)
class A:
    def __init__(self, first):
        self.peer = me - 2
        self.other = first
main(7)
next_one = 0
def start():
    global next_one
    next_one = me + 1
    dist.send(x, next_one)
    dist.send(x, group.rank())
"""


@pytest.mark.parametrize(
    ("lines", "peer", "tag"),
    [
        ((9, 4), 2, None),
        ((10, 4), 0, 3),
        ((11,), None, 0),
        ((18, 12), 7, 0),
        ((12,), None, 0),
        ((13,), 1, 0),
        ((23,), None, 0),
        ((24,), None, 0),
    ],
)
def test_numbers_are_counted_from_the_rank_through_names_and_calls_of_the_program(tmp_path, lines, peer, tag):
    program = tmp_path / "p.py"
    program.write_text(PROGRAM)
    texts = PROGRAM.splitlines()
    frames = [Frame(str(program), line, "f", texts[line - 1].strip()) for line in lines]
    numbers = Numbers(3, 4, frames)
    assert peer_in_line(frames[-1].text, "send", numbers) == peer
    assert tag_in_line(frames[-1].text, "send", numbers) == tag


def test_a_program_that_has_changed_or_is_none_is_not_read(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(PROGRAM.replace("\n", "\n\n"))
    for file in (str(program), "/dev/zero", str(tmp_path / "none.py")):
        numbers = Numbers(0, 4, [Frame(file, 11, "f", "give(x, other=after, tag=3)")])
        assert peer_in_line("dist.send(x, after)", "send", numbers) is None
        assert peer_in_line("dist.send(x, 1)", "send", numbers) == 1


def test_tag_is_zero_where_the_line_gives_none():
    numbers = Numbers(1, 4)
    assert tag_in_line("dist.send(x, 1)", "send", numbers) == 0
    assert tag_in_line("dist.send(x, 1, None, 7)", "send", numbers) == 7
    assert tag_in_line("dist.send(x, 1, tag=step)", "send", numbers) is None


def in_program(program, rank, line, call, error=None):
    """Where a rank stood in a program that is there."""
    source = program.read_text().splitlines()[line - 1].strip()
    return stood(rank, line, source, call, error).replace("/t/a.py", str(program))


LETS_GO = """\
if rank == 0:
    for k in range(3): dist.isend(x, 1)
elif rank == 1:
    time.sleep(2)
    dist.recv(x, 0)
dist.barrier()
"""


def test_a_message_whose_handle_nobody_keeps_is_shown_to_who_waits_for_it(tmp_path):
    program = tmp_path / "a.py"
    for number, text in enumerate((LETS_GO, LETS_GO.replace("dist.isend", "w = dist.isend"))):
        program.write_text(text)
        ranks = [
            in_program(program, 0, 6, "barrier"),
            in_program(program, 1, 5, "recv"),
            in_program(program, 2, 6, "barrier"),
        ]
        linecache.clearcache()
        source_numbers.program_of.cache_clear()
        found = said(folder(tmp_path / str(number), *ranks))
        assert found.cause.where == {"rank": 1, "peer": 0}, found.text
        lost = f"did rank 0 come to the isend at {program}:2? Nobody keeps its handle"
        assert found.check_first.startswith(lost) == (text == LETS_GO), found.text


def test_a_sender_is_asked_for_its_peer_if_another_rank_waits_for_that_message(tmp_path):
    ranks = [
        stood(0, 3, "dist.send(x, 1)", "send"),
        stood(1, 9, "dist.barrier()", "barrier"),
        stood(2, 5, "dist.recv(x, 0)", "recv"),
    ]
    found = said(folder(tmp_path, *ranks))
    asked = "the peer in rank 0's line: rank 2 waits for a message from it; else which branch"
    assert found.check_first.startswith(asked), found.text


def test_the_one_send_to_a_rank_that_gloo_aborted_is_shown(tmp_path):
    program = tmp_path / "a.py"
    program.write_text(
        "if rank == 0:\n    dist.send(x, 1)\nelif rank == 1:\n    dist.recv(y, 0)\ndist.barrier()\n"
    )
    longer = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    longer += "  what():  [x] op.preamble.length <= op.nbytes. 400 vs 16. "
    ranks = [
        in_program(program, 0, 5, "barrier", GLOO_LOST),
        longer,
        in_program(program, 2, 5, "barrier", GLOO_LOST),
    ]
    found = said(folder(tmp_path / "logs", *ranks, console=report(1, r0=1, r1=-6, r2=1)))
    assert f"the program has one send to it, at {program}:2" in found.text
    # Bytes may be a collective's, too: if a rank stands in one, that line is no hint.
    program.write_text(program.read_text().replace("dist.barrier()", "dist.all_reduce(x, group=g)"))
    source_numbers.program_of.cache_clear()
    ranks[2] = in_program(program, 2, 5, "all_reduce", GLOO_LOST)
    found = said(folder(tmp_path / "sum", *ranks, console=report(1, r0=1, r1=-6, r2=1)))
    assert "one send to it" not in found.text


DETECTED = "RuntimeError: Detected mismatch between collectives on ranks. "
PRINTED = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=73, OpType=ALLREDUCE, "
PRINTED += "TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float))"


@pytest.mark.parametrize("has_folder", [True, False])
def test_detail_counts_ranks_in_their_group_and_the_job_s_are_named(tmp_path, has_folder):
    """In a group of ranks 1 and 2 its rank 0 is rank 1; rank 0 of the job was blamed, which made no sum."""
    mine, theirs = PRINTED.format(0, 8), PRINTED.format(1, 2)
    logs = [
        AWAITS_RESULT,
        stood(1, 9, "dist.all_reduce(x, group=mesh)", "all_reduce", f"{DETECTED}{mine}, but {theirs}."),
        stood(2, 9, "dist.all_reduce(x, group=mesh)", "all_reduce", f"{DETECTED}{theirs}, but {mine}."),
    ]
    console = report(1, r0=1, r1=1, r2=1)
    if has_folder:
        found = said(folder(tmp_path, *logs, console=console))
    else:
        (tmp_path / "console.log").write_text("".join(logs) + console)
        found = said(tmp_path / "console.log")
    assert found.cause.error_type == "CollectiveMismatch", found.text
    assert "Rank 1 called ALLREDUCE number 73 on [8] Float where rank 2 called" in found.sentence, found.text


def test_the_line_of_another_rank_above_an_abort_says_whose_it_is(tmp_path):
    """The aborted rank had left just that call out."""
    longer = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    longer += "  what():  [x] op.preamble.length <= op.nbytes. 3648 vs 912. "
    ranks = ["", stood(1, 9, "dist.all_reduce(x, group=mesh)", "all_reduce", GLOO_LOST), longer]
    found = said(folder(tmp_path, *ranks, console=report(2, r0=-15, r1=1, r2=-6)))
    assert found.lines[0].startswith("/t/a.py:9")
    whose = "The line above is that of rank 1, in all_reduce; where rank 2 was, its log does not show."
    assert found.sentence.endswith(whose), found.text
    assert found.check_first.startswith("did rank 2 make that call?")


def test_a_rank_that_showed_no_stack_is_asked_for_its_steps_and_its_group(tmp_path):
    calls = [stood(rank, 9, "dist.all_reduce(x)", "all_reduce") for rank in (0, 2)]
    found = said(folder(tmp_path, calls[0], "", calls[1], console=report(0, r0=1, r1=-15, r2=1)))
    assert (found.cause.rank, found.cause.error_type) == (1, "NeverCame"), found.text
    assert "fewer steps, its group destroyed before" in found.check_first


def test_the_rank_that_no_sigterm_ended_is_asked_for_its_stop(tmp_path):
    job = folder(tmp_path, AWAITS_RESULT, "", "", console=report(0, r0=1, r1=-15, r2=-9))
    found = said(job)
    killed = "Rank 2 had to be killed (SIGKILL): no SIGTERM ended it, as of one that stands stopped."
    assert found.sentence.startswith(killed), found.text
    assert found.check_first.startswith("who stopped rank 2 (SIGSTOP)?")
    both = said(folder(tmp_path / "both", AWAITS_RESULT, "", "", console=report(0, r0=1, r1=-9, r2=-9)))
    assert "stands stopped" not in both.sentence
    said_of_both = "The cause is not in these logs: rank 0 was in recv, and only waited longest for a message"
    assert both.sentence.startswith(said_of_both), both.text
    assert both.lines == ()


def test_who_stands_in_a_message_is_asked_for_in_the_group_of_a_sum_that_does_not_end(tmp_path):
    """A sum without `group=` waits for rank 0, too; a helper's line does not show which group it has."""
    line = "dist.all_reduce(x, group=group)"
    sums = [stood(rank, 9, line, "all_reduce") for rank in (1, 2)]
    found = said(folder(tmp_path, AWAITS_RESULT, *sums, console=report(0, r0=1, r1=1, r2=1)))
    assert found.cause.error_type == "OnlySymptoms", found.text
    asked = "is rank 0, which was in recv, in the group of that all_reduce, as without `group=`?"
    assert found.check_first.startswith(asked)


def test_ranks_that_showed_nothing_are_sent_to_the_tool_that_sees_their_calls(tmp_path):
    found = said(folder(tmp_path, AWAITS_RESULT, "", "", console=report(0, r0=1, r1=-15, r2=-15)))
    assert found.check_first.startswith("`ppwork trace --nproc N PROGRAM` runs it"), found.text
    asked = "; with a shorter timeout of their own group ranks 1 and 2 would speak first"
    assert found.check_first.endswith(asked), found.text


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "ValueError: Default process group has not been initialized, please",
            "a destroy_process_group before",
        ),
        ("ValueError: ... environment variable RANK expected, but not set", "start it with torchrun"),
        ("DistBackendError: Duplicate GPU detected : rank 1 and rank 0", "torch.cuda.set_device"),
    ],
)
def test_texts_of_torch_whose_first_check_is_known_have_it(tmp_path, error, advice):
    found = said(folder(tmp_path, traceback(0, 4, "f()", error), console=report(0, r0=1)))
    assert found.check_first.startswith(advice), found.text
