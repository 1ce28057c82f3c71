"""NCCL's watchdog, by lines as people posted them in bug reports, cut to the ranks that matter."""

from __future__ import annotations

import pytest
from captured_logs import NCCL_ERRORS, console, log_dir

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.nccl import WatchdogReport, ends_of, lagging
from ppwork.diagnosis.runs import diagnose
from ppwork.plan import Plan
from ppwork.protocol.topology import Topology
from ppwork.records.run import TORCHRUN_LOG, log_file

WATCHDOG = (
    "[rank{r}]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, "
    "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    "[rank{r}]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {r}] "
    "Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: "
    "{last}, last completed NCCL work: 807.\n"
)


TODAYS = (
    "[rank{r}]:[E813 12:25:30.691567129 ProcessGroupNCCL.cpp:632] [Rank {in_group}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={at}, OpType={kind}, NumelIn=1, NumelOut=4, "
    "Timeout(ms)=60000) ran for 60038 milliseconds before timing out.\n"
    "[rank{r}]:[E813 12:25:30.692163833 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID {group} Rank {in_group}]"
    "  failure detected by watchdog at work sequence id: {at} PG status: last enqueued work: {last}, last "
    "completed work: 56\n"
)
"""In the words of torch 2.8 and up."""
TERMINATED = (
    "[rank{r}]:[E519 05:58:22.475481966 ProcessGroupNCCL.cpp:1595] [PG ID 2 PG GUID 2(tp_pg) Rank 1] Process "
    "group watchdog thread terminated with exception: {why}\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)


def late(rank, *, group, in_group, kind="ALLREDUCE", at=57, last=57):
    return TODAYS.format(r=rank, group=group, in_group=in_group, kind=kind, at=at, last=last)


# Anybody's job


def test_todays_words_name_the_rank_that_issued_less_too():
    texts = {r: late(r, group="0(default_pg)", in_group=r, last=last) for r, last in ((0, 60), (1, 57))}
    found = lagging(texts)
    assert found.ranks == (1,)
    assert "rank 1 had issued 57" in found.what


def test_watchdogs_that_agree_blame_nobody():
    found = lagging({r: WATCHDOG.format(r=r, last=811) for r in range(3)})
    assert found.ranks == (0, 1, 2)
    assert "ALLREDUCE number 808" in found.what
    assert found.unknown


def test_watchdog_names_the_rank_that_issued_less():
    found = lagging({0: WATCHDOG.format(r=0, last=811), 1: WATCHDOG.format(r=1, last=808)})
    assert found.ranks == (1,)
    assert "rank 1 had issued 808" in found.what


def test_watchdog_names_the_rank_that_did_not_time_out(tmp_path):
    text = "".join(WATCHDOG.format(r=r, last=811) for r in (0, 1))
    folder = log_dir("hang-terminated", tmp_path, report=False)
    for rank in (0, 1):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.write_text(WATCHDOG.format(r=rank, last=811))
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.error_type) == (2, "CollectiveTimeout")
    assert "never called it" in found.unknown[0]
    (tmp_path / "console.txt").write_text(text)
    (known,) = diagnose_job(read_job(tmp_path / "console.txt")).unknown
    assert known == "which rank failed to take part"


def test_watchdog_names_calls_that_differ_under_one_number():
    other = WATCHDOG.format(r=7, last=808).replace("ALLREDUCE", "BROADCAST")
    found = lagging({}, console=other.replace("[rank7]:", "") + WATCHDOG.format(r=3, last=808))
    assert found.ranks == (3, 7)
    assert "rank 3 in ALLREDUCE" in found.what
    assert "rank 7 in BROADCAST" in found.what


def test_no_watchdog_no_word():
    assert lagging({0: "all good"}) is None


# Runs of ours: no rank of them could write a record


@pytest.fixture
def run(tmp_path):
    """Writes a run's folder, of ranks whose processes NCCL aborted, from what each printed."""

    def write(*texts):
        (tmp_path / Plan.FILE_NAME).write_bytes(Plan(mesh_size=len(texts) - 1, chunks=8).to_json())
        for rank, text in enumerate(texts):
            log_file(tmp_path, rank).write_text(text)
        report = console("killed").read_text()
        (tmp_path / TORCHRUN_LOG).write_text(report.replace("exitcode  : -9 ", "exitcode  : -6 "))
        return tmp_path

    return write


def test_a_kernel_that_broke_on_one_rank_is_the_cause_in_its_own_words(run):
    why = NCCL_ERRORS["illegal access"]
    remote = NCCL_ERRORS["remote exited"]
    found = diagnose(run("", TERMINATED.format(r=1, why=remote), TERMINATED.format(r=2, why=why)), 1)
    assert (found.cause.rank, found.cause.symptom) == (2, False)
    assert "NCCL ended rank 2: CUDA error: an illegal memory access was encountered" in found.text
    assert found.cause.where["group"] == "tp_pg"
    assert "--depth 1" in found.cause.check_first
    (other,) = found.others
    assert (other.rank, other.error_type, other.symptom) == (1, "PeerLostError", True)


def test_bounds_that_passed_lead_from_group_to_group_to_the_rank_that_did_not_come(run):
    """Rank 0 waits for the leader, the leader's sum for rank 2, whose host was still on its way."""
    sent = late(0, group="3(down_pg)", in_group=0, kind="SEND", at=12, last=12)
    found = diagnose(run(sent, late(1, group="2(tp_pg)", in_group=0), ""), 1)
    assert found.cause.rank == 2
    assert {record.rank: record.where["peer"] for record in found.others} == {0: 1, 1: 2}
    assert {record.error_type for record in found.others} == {"PeerTimeoutError"}
    assert "NCCL ended rank 1: ALLREDUCE number 57 on tp_pg did not end within its bound" in found.text


def test_a_rank_that_issued_less_is_behind_though_its_bound_passed_as_well():
    texts = {
        1: late(1, group="2(tp_pg)", in_group=0, last=60),
        2: late(2, group="2(tp_pg)", in_group=1, at=56, last=56),
        3: late(3, group="2(tp_pg)", in_group=2, last=57),
    }
    ends = ends_of(texts, Topology(3))
    assert {rank: end.behind for rank, end in ends.items()} == {1: (2,), 2: (), 3: (2,)}


def test_bounds_that_passed_on_all_ranks_at_one_work_blame_none(run):
    texts = [late(rank, group="2(tp_pg)", in_group=rank - 1) for rank in (1, 2)]
    received = late(0, group="4(up_pg)", in_group=0, kind="RECV", at=56, last=57)
    found = diagnose(run(received, *texts), 1)
    assert found.cause.symptom
    assert "Every record is a symptom" in found.text


def test_of_a_bound_that_passed_beside_a_broken_kernel_the_kernel_counts():
    text = late(1, group="2(tp_pg)", in_group=0) + TERMINATED.format(r=1, why=NCCL_ERRORS["illegal access"])
    assert ends_of({1: text, 2: "all good"}, Topology(2)) == {
        1: WatchdogReport("CUDA error: an illegal memory access was encountered", "", "tp_pg")
    }
