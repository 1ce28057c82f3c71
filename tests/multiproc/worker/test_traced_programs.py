"""Calls of real programs on real ranks: all are recorded, and where ranks stand is said."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from checkout import SUPPORT
from hanging.said import SAID
from plain_torchrun import torchrun

import ppwork as pp
from ppwork.diagnosis.program_waits import program_waits
from ppwork.process import PAST_LIMIT
from ppwork.records.calls import read_calls
from ppwork.timeline.meetings import Meetings
from ppwork.worker.trace import VARIABLE

pytestmark = pytest.mark.multiproc

TRACED = SUPPORT / "traced"
WELL = ("p2p", "handles", "batched", "collectives", "asynchronous", "objects", "groups", "ddp", "dtensor",
        "functional", "threads", "caught")  # fmt: skip
OTHERS = ("ring_sum", "by_hand", "tensor_parallel", "sharded", "gpipe", "one_f_one_b", "halo", "split_batch")
OWN_LINE = "import ppwork.worker.traced\n"


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """All programs that end well, one after the other on two ranks."""
    out = tmp_path_factory.mktemp("counted") / "run"
    return pp.launch_script(TRACED / "counted.py", nproc=2, arguments=(*WELL, *OTHERS), out=out)


def recorded(run, rank: int) -> dict[str, Counter[str]]:
    """Calls by program; a wait belongs to the program of its handle."""
    of_rank = read_calls(run.run_dir)[rank]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for call in of_rank.calls:
        counts[Path(of_rank.origin(call).begun.site.rpartition(":")[0]).stem][call.name] += 1
    return counts


@pytest.mark.parametrize("program", [*WELL, *OTHERS])
def test_calls_recorded_are_the_calls_made(counted, program):
    for rank in range(2):
        line = next(line for line in counted.printed(rank).splitlines() if line.startswith("@made"))
        made = Counter(json.loads(line.removeprefix("@made"))[program])
        assert made
        assert recorded(counted, rank)[program] == made


def test_every_message_and_collective_has_all_its_ends(counted):
    met = Meetings(read_calls(counted.run_dir))
    assert program_waits(met) is None
    assert len([m for m in met.messages if m.sent.call.line.partition(".")[0] in WELL]) == 5 + 6 + 4 + 1
    assert all(message.sent is not None and message.received is not None for message in met.messages)
    alone = [meeting for meeting in met.meetings if len(meeting.members) == 1]
    assert [meeting.name for meeting in alone] == ["all_reduce"]
    assert not [meeting for meeting in met.meetings if meeting.missing]
    assert all(loan.wait is not None for loan in met.loans)


LETS_GO = """\
import datetime, time
import torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
if dist.get_rank() == 0:
    handles = [dist.isend(torch.ones(4), 1) for _ in range(2)]
    del handles[0]
dist.barrier()  # the receiver comes when the message is given up
if dist.get_rank() == 0:
    handles[0].wait()
else:
    dist.recv(torch.ones(4), 0)
"""


def test_a_handle_that_is_let_go_ends_its_loan_then_and_the_lost_message_is_named(tmp_path):
    (tmp_path / "lets_go.py").write_text(LETS_GO)
    run = pp.launch_script(tmp_path / "lets_go.py", nproc=2, check=False, out=tmp_path / "run")
    met = Meetings(read_calls(run.run_dir))
    first, second = (loan for loan in met.loans if loan.call.rank == 0)
    wait = next(call for call in met.ranks[0].calls if call.name == "wait")
    assert second.wait is wait
    assert first.wait is None
    assert first.call.end_ns < first.dropped_ns < wait.start_ns
    assert (
        "Rank 0 let go of the handle of the first isend (lets_go.py:6) and waits for the second"
        in run.failure.what
    )
    assert run.failure.check_first.startswith("keep the handle until its wait")


@pytest.mark.parametrize(
    ("program", "ranks", "said"),
    [
        ("parted", 2, "Collective 7 of default_pg: rank 0 all_reduce SUM float32[4] (parted.py:13), "
                      "rank 1 broadcast float32[4] root 0 (parted.py:16)."),
        ("left", 3, "Rank 2 waits for nobody: its program came to its end, "
                    "after all_reduce SUM float32[4] at left.py:9."),
        ("ring", 3, "Ranks 0, 1 and 2 wait for each other: rank 0 in recv float32[4] from 2 at ring.py:11,"),
        ("sizes", 2, "A send of float32[4] (rank 0, sizes.py:8) met a receive of float32[2] "
                     "(rank 1, sizes.py:10)."),
    ],
)  # fmt: skip
def test_a_program_that_does_not_end_says_where_its_ranks_stand(tmp_path, program, ranks, said):
    run = pp.launch_script(TRACED / f"{program}.py", nproc=ranks, out=tmp_path / "run", check=False)
    assert said in pp.pictures.program(run).finding
    table = str(pp.pictures.program(run).table)
    assert "raised" in table or "never came back" in table


@pytest.mark.parametrize("program", ["left_out_group", "circle", "other_source", "two_orders"])
def test_of_a_program_that_hangs_who_where_and_why_are_said_by_the_picture_and_by_the_error(
    tmp_path, program
):
    hanging = SUPPORT / "hanging" / "programs.py"
    run = pp.launch_script(hanging, nproc=3, arguments=(program,), out=tmp_path / "run", check=False)
    finding = pp.pictures.program(run).finding
    for words in SAID[program]:
        assert words in finding
        assert words in run.failure.headline


def test_ranks_that_are_killed_at_their_limit_leave_the_call_they_stand_in(tmp_path):
    run = pp.launch_script(TRACED / "tags.py", nproc=2, out=tmp_path / "run", check=False, limit_s=12.0)
    assert run.exit_code == PAST_LIMIT
    ranks = read_calls(run.run_dir)
    assert [of_rank.left for of_rank in ranks.values()] == [None, None]
    assert [of_rank.stands_in.line for of_rank in ranks.values()] == ["tags.py:10", "tags.py:12"]
    assert "Rank 0 sent tag 3 (tags.py:9), rank 1 awaited tag 4 (tags.py:12)." in run.failure.what
    assert "never came back" in str(pp.pictures.program(run).table)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mesh", ["rank 0 waits for rank 1: plane.receive_result from 1 at in_planes.py:19",
                  "rank 1 waits for rank 2: all_reduce SUM int64[4] on tp_pg 2 at in_planes.py:24",
                  "rank 2 waits for nobody: in code of its own, "
                  "after plane.receive from 1 at in_planes.py:21"]),
        ("join", ["rank 0 waits for ranks 1 and 2: join with 1, 2 at in_planes.py:15",
                  "rank 1 waits for ranks 0 and 2: join with 0, 2 at in_planes.py:15",
                  "rank 2 waits for nobody: in code of its own, before its first call"]),
    ],
)  # fmt: skip
def test_a_wait_in_a_plane_is_a_wait_for_its_peer_and_what_lanes_receive_ahead_is_none(tmp_path, where, said):
    run = pp.launch_script(
        TRACED / "in_planes.py", nproc=3, arguments=(where,), out=tmp_path / "run", check=False
    )
    end = program_waits(Meetings(read_calls(run.run_dir)))
    assert end.lines == said
    assert end.rank == 2


def test_a_line_of_import_records_under_a_torchrun_of_ones_own(tmp_path):
    program = tmp_path / "mine.py"
    body = (TRACED / "asynchronous.py").read_text()
    start = body.index("x, y")
    program.write_text(
        f'{body[:start]}{OWN_LINE}dist.init_process_group("gloo")\n{body[start:]}dist.destroy_process_group()\n'
    )
    torchrun(2, program, **{VARIABLE: str(tmp_path / "calls")})
    names = [call.name for call in read_calls(tmp_path / "calls")[1].calls]
    assert names == ["init_process_group", "all_reduce", "broadcast", "wait", "wait", "barrier", "wait",
                     "destroy_process_group"]  # fmt: skip


def test_a_name_that_is_taken_away_is_not_replaced_and_the_abort_of_a_group_is_a_call(tmp_path):
    program = tmp_path / "older.py"
    program.write_text(
        "import torch.distributed as dist\n"
        'dist.init_process_group("gloo")\n'
        "dist.barrier()\n"  # an abort before the other has connected leaves it waiting
        'vars(dist).pop("all_gather_into_tensor" if dist.get_rank() else "send")\n'
        "dist.recv = print\n"
        "dist.group.WORLD.abort()\n"
        "dist.destroy_process_group()\n"
    )
    run = pp.launch_script(program, nproc=2, out=tmp_path / "run")
    ranks = read_calls(run.run_dir)
    assert [of_rank.left.replaced for of_rank in ranks.values()] == [("recv",), ("recv",)]
    aborted = [(call.name, call.begun.group) for call in ranks[1].calls if call.name == "abort"]
    assert aborted == [("abort", "default_pg")]


def test_operators_are_recorded_where_that_is_asked_for_and_compiled_code_runs_as_it_would(tmp_path):
    def names(ops: bool) -> Counter[str]:
        out = tmp_path / ("ops" if ops else "plain")
        run = pp.launch_script(TRACED / "operators.py", nproc=2, out=out, ops=ops)
        ranks = read_calls(run.run_dir)
        assert program_waits(Meetings(ranks)) is None
        helpers = [call for call in ranks[0].calls if call.begun.thread]
        assert [call.line for call in helpers] == ["operators.py:16"]  # no line of Python's threading
        return Counter(call.name for call in ranks[0].calls)

    plain, ops = names(ops=False), names(ops=True)
    assert not [name for name in plain if "::" in name]
    assert plain["wait"] == 2
    assert not plain - ops
    more = ops - plain
    assert more.pop("_c10d_functional::wait_tensor") >= 2  # torch waits again where it is not sure
    assert more == {"c10d::allreduce_": 1 + 1, "c10d::send": 1, "_c10d_functional::all_reduce": 2}


def test_a_program_that_is_not_to_be_recorded_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    run = pp.launch_script(TRACED / "left.py", nproc=2, out=tmp_path / "run")
    assert read_calls(run.run_dir) == {}
    assert "<img" not in run._repr_html_()
