"""Words of torch and of launchers that count or name ranks, in lines that bear none."""

from __future__ import annotations

import pytest

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.report import Report
from ppwork.errors import PlanError

BARRIER = (
    "Waiting in store based barrier to initialize process group for rank: {rank}, "
    "key: store_based_barrier_key:{key} (world_size={size}, worker_count={came}, timeout=0:30:00)\n"
)


def waiting(rank, size, came, key=1):
    return BARRIER.format(rank=rank, size=size, came=came, key=key)


def said(tmp_path, text):
    log = tmp_path / "posted.txt"
    log.write_text(text)
    return diagnose_job(read_job(log))


def test_who_came_to_the_start_of_a_group_is_counted(tmp_path):
    found = said(tmp_path, waiting(0, 3, 2) + waiting(2, 3, 2))
    assert found.cause.rank == 1
    assert found.sentence.startswith("2 of 3 ranks came to init_process_group")
    found = said(tmp_path, waiting(2, 8, 7, key=2) + waiting(7, 8, 7, key=2))
    assert found.cause.rank == -1
    assert found.unknown == ("which of ranks 0, 1, 3, 4, 5 and 6 did not",)
    found = said(tmp_path, waiting(5, 2048, 1))
    assert "the 2047 others never came" in found.sentence


def test_more_than_the_group_is_for_is_an_old_store_and_nobodys_absence(tmp_path):
    found = said(tmp_path, waiting(0, 2, 4))
    assert found.sentence.startswith("4 processes came to init_process_group")
    assert "earlier run" in found.check_first


def test_a_barrier_that_everybody_came_to_is_no_cause(tmp_path):
    done = "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes.\n"
    found = said(tmp_path, f"{waiting(0, 2, 1)}{done}ValueError: no\n")
    assert found.sentence == "A rank raised ValueError: no."


@pytest.mark.parametrize(
    "line",
    [
        "ERROR 07-04 17:35:16 [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly.",
        "ERROR 08-20 [multiproc_executor.py:273] RayWorkerProc rank=[1] died unexpectedly, gone.",
    ],
)
def test_a_worker_that_its_executor_misses_is_named(tmp_path, line):
    found = said(tmp_path, f"{line}\n")
    assert found.cause.rank == 1
    assert found.unknown == ("why rank 1 was gone: it left no words",)


def test_gloos_address_of_a_peer_is_told_and_a_loopback_is_no_address_for_another_host(tmp_path):
    text = (
        "RuntimeError: Gloo connectFullMesh failed with [/gloo/pair.cc:152] timed out connecting: "
        "SO_ERROR: Connection refused, remote=[{}]:37455\n  (rank=8, size=16, local=[127.0.0.1])\n"
    )
    found = said(tmp_path, text.format("127.0.0.1"))
    assert found.cause.rank == 8
    assert "Connection refused" in found.sentence
    assert "GLOO_SOCKET_IFNAME" in found.check_first
    assert "GLOO_SOCKET_IFNAME" not in said(tmp_path, text.format("10.0.0.7")).check_first


def test_an_exception_of_torchrun_itself_is_not_a_ranks(tmp_path):
    text = (
        '  File "/site-packages/torch/distributed/elastic/rendezvous/static.py", line 67, in next\n'
        "    self._store = TCPStore(\n"
        "torch.distributed.DistNetworkError: The server socket has failed to listen. name: EADDRINUSE\n"
    )
    found = said(tmp_path, text)
    assert found.sentence.startswith("torchrun itself failed, not a rank: DistNetworkError")
    assert "--standalone" in found.check_first


def test_a_monitored_barrier_on_the_console_names_who_missed_it(tmp_path):
    text = (
        "[E ProcessGroupGloo.cpp:138] Rank 3 successfully reached monitoredBarrier, but received errors.\n"
        "[E ProcessGroupGloo.cpp:138] [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms\n"
    )
    found = said(tmp_path, text)
    assert found.cause.rank == 2
    assert found.sentence == "Rank 2 never came to the monitored_barrier of rank 0."


def test_ranks_that_lost_the_store_are_told_and_not_blamed(tmp_path):
    text = (
        '[rank8]:[W318 ProcessGroupNCCL.cpp:1771] [PG ID 0 Rank 8] Failed to check the "should dump" flag '
        "on TCPStore, with error: Connection reset by peer\n"
        "[rank12]:[W318 10:00:41 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=135)\n"
    )
    found = said(tmp_path, text)
    assert found.cause.rank == -1
    assert found.sentence.startswith("Ranks 8 and 12 lost the TCPStore")


def test_numbers_of_a_watchdog_that_are_far_apart_blame_nobody(tmp_path):
    late = (
        "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE) ran\n"
    )
    found = said(tmp_path, late.format(7, 64088) + late.format(0, 96120))
    assert found.cause.rank == -1
    assert found.sentence == "Rank 7 timed out in ALLREDUCE number 64088, rank 0 in ALLREDUCE number 96120."
    assert "which of them is at fault" in found.unknown[0]


def test_a_quotation_and_the_lines_of_several_processes_are_read(tmp_path):
    quoted = (
        '> Traceback (most recent call last):\n>   File "/me/a.py", line 3, in f\n>     g()\n> KeyError: 7\n'
    )
    assert said(tmp_path, quoted).sentence == "A rank raised KeyError: 7."
    mixed = "".join(
        f"(Worker pid={pid}, ip=10.0.0.{pid}) {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/me/a.py", line 3, in f',
            "    g()",
            "KeyError: 7",
        )
        for pid in (4, 5)
    )
    assert said(tmp_path, mixed).lines[0].startswith("/me/a.py:3")


def test_what_a_library_says_without_an_exception_is_the_last_resort_and_no_denial(tmp_path):
    warned = "nd20-01:27:27 [0] misc/socket.cc:379 NCCL WARN Call to bind failed : Cannot assign address\n"
    assert "Call to bind failed" in said(tmp_path, warned).sentence
    assert said(tmp_path, f"{warned}ValueError: no\n").sentence == "A rank raised ValueError: no."


def test_a_job_whose_ranks_were_all_aborted_has_failed(tmp_path):
    ends = "".join(
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : -6 (pid: 2)\n" for rank in (1, 2)
    )
    root = (
        "Root Cause (first observed failure):\n  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 1)\n"
    )
    found = said(tmp_path, f"{ends}{root}")
    assert found.sentence.startswith("Ranks 0, 1 and 2 were killed by SIGABRT; torchrun saw rank 0 first")


def test_ranks_that_were_asked_for_their_stacks_say_in_which_calls_they_stood(tmp_path):
    """As the advice on a hang has it; the headline was only that they had been killed by SIGABRT."""
    torchs = '  File "/x/torch/distributed/distributed_c10d.py", line 1 in {call}\n'
    stack = "Fatal Python error: Aborted\n\nCurrent thread 0x00007ff1 (most recent call first):\n" + torchs
    for rank, (call, line) in enumerate({"recv": 8, "all_reduce": 15, "broadcast": 12}.items()):
        log = tmp_path / "run" / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(f'{stack.format(call=call)}  File "/me/a.py", line {line} in <module>\n')
    ends = "".join(
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : -6 (pid: 2)\n" for rank in (1, 2)
    )
    console = tmp_path / "console.txt"
    root = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 1)\n"
    console.write_text(f"{ends}Root Cause (first observed failure):\n{root}")
    found = diagnose_job(read_job(tmp_path / "run", console))
    assert "rank 0 was in recv at /me/a.py:8, rank 1 was in all_reduce at /me/a.py:15 and" in found.sentence
    assert found.sentence.endswith("Those of ranks 1 and 2 do not meet, if they are of one group.")
    assert "C++" not in found.check_first


COMMAND = "['python', '-u', 'a.py', '--local_rank={rank}']"
DEEPSPEED = f"[ERROR] [launch.py:434:sigkill_handler] {COMMAND} exits with return code = "
TORCHS = f"subprocess.CalledProcessError: Command '{COMMAND}' "
KILLED = [f"{DEEPSPEED}-9\n", f"{TORCHS}died with <Signals.SIGKILL: 9>.\n"]
FAILED = [f"{DEEPSPEED}1\n", f"{TORCHS}returned non-zero exit status 1.\n"]


@pytest.mark.parametrize(
    ("killed", "failed"), [*zip(KILLED, FAILED, strict=True)], ids=["DeepSpeed", "torch"]
)
def test_the_command_of_the_process_started_last_names_no_rank(tmp_path, killed, failed):
    """Both launchers show it whichever process has ended: only of one process is the rank known."""
    found = said(tmp_path, killed.format(rank=3))
    assert found.cause.where == {}
    assert found.sentence.startswith("One of the ranks was killed by SIGKILL")
    assert found.unknown == ("which rank it was",)
    assert said(tmp_path, killed.format(rank=0)).cause.rank == 0
    found = said(tmp_path, f"ValueError: no\n{failed.format(rank=3)}")
    assert found.sentence == "A rank raised ValueError: no."


def test_the_words_of_torch_1_9_are_read(tmp_path):
    found = said(tmp_path, "Child process 17057 (local_rank 2) FAILED (exitcode -11)\n")
    assert (found.cause.rank, found.cause.error_type) == (2, "RankDied")


def test_an_exception_without_a_rank_says_more_than_who_waited(tmp_path):
    waits = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
    found = said(tmp_path, f"ValueError: no\n{waits}")
    assert found.sentence == "A rank raised ValueError: no."
    behind = f"{waits}[rank0]: x\n"
    assert said(tmp_path, f"ValueError: no\n{behind}").cause.rank == 0, "the watchdog knows who is missing"


def test_what_speaks_of_a_peer_stands_behind_what_speaks_of_itself(tmp_path):
    found = said(
        tmp_path,
        "a:1:1 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer b<51159>\n"
        "a:2:2 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n",
    )
    assert found.sentence.endswith("Cuda failure 'out of memory'.")


@pytest.mark.parametrize(
    "line",
    [
        "[E307 05:30:18.27 ProcessGroupNCCL.cpp:744] [Rank 0] Some NCCL operations have failed or timed out.",
        "12:00 ERROR step 3: RuntimeError: NCCL error: unhandled system error",
    ],
)
def test_a_line_that_tells_of_an_error_is_never_denied(tmp_path, line):
    found = said(tmp_path, f"loss 0.3\n{line}\n")
    assert found.sentence.startswith("The log tells of an error")


def test_a_missing_gradient_names_its_rank_where_no_exception_reads(tmp_path):
    found = said(
        tmp_path,
        "rorExpected to have finished reduction in the prior iteration before starting a new one.\n"
        "Parameter indices which did not receive grad for rank 2: 362 363\n",
    )
    assert found.cause.rank == 2
    assert "find_unused_parameters" in found.check_first


@pytest.mark.parametrize("line", ["srun: error: node3: Out Of Memory", "Bus error (core dumped)", "Killed"])
def test_lines_that_may_tell_of_an_error_are_shown_where_no_rule_finds_anything(tmp_path, line):
    found = said(tmp_path, f"bus 7 could not be read\nloss 0.3\n{line}\n")
    assert found.sentence.endswith(f"this line may tell: {line}.")
    assert found.seen == ("also: bus 7 could not be read",)
    assert found.cause.where == {}
    with pytest.raises(PlanError, match="no exception"):
        said(tmp_path, "loss 0.3\nloss 0.2\n")


def test_lightnings_launcher_does_not_say_which_of_its_children_ended(tmp_path):
    found = said(tmp_path, "[rank: 0] Child process with PID 652 terminated with code -9. Forcefully ...\n")
    assert found.cause.where == {}
    assert found.sentence.startswith("One of the ranks was killed by SIGKILL")


def test_a_report_that_is_cut_off_leaves_open_which_rank_was_the_first(tmp_path):
    ended = "".join(
        f"[{n}]:\n  rank      : {n} (local_rank: {n})\n  exitcode  : 1 (pid: 2)\n" for n in (1, 2)
    )
    found = said(tmp_path, f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n{ended}")
    assert found.cause.error_type == "RankDied"
    assert found.unknown == ("which rank was the first: torchrun's report is cut off before it says so",)
    found = said(tmp_path, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n")
    assert found.sentence.startswith("torchrun says that a rank failed")


@pytest.mark.parametrize(
    "words",
    [
        "Rank 3 is running inconsistent collective: CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[9]",
        "Rank 3 is running collective: CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, Tens",
    ],
)
def test_a_mismatch_of_which_one_side_is_told_names_its_rank(tmp_path, words):
    found = said(tmp_path, f"RuntimeError: Detected mismatch between collectives on ranks. {words}\n")
    assert (found.cause.rank, found.cause.error_type) == (3, "CollectiveMismatch")
    assert "BROADCAST" in found.sentence
    assert "which other rank" in found.unknown[0]


def test_srun_says_of_its_tasks_how_they_ended():
    text = """srun: error: node2: task 3: Killed
slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM Killed.
srun: error: node1: tasks 0-1,4: Terminated
srun: error: node3: task 5: Exited with exit code 7
srun: error: node3: task 6: Segmentation fault (core dumped)
"""
    told = Report.of(text)
    assert told.codes == {3: -9, 0: -15, 1: -15, 4: -15, 6: -11}  # of an exit code an exception says more
    assert (told.first, told.local) == (3, False)
    assert (
        Report.of("srun: error: node2: task 3: Out Of Coffee\nsrun: error: n: task x-y: Killed\n").codes == {}
    )
    of_torchruns = f"{text}E1 torch/distributed/elastic/multiprocessing/api.py:1002] words\n"
    assert Report.of(of_torchruns).codes == {}


def test_a_task_that_srun_saw_killed_is_the_rank_that_failed(tmp_path):
    console = tmp_path / "console"
    console.write_text(
        "epoch 1\nsrun: error: node2: task 3: Killed\nsrun: error: node1: tasks 0-2: Terminated\n"
    )
    found = diagnose_job(read_job(console))
    assert (found.cause.rank, found.cause.error_type) == (3, "RankDied"), found.text
    assert "Rank 3 was killed by SIGKILL" in found.sentence
    assert "out-of-memory killer" in found.check_first
