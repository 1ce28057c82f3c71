"""``ppwork diagnose`` on broken programs that know nothing of ppwork: the right rank and call, by logs alone.

The programs are in ``tests/support/broken``, 20 lines of torch.distributed each, under plain torchrun. What
is promised of a job is what its logs have; torchrun ends the other ranks within 0.1 s of the first death, and
how much they have written by then is luck. So it is held (SIGSTOP) here until each rank that ends by itself
has done so. Logs of ranks that were ended before they spoke are in ``tests/unit/diagnosis/test_logs.py``.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from checkout import SUPPORT
from waiting import END_S, wait_for

from ppwork.diagnosis.runs import diagnose
from ppwork.launcher.torchrun import child_environment, running
from ppwork.worker.warm_server import RANK_TO_BE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from ppwork.diagnosis.findings import Diagnosis

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(300)]  # the first one starts all the jobs

BROKEN = SUPPORT / "broken"
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
BOUND_S = "3"
JOBS = {
    "raises": ("raises.py", {}),
    "missing": ("missing.py", {}),
    "miscount": ("miscount.py", {}),
    "miscount-detail": ("miscount.py", DETAIL),
    "shapes": ("shapes.py", {}),
    "shapes-detail": ("shapes.py", DETAIL),
    "roots": ("roots.py", {}),
    "extra": ("extra.py", {}),
    "ring": ("ring.py", {}),
    "leaves": ("leaves.py", {}),
    "killed": ("killed.py", {}),
    "feeds-sleeps": ("feeds.py", {}),
    "feeds-differs": ("feeds.py", {}),
    "hang": ("missing.py", {"PYTHONFAULTHANDLER": "1"}),
}
STAYS = ("missing", "feeds-sleeps")
"""In these rank 2 does not end by itself: torchrun does it."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, warm_unless_marked_cold):
    """Run all jobs to their ends, two at a time; their ``--log-dir`` and the log of the console beside it."""
    folder = tmp_path_factory.mktemp("jobs")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: run_job(name, folder / name), JOBS))
    return folder


ASKED_S = 3.0
"""A rank that was asked for its stack has begun to show it by then, or was asked in vain."""


def run_job(name: str, folder: Path) -> None:
    program, more = JOBS[name]
    logs = folder / "logs"
    logs.mkdir(parents=True)
    stacks = folder / "stacks"
    stacks.mkdir()
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "3",
        "--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-id", name,
        "--rdzv-endpoint", str(folder / "rendezvous"), "--monitor-interval", "2",
        "--log-dir", str(logs), "--redirects", "3", "--tee", "3",
        str(BROKEN / program), *(("600", str(stacks)) if name == "hang" else (BOUND_S, *name.split("-")[1:])),
    ]  # fmt: skip
    # On loopback only: nothing here listens for others.
    alone = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **more}
    with (
        (folder / "console.log").open("wb") as console,
        running(command, {**child_environment(1), **alone}, console, warm=True, seats=3) as agent,
    ):
        with torchrun_held(agent) as ranks:
            if name == "hang":
                end_with_stacks(ranks, logs, stacks)
            ends = len(ranks) - (name in STAYS)
            wait_for(lambda: sum(rank.status() == psutil.STATUS_ZOMBIE for rank in ranks) == ends, 2 * END_S)
        assert agent.wait(2 * END_S) == 1
    assert "started cold" not in (folder / "console.log").read_text()


@contextmanager
def torchrun_held(agent: subprocess.Popen[bytes]) -> Iterator[list[psutil.Process]]:
    """Stop torchrun from the start of its three ranks to the end of the block."""
    process = psutil.Process(agent.pid)
    ranks = wait_for(lambda: ranks_of(process), 2 * END_S)
    process.suspend()
    try:
        yield ranks
    finally:
        process.resume()


def ranks_of(agent: psutil.Process) -> list[psutil.Process]:
    """Torchrun's three ranks, once all of them are more than children that were forked to be ranks.

    Some live for a tenth of a second only, and are there as zombies until torchrun looks, two seconds later.
    """
    pids = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    try:
        ranks = [psutil.Process(int(pid)) for pid in pids]
        begun = [rank for rank in ranks if has_begun(rank)]
    except psutil.NoSuchProcess:  # a helper of torchrun's start, which ends meanwhile
        return []
    return begun if len(begun) == 3 else []


def has_begun(rank: psutil.Process) -> bool:
    """Say whether a child of torchrun is, or was, more than one that waits to be a rank.

    Just forked, it still shows torchrun's command line.
    """
    if rank.status() == psutil.STATUS_ZOMBIE:
        return True
    words = rank.cmdline()
    return words not in ([], psutil.Process(rank.ppid()).cmdline()) and words[-1] != RANK_TO_BE


def end_with_stacks(ranks: list[psutil.Process], logs: Path, stacks: Path) -> None:
    """End a hang as the diagnosis tells people to: SIGABRT to all ranks while torchrun is stopped.

    Not before their own stacks show them in their calls: one that sleeps may still be on its way there.
    """

    def all_have_joined() -> bool:
        said = [log.read_text() for log in logs.glob("*/attempt_0/*/stdout.log")]
        return [text[:6] for text in said] == ["joined"] * 3

    files = [stacks / str(rank) for rank in range(3)]
    sleeps = f"line {line_of('missing.py', 'time.sleep').rpartition(':')[2]} "

    def all_are_in_their_calls() -> bool:
        before = [len(file.read_text()) for file in files]
        for rank in ranks:
            rank.send_signal(signal.SIGUSR1)
        # faulthandler shows nothing while it shows a stack: a SIGABRT must not come before its end, and a
        # SIGUSR1 that came before that of the last one is lost, so that it has to be asked again.
        with suppress(AssertionError):
            wait_for(lambda: all(len(f.read_text()) > n for f, n in zip(files, before, strict=True)), ASKED_S)
        wait_for(lambda: all(rank.status() == psutil.STATUS_SLEEPING for rank in ranks))
        shown = [file.read_text()[n:] for file, n in zip(files, before, strict=True)]
        return all("in broadcast" in stack for stack in shown[:2]) and sleeps in shown[2]

    wait_for(all_have_joined, 2 * END_S)
    wait_for(all_are_in_their_calls, 2 * END_S)
    for rank in ranks:
        os.kill(rank.pid, signal.SIGABRT)


def line_of(program: str, text: str, *, last: bool = False) -> str:
    lines = (BROKEN / program).read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line]
    return f"{BROKEN / program}:{found[-1 if last else 0]}"


def both(jobs: Path, name: str) -> list[Diagnosis]:
    """What is said of the ranks' logs alone, and of the console's log alone."""
    return [diagnose(jobs / name / "logs"), diagnose(jobs / name / "console.log")]


def with_report(jobs: Path, name: str) -> Diagnosis:
    """What is said of the ranks' logs with the console's beside them."""
    logs = jobs / name / "logs"
    (logs / "console.log").write_bytes((jobs / name / "console.log").read_bytes())
    return diagnose(logs)


def calls(found: Diagnosis) -> dict[int, tuple[str, tuple[int, ...]]]:
    return {wait.rank: (wait.call.partition(" at ")[0], wait.waits_for) for wait in found.waits}


def test_an_exception_on_one_rank_is_named_with_its_line(jobs):
    for found in both(jobs, "raises"):
        assert found.cause.rank == 1
        assert found.cause.source == line_of("raises.py", "raise ValueError")
        assert "ValueError: bad sample in shard 1" in found.text
        assert calls(found) == {0: ("all_reduce", (1,)), 2: ("all_reduce", (1,))}


def test_a_rank_missing_from_a_collective_is_named_with_the_call(jobs):
    for found in both(jobs, "missing"):
        assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
        assert calls(found) == {0: ("broadcast", (2,)), 1: ("broadcast", (2,))}, found.text
        assert "where rank 2 was: it showed no stack" in found.unknown


def test_a_call_count_that_differs_is_named_with_both_calls_and_the_rank_with_detail(jobs):
    for found in both(jobs, "miscount"):  # a sum of other sizes looks the same
        assert (found.cause.where, found.cause.error_type) == ({}, "CollectiveMismatch")
        assert found.cause.source == line_of("miscount.py", "dist.all_reduce")
        assert "rank 0 in barrier" in found.cause.what, found.text
    for found in both(jobs, "miscount-detail"):
        assert found.cause.rank == 0
        assert "BARRIER number 2 where ranks 1 and 2 called ALLREDUCE number 2" in found.cause.what


def test_a_shape_mismatch_is_named_exactly_with_detail_and_as_a_pair_without(jobs):
    for found in both(jobs, "shapes-detail"):
        assert found.cause.rank == 1
        assert "Rank 1 called ALLREDUCE number 1 on [5000] Float where ranks 0 and 2" in found.cause.what
        assert found.cause.source == line_of("shapes.py", "dist.all_reduce")
    for found in both(jobs, "shapes"):
        assert found.cause.where == {"rank": 0, "peer": 1}
        assert "all_reduce with different sizes" in found.cause.what
        assert found.cause.source == line_of("shapes.py", "dist.all_reduce")
        assert found.unknown == ("which of ranks 0 and 1 has the wrong size",)


def test_other_roots_are_one_of_three_stories_and_no_rank_is_blamed(jobs):
    """DETAIL compares no roots: only the program's own calls show them."""
    for found in both(jobs, "roots"):
        assert (found.cause.where, found.cause.error_type) == ({}, "CollectiveMismatch"), found.text
        assert found.cause.source == line_of("roots.py", "dist.broadcast")
        assert "the roots (`src`) differ in that broadcast, and it let rank 2 through" in found.seen[0]
        assert "`ppwork trace PROGRAM` shows each rank's" in found.check_first


def test_two_ranks_that_ended_well_are_not_blamed_for_a_sum_of_the_third(jobs):
    found = with_report(jobs, "extra")
    assert (found.cause.where, found.cause.error_type) == ({}, "LeftEarly"), found.text
    assert found.cause.source == line_of("extra.py", "dist.all_reduce", last=True)
    assert "only rank 1 made it, or ranks 0 and 2 ended early" in found.seen[0]
    assert "as many before it" in found.check_first


def test_a_ring_in_which_all_send_first_is_named(jobs):
    for found in both(jobs, "ring"):
        assert found.cause.error_type == "NobodyReceived"
        assert found.cause.source == line_of("ring.py", "dist.send")


def test_the_end_of_a_chain_of_messages_and_a_group_is_named(jobs):
    found = with_report(jobs, "feeds-sleeps")
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame"), found.text
    assert calls(found) == {0: ("recv", (1,)), 1: ("all_gather", (2,))}
    for found in both(jobs, "feeds-differs"):
        assert found.cause.error_type == "CollectiveMismatch", found.text
        assert "rank 2 in barrier" in found.sentence
        assert calls(found)[0] == ("recv", (1,))
        assert not found.lines[0].startswith(line_of("feeds.py", "dist.recv(x, 1)"))


def test_an_early_exit_is_named_where_the_logs_have_it(jobs):
    of_ranks, of_console = both(jobs, "leaves")
    assert (of_ranks.cause.rank, of_ranks.cause.error_type) == (2, "LeftEarly")
    assert of_ranks.unknown
    assert calls(of_ranks) == {0: ("all_reduce", (2,)), 1: ("all_reduce", (2,))}
    found = with_report(jobs, "leaves")
    assert "Rank 2 ended with code 0" in found.cause.what
    assert not found.unknown
    # It printed nothing, and torchrun reports failures only: the console does not know that rank.
    assert of_console.cause.where == {}
    assert of_console.cause.error_type == "OnlySymptoms"


def test_a_killed_rank_is_named_with_its_signal_where_the_logs_have_it(jobs):
    of_ranks, of_console = both(jobs, "killed")
    assert (of_ranks.cause.rank, of_ranks.cause.error_type) == (1, "LeftEarly")
    assert "killed" in of_ranks.unknown[0]
    for found in (of_console, with_report(jobs, "killed")):
        assert (found.cause.rank, found.cause.error_type) == (1, "RankDied")
        assert "SIGKILL" in found.cause.what
        assert calls(found) == {0: ("all_reduce", (1,)), 2: ("all_reduce", (1,))}


def test_a_hang_that_was_ended_with_stacks_is_explained_by_them(jobs):
    for found in both(jobs, "hang"):
        assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
        assert found.cause.source == line_of("missing.py", "time.sleep")
        assert calls(found) == {0: ("broadcast", (2,)), 1: ("broadcast", (2,))}, found.text
