"""Our planes and stages in a program of one's own: what it leaves, and what it says when it ends wrongly."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time

import pytest
from checkout import EXAMPLES, ROOT, SUPPORT
from plain_torchrun import torchrun, torchrun_to_its_end
from waiting import wait_for

import ppwork as pp
from ppwork.diagnosis.report import killed_by_us
from ppwork.launcher.standing import diagnose_any
from ppwork.pictures.timelines import timeline_files
from ppwork.process import STUCK
from ppwork.records.clocks import clock_names, host_of
from ppwork.records.failure import read_records
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import span_file

pytestmark = pytest.mark.multiproc


def test_the_example_leaves_a_run_that_the_notebook_side_reads(tmp_path):
    (said,) = torchrun(3, EXAMPLES / "prototype.py", tmp_path / "run", folder=tmp_path)
    total = 4 * sum(10 * k + k + 1 for k in range(6))
    assert ast.literal_eval(said) == {"total": total}
    run = pp.open(str(tmp_path / "run"))
    assert (run.summary["chunks"], run.summary["figures"]["total"]) == (6, total)
    assert run.summary["plan"]["in_flight_depth"] == 2
    assert "Nothing failed" in pp.diagnose(run.run_dir).text
    assert "mean" in timeline_files(run.plan, run.entries_by_rank, "mine")["timeline.txt"].decode()
    assert read_records(run.run_dir, 3) == []
    assert not list(run.run_dir.glob("stacks-*"))


ELSEWHERE = ["unshare", "-r", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "-"]
START = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def can_have_another_name() -> bool:
    try:
        return subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_another_name = pytest.mark.skipif(
    not can_have_another_name(), reason="this kernel or user may not give a host a name"
)


@needs_another_name
def test_hosts_that_share_a_file_system_share_the_folder(tmp_path, start_ranks):
    """The second host's first rank would find it taken, and refuse it on every rank."""
    here = [str(EXAMPLES / "prototype.py"), str(tmp_path / "run")]
    there = ["-c", START, *ELSEWHERE, sys.executable, *here]
    assert start_ranks([here, there, there]).wait(60) == [0, 0, 0]
    run = pp.open(tmp_path / "run")
    hosts = {rank: host_of(name) for rank, name in clock_names(run.entries_by_rank).items()}
    assert hosts == {0: os.uname().nodename, 1: "elsewhere", 2: "elsewhere"}
    assert run.summary["chunks"] == 6


@needs_another_name
def test_a_folder_that_is_taken_on_another_host_is_refused_on_every_rank(tmp_path, start_ranks, capfd):
    """What a run before left there would be read as this one's."""
    program = str(EXAMPLES / "prototype.py")
    left = tmp_path / "there" / "failure-rank2.json"
    left.parent.mkdir()
    left.write_text("of a run before")
    here = [program, str(tmp_path / "here")]
    there = ["-c", START, *ELSEWHERE, sys.executable, program, str(left.parent)]
    assert start_ranks([here, here, there]).wait(60) == [1, 1, 1]
    said = capfd.readouterr().err
    words = "exists and is not empty; nothing was overwritten. That is on elsewhere, where rank 2 runs."
    told = re.findall(rf"^\[rank(\d)\]: \S*PlanError: .*{re.escape(words)}", said, re.MULTILINE)
    assert {*told} == {*"012"}, said
    assert left.read_text() == "of a run before"
    assert names_in(tmp_path / "here") == ["refused.json"]


def names_in(folder):
    return [path.name for path in folder.iterdir()] if folder.exists() else []


BAD = 4
LINES = {
    f"# {mark[1]}": f"{name}:{number}"
    for name in ("bad_loops.py", "left_loops.py")
    for number, line in enumerate((SUPPORT / name).read_text().splitlines(), 1)
    if (mark := re.search(r"  # ([A-Z]+)(?:$|:)", line)) is not None
}
WRONG_ENDS = {
    "rank 0 returns": (0, "The block was left without `shutdown()`, at chunk 1.", LINES["# TAKES"]),
    "rank 0 exits": (0, "The block was left by sys.exit without `shutdown()`.*", LINES["# EXIT"]),
    "rank 0 is slow": (0, "The loop made no call of the plane for 2 s.", LINES["# SLOW"]),
    "leader returns": (1, "The block was left without `acknowledge()`, at chunk 1.", LINES["# GIVES"]),
    "no answer": (1, "Chunk 1 was received, and no result was sent for it.", ""),
    "no acknowledgement": (
        1,
        "The block was left without `acknowledge()`, at chunk 2.",
        LINES["# HEARS"],
    ),
}


@pytest.mark.parametrize("case", WRONG_ENDS)
def test_a_loop_that_ends_wrongly_is_named_on_the_rank_that_left(tmp_path, start_ranks, case):
    rank, what, line = WRONG_ENDS[case]
    run_dir = tmp_path / "run"
    codes = start_ranks([[str(SUPPORT / "left_loops.py"), case, str(run_dir)]] * 2).wait()
    assert codes[rank] in (1, STUCK)  # Python's own, or the watchdog's
    causes = [record for record in read_records(run_dir, 2) if not record.symptom]
    assert [record.rank for record in causes] == [rank]
    assert re.fullmatch(what.replace("()", r"\(\)"), causes[0].what)
    assert causes[0].where["role"] == ("stage0", "leader")[rank]
    assert causes[0].source.endswith(line)


def test_a_rank_that_stands_stopped_is_killed_by_the_peer_that_leaves_for_it(tmp_path):
    """torchrun waited 30 s for it: SIGTERM does not reach a stopped process."""
    run_dir = tmp_path / "run"
    ended = torchrun_to_its_end(2, SUPPORT / "left_loops.py", "rank 0 is stopped", run_dir)
    assert ended.code == 1
    stood_s = time.time() - (run_dir / "stopped").stat().st_mtime
    assert stood_s < 15.0
    (record,) = read_records(run_dir, 2)
    assert (record.rank, record.error_type, record.where["peer"]) == (1, "PeerFrozenError", 0)
    assert killed_by_us(ended.errors) == {0}
    assert read_pulse(run_dir, 0).process() is None
    console = tmp_path / "console.log"
    console.write_text(ended.errors)
    for given in ([run_dir], [console], [run_dir, console]):
        assert "was stopped (SIGSTOP)" in diagnose_any(given).text.replace("stood stopped", "was stopped"), (
            given
        )


def test_a_start_that_is_refused_leaves_only_its_reason_and_the_next_one_may_use_the_folder(
    tmp_path, start_ranks, capfd
):
    """The corrected command was refused once: ``plan.json`` was there, of a run that had never begun."""
    run_dir = tmp_path / "run"
    assert start_ranks([[str(SUPPORT / "left_loops.py"), "", str(run_dir)]] * 3).wait() == [1, 1, 1]
    assert names_in(run_dir) == ["refused.json"]
    _, *shown = capfd.readouterr().err.split("Traceback (most recent call last):\n")
    assert len(shown) >= 3
    assert all(re.search(r"^\S*( \S*)?Error: ", text, re.MULTILINE) for text in shown)  # each in one piece
    assert all(
        "left_loops.py" in text and "ppwork/worker" not in text for text in shown
    )  # their line, not ours
    assert all(re.search(r"^(\[rank\d\]: )?  check first: ", text, re.MULTILINE) for text in shown)
    found = pp.diagnose(run_dir)
    assert found.text.startswith(f"No run began in {run_dir}: its start was refused. ")
    assert found.cause.error_type in "".join(shown)
    assert found.cause.what.partition("refused. ")[2] in "".join(shown)
    assert start_ranks([[str(SUPPORT / "left_loops.py"), "rank 0 returns", str(run_dir)]] * 2).wait() != [
        0,
        0,
    ]
    assert "refused.json" not in names_in(run_dir)
    assert pp.diagnose(run_dir).cause.what == WRONG_ENDS["rank 0 returns"][1]


def test_a_misspelt_field_of_the_plan_is_shown_by_its_line_and_what_was_meant(tmp_path, start_ranks, capfd):
    program = tmp_path / "mine.py"
    program.write_text("from ppwork.ranks import Plan\nplan = Plan(mesh_size=1, stal_s=5.0)\n")
    assert start_ranks([[str(program)]] * 2).wait() == [1, 1]
    shown = capfd.readouterr().err
    each = f'  File "{program}", line 2, in <module>\n    plan = Plan(mesh_size=1, stal_s=5.0)\n'
    each += "ppwork.errors.PlanError: A Plan has no field 'stal_s'.\n  check first: did you mean 'stall_s'?\n"
    assert shown.count(each) == 2, shown


def test_ranks_that_name_different_folders_are_told_both(tmp_path, start_ranks, capfd):
    """A folder named by the time: rank 2 failed with FileNotFoundError at its own file of spans."""
    folders = [tmp_path / "run", tmp_path / "run", tmp_path / "run-1"]
    commands = [[str(EXAMPLES / "prototype.py"), str(folder)] for folder in folders]
    assert start_ranks(commands).wait() == [1, 1, 1]
    said = f"The ranks have different run_dirs: rank 0 {folders[0]}, rank 2 {folders[2]}."
    assert capfd.readouterr().err.count(said) == 3


MAY_NOT_WRITE = ["-c", START, "setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]
"""Root that owns its files, and may not write into a folder that is not writable."""
WITHIN_S = 80
"""Below the time that a rank would wait that is not told, ``joins_twice.TIMEOUT_S``."""


@pytest.mark.skipif(os.getuid() != 0, reason="other users cannot write into a folder that is not writable")
def test_a_folder_that_one_rank_cannot_write_is_told_at_once_on_all_which_may_join_again(
    tmp_path, start_ranks, capfd
):
    """The others waited for its clock until their bound, and the process was refused its next join."""
    refused, another = tmp_path / "refused", tmp_path / "another"
    refused.mkdir(mode=0o555)
    command = [str(SUPPORT / "joins_twice.py"), str(refused), str(another)]
    assert start_ranks([command, [*MAY_NOT_WRITE, sys.executable, *command]]).wait(WITHIN_S) == [0, 0]
    shown = capfd.readouterr()
    path = span_file(refused, 1)
    for rank in range(2):
        told = [line for line in shown.out.splitlines() if line.startswith(f"[{rank}]")]
        assert told == [
            f"[{rank}] PlanError: Rank 1 cannot write {path}: Permission denied.",
            f"[{rank}] joined and left",
        ]
    assert names_in(refused) == ["refused.json"]
    assert span_file(another, 1).exists()


LOSES_ITS_PEER = """
import os
import torch.distributed as dist
from ppwork.ranks import Plan, PPWorkError, join
from ppwork.runtime import groups
if os.environ["RANK"] == "1":
    groups.warm_up = lambda *_: os._exit(7)
if os.environ["OF_A_JOB"]:
    dist.init_process_group("gloo", init_method=f"file://{os.environ['PPWORK_STORE']}-job",
                            rank=int(os.environ["RANK"]), world_size=2)
for _ in range(2):
    try:
        with join(Plan(mesh_size=1, backend="gloo", timeout_s=5.0)):
            print("joined", flush=True)
    except PPWorkError as error:
        print(type(error).__name__, error.what, dist.is_initialized(), flush=True)
"""


@pytest.mark.parametrize("of_a_job", ["", "yes"])
def test_a_start_that_lost_its_peer_leaves_no_group_and_no_session(tmp_path, start_ranks, capfd, of_a_job):
    """The next join was refused: its process was in a pipeline that it had not left, and never could."""
    program = tmp_path / "loses.py"
    program.write_text(LOSES_ITS_PEER)
    variables = {rank: {"OF_A_JOB": of_a_job} for rank in range(2)}
    assert start_ranks([[str(program)]] * 2, variables).wait() == [0, 7]
    lost, late = capfd.readouterr().out.splitlines()
    assert lost.startswith("PeerLostError")
    assert late.startswith("PeerTimeoutError Rank 1 did not come to `join`")
    assert lost.endswith(str(bool(of_a_job)))


LOSES_ITS_PEER_AT_THE_RECORDS = """
import os, sys
from pathlib import Path
from ppwork.ranks import Plan, PPWorkError, join
from ppwork.worker import user_job
if os.environ["RANK"] == "1":
    user_job._begin_records = lambda *_: os._exit(7)
folder = Path(sys.argv[1])
for run_dir in (folder, folder, None):
    try:
        with join(Plan(mesh_size=1, backend="gloo", timeout_s=2.0), run_dir=run_dir):
            print("joined", flush=True)
    except PPWorkError as error:
        print(type(error).__name__, error.what, [path.name for path in folder.glob("*")], flush=True)
"""


def test_a_start_that_lost_its_peer_at_the_records_may_be_made_again(tmp_path, start_ranks, capfd):
    """The groups stayed open behind it, and every later join of the process was refused."""
    program = tmp_path / "loses.py"
    program.write_text(LOSES_ITS_PEER_AT_THE_RECORDS)
    assert start_ranks([[str(program), str(tmp_path / "run")]] * 2).wait() == [0, 7]
    lost, *late = capfd.readouterr().out.splitlines()
    assert lost.startswith("PeerTimeoutError Rank 1 did not ")
    assert lost.endswith("['refused.json']"), "nothing of a run is there"
    assert [line.partition(" did not")[0] for line in late] == ["PeerTimeoutError Rank 1"] * 2


LOSES_ITS_PEER_AT_THE_CLOCKS = """
import sys
from pathlib import Path
from ppwork.ranks import Plan, PPWorkError, Stage0Plane, join
from ppwork.errors import PeerLostError
from ppwork.worker import user_job
settle = user_job.settle_clocks
def lost(*_):
    user_job.settle_clocks = settle
    raise PeerLostError("the other host is gone")
user_job.settle_clocks = lost
for name in ("first", "second"):
    try:
        plan = Plan(mesh_size=1, backend="gloo", timeout_s=20.0)
        with join(plan, run_dir=Path(sys.argv[1]) / name) as plane:
            print("joined", flush=True)
            plane.shutdown() if isinstance(plane, Stage0Plane) else [*plane.chunks()]
    except PPWorkError as error:
        print(type(error).__name__, error.what, flush=True)
"""


def test_a_start_that_lost_its_peer_at_the_clocks_may_be_made_again(tmp_path, start_ranks, capfd):
    program = tmp_path / "loses.py"
    program.write_text(LOSES_ITS_PEER_AT_THE_CLOCKS)
    assert start_ranks([[str(program), str(tmp_path)]] * 2).wait() == [0, 0]
    said = capfd.readouterr().out.splitlines()
    assert sorted(said) == ["PeerLostError the other host is gone"] * 2 + ["joined"] * 2


JOINS = """
import sys
from ppwork.ranks import Plan, join
with join(Plan(mesh_size=2, timeout_s=60.0), run_dir=sys.argv[1] or None):
    print("joined")
"""


def test_a_rank_that_names_no_folder_where_others_do_is_told_at_once_on_all(tmp_path, start_ranks, capfd):
    """The others waited for its clock until their bound, and read of a silent peer."""
    program = tmp_path / "joins.py"
    program.write_text(JOINS)
    folder = tmp_path / "run"
    commands = [[str(program), str(folder)], [str(program), str(folder)], [str(program), ""]]
    assert start_ranks(commands).wait(40) == [1, 1, 1]
    shown = capfd.readouterr()
    said = 'The ranks were started differently: run_dir was "given" on ranks 0 and 1; "none" on rank 2.'
    assert shown.err.count(said) == 3
    assert "joined" not in shown.out
    assert names_in(folder) == ["refused.json"]


LATE = {
    "leader forgets": (1, "The loop went on after chunk 4 without an answer", "for chunk in plane.chunks():"),
    "follower meets all": (
        2,
        "the default group (world_pg) between a chunk and its answer",
        "dist.barrier()",
    ),
    "follower is killed": (2, "Rank 2 was ended by a signal such as SIGKILL", ""),
    "follower crashes": (
        2,
        "Rank 2 was killed by SIGSEGV and left no record: Fatal Python error: Segmentation fault.",
        f"{LINES['# SIGNAL']}, in end_in_c\n    ",
    ),
    "leader aborts": (
        1,
        "Rank 1 was killed by SIGABRT and left no record",
        f"{LINES['# ABORT']}, in end_in_c\n    ",
    ),
    "follower is terminated": (
        2,
        "Rank 2 got SIGTERM and left no record;",
        f"{LINES['# SIGNAL']}, in end_in_c\n    ",
    ),
    "follower keeps the lock alone": (
        2,
        "Rank 2 made no progress and held the",
        f"{LINES['# LOCK']}, in end_in_c\n    ",
    ),
    "leader misspells": (1, "'y'", f"{LINES['# NAME']}, in serve\n"),
    "stage0 leaves some": (
        0,
        "The stream cannot end: chunks 3 and 4 are in flight.",
        f"{LINES['# EARLY']}, in drive\n",
    ),
    "follower breaks": (
        2,
        "left without the end of `chunks()`",
        f"{LINES['# BREAK']}\n    break",
    ),
    "stage0 fills anew": (0, "'x' of chunk 4 was written to before its", f"{LINES['# LENT']}, in drive\n"),
}


CRASHES = {
    "follower crashes": ("Fatal Python error: Segmentation fault", "# SIGNAL"),
    "leader aborts": ("Fatal Python error: Aborted", "# ABORT"),
    "follower keeps the lock alone": ("Timeout (0:00:02)!", "# LOCK"),
}


@pytest.mark.parametrize("case", LATE)
def test_a_late_mistake_at_depth_3_is_named_with_its_chunk_long_before_the_time_out(
    tmp_path, start_ranks, case, capfd
):
    """The lanes have the next chunks by then: the chunk is the one in hand, and no other's data go out."""
    rank, what, line = LATE[case]
    run_dir = tmp_path / "run"
    start_ranks([[str(SUPPORT / "bad_loops.py"), case, str(run_dir)]] * 3).wait()
    found, records = pp.diagnose(run_dir), {record.rank: record for record in read_records(run_dir, 3)}
    assert found.cause.rank == rank
    assert what in found.cause.what
    assert line in found.text
    assert found.cause.where["chunk_index"] == BAD or case == "stage0 leaves some"
    assert not [record for record in records.values() if record.error_type == "PeerTimeoutError"]
    assert "origin unknown" not in found.text
    # A bare error of gloo has the name that it has in stages, and its line.
    assert not [record for record in records.values() if record.error_type == "RuntimeError"]
    said = capfd.readouterr().err
    pointer = f"  all of it: ppwork diagnose {run_dir}"
    if case == "leader forgets":  # the cause first, its traceback once, and where to read on
        assert len(re.findall(r"^\S*( \S*)?LocalProtocolError: The loop went on", said, re.MULTILINE)) == 1
        first, _, below = said.partition(f"\n{pointer}\n")
        assert f"rank 1 failed: LocalProtocolError: {what} to it, at /" in first
        assert "Traceback" not in first
        assert pointer not in below
        assert below.count("Traceback") == 3
        assert "[rank0]: ppwork.errors.TerminalNotice: The session was ended by a peer (rank=1 " in below
        assert f"  its whole traceback: {run_dir / 'failure-rank0.json'}\n" in below
        assert "notice.unsent" not in said
        assert found.check_first.startswith(f"line {LINES['# LEAVES'].rpartition(':')[2]}: does a turn of")
    gone = "rank 2 is gone and left no record (killed, or `os._exit`?); rank 1 lost it: PeerLostError: "
    assert (gone in said) == (case in ("follower is killed", "follower is terminated"))
    if case == "follower is killed":  # nobody knows the cause, and somebody says where it is told
        assert pointer in said
    if case == "leader misspells":
        assert found.check_first.startswith("The tensors that came: 'x'; the traceback in")
    if case in CRASHES:  # a peer shows what lies in the folder
        headline, mark = CRASHES[case]
        assert f"rank {rank} crashed:\n{headline}" in said
        assert LINES[mark].replace(":", '", line ') + " in end_in_c" in said
        assert found.check_first.startswith(f"the stack in stacks-rank{rank}.txt")
    left = {path.name for path in run_dir.glob("stacks-*") if path.stat().st_size}
    assert left == ({f"stacks-rank{rank}.txt"} if case in CRASHES or case.endswith("terminated") else set())
    if case == "follower is killed":
        assert "exit code" in found.check_first
        assert records[1].error_type == "PeerLostError"
        assert records[1].where["chunk_index"] == BAD
        assert records[1].source.endswith(LINES["# SUM"])
        assert f"a call of the loop at {records[1].source}: " in records[1].what


def test_who_has_set_faulthandler_up_has_a_crash_where_he_asked_for_it(tmp_path, start_ranks, capfd):
    run_dir, own = tmp_path / "run", {"PYTHONFAULTHANDLER": "1"}
    command = [str(SUPPORT / "bad_loops.py"), "follower crashes", str(run_dir)]
    start_ranks([command] * 3, dict.fromkeys(range(3), own)).wait()
    said = capfd.readouterr().err
    assert LINES["# SIGNAL"].replace(":", '", line ') + " in end_in_c" in said
    assert "rank 2 crashed:" not in said
    assert not list(run_dir.glob("stacks-*"))
    assert "was ended by a signal such as SIGKILL, by an abort or by os._exit" in pp.diagnose(run_dir).text


def test_a_torchrun_that_is_ended_from_outside_leaves_where_its_ranks_were(tmp_path):
    script, run_dir = SUPPORT / "bad_loops.py", tmp_path / "run"
    assert torchrun_to_its_end(3, script, "follower ends torchrun", run_dir).code != 0
    found = pp.diagnose(run_dir)
    assert "got SIGTERM" in found.text
    assert LINES["# ENDS"] in (run_dir / "stacks-rank2.txt").read_text().replace('", line ', ":")


@pytest.mark.parametrize(
    ("script", "ranks", "case", "rank", "said"),
    [
        (
            "bad_loops.py",
            3,
            "leader forgets",
            1,
            "LocalProtocolError: The loop went on after chunk 4 without",
        ),
        ("left_loops.py", 2, "rank 0 is slow", 0, "StuckError: The loop made no call of the plane for 2 s"),
    ],
)
def test_the_closing_report_of_torchrun_ends_with_the_cause_and_where_all_of_it_is(
    tmp_path, script, ranks, case, rank, said
):
    """The last screen was torchrun's: its traceback, no word of the cause, and a symptom as the root."""
    ended = torchrun_to_its_end(ranks, SUPPORT / script, case, tmp_path / "run")
    report = ended.errors.partition("Root Cause (first observed failure):")[2]
    assert f"rank      : {rank} (local_rank: {rank})" in report
    assert f"traceback : rank {rank} failed: {said}" in report
    assert f"all of it: ppwork diagnose {tmp_path / 'run'}" in report


def test_the_closing_report_of_torchrun_has_the_reason_of_a_start_that_is_refused(tmp_path):
    ended = torchrun_to_its_end(3, SUPPORT / "left_loops.py", "", tmp_path / "run")
    report = ended.errors.partition("Root Cause (first observed failure):")[2]
    assert pp.diagnose(tmp_path / "run").cause.what.partition("refused. ")[2] in report


REFUSED = {
    "stage0 meets all": (0, "called barrier on the default group (world_pg) while chunks were on", "# ALL"),
    "stage0 meets all behind a refusal": (0, "called barrier on the default group (world_pg) while", "# ALL"),
    "stage0 swallows": (0, "called barrier on the default group (world_pg) while chunks were on", "# OVER"),
    "follower swallows": (2, "called all_reduce on the default group (world_pg) between a chunk", "# PAST"),
    "stage0 ends its groups": (0, "was about to destroy process groups that the pipeline", "# ENDED"),
    "follower makes a group": (2, "was about to make a process group, which every rank of the", "# MESH"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_of_all_ranks_in_the_middle_of_the_stream_is_refused_also_without_a_folder(
    start_ranks, capfd, case
):
    """It ended with everybody's bound, and with the names of innocent ranks."""
    rank, what, mark = REFUSED[case]
    codes = start_ranks([[str(SUPPORT / "bad_loops.py"), case, "-"]] * 3).wait()
    assert codes == [1, 1, 1]
    said = capfd.readouterr().err
    assert f"LocalProtocolError: The loop {what}" in said
    assert LINES[mark].replace(":", '", line ') in said
    assert f"where: rank={rank} role={case.partition(' ')[0]}" in said
    assert "PeerTimeoutError" not in said
    assert said.count("join without run_dir: no watchdog runs") == 1  # rank 0 says it


def test_a_loop_that_decodes_a_result_which_its_flush_made_stale_is_told_at_its_line(tmp_path, start_ranks):
    """It ended well, with stale results in its report."""
    run_dir = tmp_path / "run"
    start_ranks([[str(SUPPORT / "bad_loops.py"), "stage0 flushes and decodes", str(run_dir)]] * 3).wait()
    found = pp.diagnose(run_dir)
    assert (found.cause.rank, found.cause.error_type) == (0, "KeyError")
    assert found.cause.where == {"rank": 0, "role": "stage0"}
    assert LINES["# STALE"] in found.text
    assert "The tensors that came: none (a stale result, `good` false, has none)" in found.check_first


def test_a_difference_that_a_loop_swallows_is_raised_again_by_its_next_collective(tmp_path, start_ranks):
    """That one stood until the timeout, and rank 0 was named, which had waited for a result."""
    run_dir = tmp_path / "run"
    start_ranks([[str(SUPPORT / "bad_loops.py"), "mesh swallows and goes on", str(run_dir)]] * 3).wait()
    found, line = pp.diagnose(run_dir), LINES["# ODD"]
    assert found.sentence.startswith(f"Ranks 1 and 2 differ at collective 1 of chunk {BAD}: ")
    assert "float32[4]" in found.sentence
    assert "float32[5]" in found.sentence
    assert line in found.text
    assert not [each for each in read_records(run_dir, 3) if each.error_type == "PeerTimeoutError"]


def test_a_collective_of_rank_0_that_nobody_came_to_is_named_with_its_line(tmp_path, start_ranks):
    """With nothing on its way it is not refused: on every rank alike it would be right."""
    run_dir = tmp_path / "run"
    start_ranks([[str(SUPPORT / "bad_loops.py"), "stage0 waits for all", str(run_dir)]] * 3).wait()
    found = pp.diagnose(run_dir)
    line = LINES["# LAST"]
    assert found.cause.error_type == "CollectiveMismatch"
    assert found.cause.where["rank"] == 0
    assert found.text.splitlines()[0].endswith(f"{line}, in drive")
    assert f"Rank 0 waited in barrier ({line}) for ranks 1 and 2, and not one of them" in found.sentence
    assert f"  rank 0 waits for ranks 1 and 2: barrier ({line})" in found.text
    assert "symptom" not in found.text


@pytest.mark.parametrize("case", ["stage0 waits first for all", "stage0 waits first in the job's"])
def test_a_collective_of_rank_0_before_its_first_send_is_named(tmp_path, start_ranks, case):
    """The mesh waits for its first chunk; a group of the job's own has no bound of ours."""
    run_dir, line = tmp_path / "run", LINES["# FIRST"]
    ranks = start_ranks([[str(SUPPORT / "bad_loops.py"), case, str(run_dir)]] * 3)
    call = f"barrier ({line})"
    wait_for(lambda: (pulse := read_pulse(run_dir, 0)) is not None and pulse.own_call == call)
    ranks.wait()
    found = pp.diagnose(run_dir)
    assert found.cause.error_type == "CollectiveMismatch"
    assert f"Rank 0 waited in {call} for ranks 1 and 2, and not one of them" in found.sentence
    assert f"  rank 0 waits for ranks 1 and 2: {call}" in found.text


@pytest.mark.parametrize(
    ("case", "mark", "when"),
    [
        ("mesh waits first for all", "# BEFORE", "before their first chunk, and rank 0 did not come."),
        ("mesh waits behind", "# BEHIND", "after the last chunk (7), and rank 0 did not come: it had left"),
    ],
)
def test_a_collective_of_the_mesh_outside_of_the_stream_is_named_with_its_line(
    tmp_path, start_ranks, case, mark, when
):
    """Rank 0 was called the failed one, or a chunk that had not begun."""
    run_dir, line = tmp_path / "run", LINES[mark]
    start_ranks([[str(SUPPORT / "bad_loops.py"), case, str(run_dir)]] * 3).wait()
    found = pp.diagnose(run_dir)
    assert found.cause.error_type == "CollectiveMismatch"
    assert f"Ranks 1 and 2 waited in barrier ({line}) {when}" in found.sentence
    assert found.text.splitlines()[0].endswith(f"{line}, in serve")


def test_a_group_that_one_rank_alone_makes_is_ended_with_its_line(tmp_path, start_ranks, capfd):
    """The other mesh rank waits for it in a sum, and their bounds would pass first."""
    run_dir = tmp_path / "run"
    codes = start_ranks(
        [[str(SUPPORT / "bad_loops.py"), "follower makes a group alone", str(run_dir)]] * 3
    ).wait()
    assert codes[2] == STUCK
    found = pp.diagnose(run_dir)
    assert (found.cause.rank, found.cause.error_type) == (2, "StuckError")
    assert found.cause.where["chunk_index"] == BAD
    assert found.cause.source.endswith(LINES["# ALONE"])
    assert "No other rank came within 2 s to make a process group" in found.cause.what
    assert not [record for record in read_records(run_dir, 3) if record.error_type == "PeerTimeoutError"]
    assert LINES["# ALONE"].replace(":", '", line ') in capfd.readouterr().err


@pytest.mark.parametrize("case", ["follower raises", "follower hangs", "leader hangs"])
def test_a_loop_of_ones_own_that_fails_is_diagnosed_from_its_folder_and_from_its_logs_alone(tmp_path, case):
    rank = 1 if case.startswith("leader") else 2
    logs = ("--log-dir", str(tmp_path / "logs"), "--redirects", "3")
    ended = torchrun_to_its_end(3, SUPPORT / "bad_loops.py", case, tmp_path / "run", options=logs)
    assert ended.code == 1
    by_folder, by_logs = pp.diagnose(tmp_path / "run"), pp.diagnose(tmp_path / "logs")
    assert (by_folder.cause.rank, by_logs.cause.rank) == (rank, rank)
    assert by_folder.cause.where["chunk_index"] == BAD
    assert "torchrun.log" not in by_folder.text  # a file of our launcher's, which has not started this
    if case.endswith("raises"):
        assert "ValueError: my bug" in by_folder.text
        assert by_folder.check_first == "the traceback in failure-rank2.json"  # where no log of ours is
        assert "ValueError: my bug" in by_logs.text
        died = "On rank 0 thread 'reader' died of ValueError: invalid literal for int() with base 10: 'no nu"
        assert died in by_folder.text
    else:  # a loop has no method of a stage
        assert "StuckError: The loop did not answer the chunk within 8 s" in by_folder.text


def test_the_page_and_the_examples_import_from_one_place():
    page = (ROOT / "docs" / "prototype.md").read_text()
    programs = [path for path in EXAMPLES.rglob("*.py") if "join" in path.read_text()]
    assert len(programs) >= 6
    for text in (page, *(path.read_text() for path in programs)):
        ours = [line for line in text.splitlines() if line.startswith("from ppwork")]
        assert ours
        assert all(line.startswith("from ppwork.ranks import") for line in ours)
