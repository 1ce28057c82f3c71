"""Ranks never outlive whoever started them: the launcher, torchrun, or a user's Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from launched_jobs import FREEZE_S, GONE_S, SCRIPT, agent_and_ranks, all_gone, kill, torchrun_of
from waiting import END_S, descendants, wait_for

from ppwork.diagnosis.report import killed_by_us
from ppwork.diagnosis.runs import diagnose
from ppwork.process import WARM_VARIABLE
from ppwork.records.run import Run
from ppwork.records.spans import read_entries

# How soon things end is promised, and not how soon they start.
pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(240)]
CLEAN_UP_S = 4.0
"""1 s politely and 3 s after the kill, as docs/reliability.md promises."""


class Job:
    """A launcher in its own process whose ranks are in mid-run, and everybody in it by recorded process."""

    def __init__(self, run_dir, environment, source=SCRIPT):
        self.run_dir = run_dir
        self.said = run_dir.with_name("said")
        with self.said.open("wb") as said:
            self.launcher = subprocess.Popen(
                [sys.executable, "-c", source, str(run_dir)], stderr=said, env=environment
            )
        self.agent: psutil.Process | None = None
        self.ranks: list[psutil.Process] = []

    def come_to_mid_run(self):
        wait_for(lambda: self.emitted() or self.launcher.poll() is not None, 2 * END_S)
        assert self.emitted(), self.said.read_text()
        self.agent, self.ranks = agent_and_ranks(self.run_dir)

    def emitted(self) -> int:
        return sum(entry.name == "emit" for entry in read_entries(self.run_dir, 0))

    def close(self):
        self.launcher.kill()
        self.launcher.wait()
        kill(self.agent, *self.ranks)


def suspend(process: psutil.Process) -> None:
    process.suspend()
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED)


@pytest.fixture
def environment(tmp_path):
    """With a list of runs of its own: these tests neither see nor end other runs of this user."""
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "300"}


@contextmanager
def in_mid_run(folder, environment, source=SCRIPT):
    started = Job(folder / "run", environment, source)
    try:
        started.come_to_mid_run()
        yield started
    finally:
        started.close()


@pytest.fixture
def job(tmp_path, environment):
    with in_mid_run(tmp_path, environment) as started:
        yield started


@pytest.fixture
def warm(environment, warm_launcher):
    """For tests whose subject is not who ends with whom: torchrun and ranks are forked."""
    return {**environment, WARM_VARIABLE: str(warm_launcher.address)}


@pytest.fixture
def warm_job(tmp_path, warm):
    with in_mid_run(tmp_path, warm) as started:
        yield started


def test_launcher_killed_hard_leaves_no_rank_and_no_child_of_a_stage(tmp_path, environment):
    """F18: the lifeline's end of file. F20: what was written reads."""
    source = SCRIPT.replace("toy_stages:Slow", "toy_stages:Parent").replace('options={"step_s": 0.05}, ', "")
    with in_mid_run(tmp_path, environment, source) as job:
        children = [child for rank in job.ranks for child in rank.children()]
        assert len(children) == 2
        job.launcher.kill()
        job.launcher.wait()
        assert all_gone([job.agent, *job.ranks, *children], GONE_S) == []
    said = diagnose(job.run_dir)  # not torchrun's words of the SIGTERM that it got
    assert said.sentence.startswith("The launcher is gone without a record")
    assert "SignalException" not in said.text
    assert Run(job.run_dir, -9).summary == {}
    run = Run.load(job.run_dir)
    plan, entries = run.plan, run.entries_by_rank
    assert plan.chunks == 2000
    assert all(found for found in entries.values())
    # What the dead launcher could not remove, the next one does.
    assert len(list((tmp_path / "ppwork").glob("scratch-*"))) == 1
    code = "from ppwork.launcher.registry import scratch_folder\nwith scratch_folder(): pass"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list((tmp_path / "ppwork").glob("scratch-*")) == []


def test_launcher_killed_while_torchrun_starts_leaves_no_torchrun(tmp_path, environment):
    """F18: torchrun imports torch for a second before it has any rank, and must not start them any more."""
    starting = Job(tmp_path / "run", environment)
    try:
        agent = wait_for(lambda: torchrun_of(starting.launcher.pid), 2 * END_S)
        starting.launcher.kill()
        assert all_gone([agent], GONE_S) == []
        assert not (starting.run_dir / "rank0.log").exists()
    finally:
        starting.close()


def test_torchrun_killed_hard_leaves_no_rank_and_the_launcher_says_so(job):
    """F18: the parent-death signal, as the launcher and its lifeline live on."""
    job.agent.kill()
    assert all_gone(job.ranks, GONE_S) == []
    assert job.launcher.wait(END_S) == 1
    assert "torchrun was killed by SIGKILL" in job.said.read_text()


def test_a_launcher_that_is_terminated_takes_its_ranks_with_it_also_from_a_blocked_receive(job):
    """F18: the follower stands still, so that the others wait in gloo. SIGTERM ends this launcher at once,
    its death torchrun, and torchrun's the ranks, one that is stopped, too."""
    suspend(job.ranks[2])
    job.launcher.terminate()
    assert all_gone([job.agent, *job.ranks], GONE_S) == []
    assert job.launcher.wait(END_S) == -signal.SIGTERM


def test_a_rank_killed_hard_ends_the_job_with_a_stopped_one_and_is_named(warm_job):
    """F13; torchrun alone would wait 30 s for the stopped rank."""
    suspend(warm_job.ranks[2])
    warm_job.ranks[0].kill()
    assert all_gone(warm_job.ranks, GONE_S) == []
    assert warm_job.launcher.wait(END_S) == 1
    assert killed_by_us((warm_job.run_dir / "torchrun.log").read_text()) == {2}
    assert "Rank 0 (stage0) failed first" in warm_job.said.read_text()


def test_a_rank_that_somebody_interrupts_is_named_with_the_signal(warm_job):
    """Batch systems and out-of-memory daemons send SIGTERM, and torchrun sends the same to the others."""
    warm_job.ranks[2].send_signal(signal.SIGINT)
    assert warm_job.launcher.wait(END_S) == 1
    assert "Rank 2 was ended by SIGINT." in warm_job.said.read_text()


def test_a_run_folder_that_is_moved_away_in_mid_run_is_told_when_the_run_ends(warm_job):
    warm_job.run_dir.rename(warm_job.run_dir.with_name("moved"))
    warm_job.ranks[2].kill()
    assert warm_job.launcher.wait(END_S) == 1
    assert all_gone([warm_job.agent, *warm_job.ranks], GONE_S) == []
    assert f"The run folder {warm_job.run_dir} was moved or removed" in warm_job.said.read_text()


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGINT])
def test_a_terminal_that_closes_and_ctrl_c_end_the_run_and_leave_nothing(tmp_path, environment, sent):
    """With a child of a stage's own beside each rank, as a loader of data has one. The follower stands still,
    so that the others wait in gloo."""
    command = [sys.executable, "-m", "ppwork", "run", "--chunks", "2000", "--out", str(tmp_path / "run")]
    stages = ["--stage0", "toy_stages:Counter", "--stage1", "toy_stages:Parent", "--backend", "gloo"]
    said = tmp_path / "said"
    with said.open("wb") as file:
        # Under nohup it would be inherited as ignored, and rightly obeyed.
        before = signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)
        launcher = subprocess.Popen([*command, *stages], env=environment, stderr=file)
        signal.signal(sent, before)
    try:
        wait_for(lambda: any(entry.name == "emit" for entry in read_entries(tmp_path / "run", 0)), 2 * END_S)
        agent, ranks = agent_and_ranks(tmp_path / "run")
        children = [child for rank in ranks for child in rank.children()]
        assert len(children) == 2
        suspend(ranks[2])
        launcher.send_signal(sent)
        assert all_gone([agent, *ranks, *children], CLEAN_UP_S) == []
        assert launcher.wait(END_S) == 128 + sent
    finally:
        launcher.kill()
        launcher.wait()
    assert ("interrupted; no rank of this command is left" in said.read_text()) == (sent == signal.SIGINT)
    assert [path.name for path in (tmp_path / "ppwork").iterdir()] == []
    assert "interrupted" in diagnose(tmp_path / "run").text


@pytest.mark.parametrize("launcher_dies", [False, True])
def test_a_reference_that_is_stopped_ends_the_verification_or_dies_with_its_launcher(
    tmp_path, warm, launcher_dies
):
    """It has imported torch by then, or is at it, and is tied to the launcher. What ties it when it is cold
    is the subject of the second case."""
    source = SCRIPT.replace("chunks=2000", "chunks=3, verify=True").replace(":Slow", ":StandsAlone")
    job = Job(tmp_path / "run", {**warm, WARM_VARIABLE: "0"} if launcher_dies else warm, source)
    try:
        reference = wait_for(lambda: reference_of(job.run_dir), 4 * END_S)
        # On the list: the launcher follows it. One stopped before that is taken for one that did not start.
        wait_for(lambda: [*(tmp_path / "ppwork").glob(f"*-{reference.pid}-*.json")], 4 * END_S)
        wait_for(lambda: "libtorch" in Path(f"/proc/{reference.pid}/maps").read_text(), 4 * END_S)
        suspend(reference)
        if launcher_dies:
            job.launcher.kill()
        assert job.launcher.wait(END_S) == (-signal.SIGKILL if launcher_dies else 1)
        assert all_gone([reference], GONE_S) == []
    finally:
        job.close()
    if launcher_dies:
        return
    assert "The single-process reference was stopped (SIGSTOP)" in job.said.read_text()
    assert "was stopped (SIGSTOP)" in diagnose(job.run_dir).text


def reference_of(run_dir) -> psutil.Process | None:
    for process in descendants():
        with suppress(psutil.Error):
            if process.cmdline()[-2:] == ["reference", str(run_dir)]:
                return process
    return None


def test_torchrun_that_stands_still_ends_the_run(warm_job):
    start = time.monotonic()
    suspend(warm_job.agent)
    assert warm_job.launcher.wait(END_S) == 1
    assert time.monotonic() - start >= FREEZE_S
    assert all_gone([warm_job.agent, *warm_job.ranks], GONE_S) == []
    assert "torchrun was stopped" in warm_job.said.read_text()


def test_a_run_outlives_ctrl_z_is_listed_and_is_stopped_by_its_folder(warm_job, warm):
    """Ctrl-Z stops launcher and torchrun at once, longer than torchrun alone may stand still."""

    def ppwork(*arguments):
        command = [sys.executable, "-m", "ppwork", *arguments]
        return subprocess.run(command, env=warm, capture_output=True, text=True, check=True).stdout

    for process in (psutil.Process(warm_job.launcher.pid), warm_job.agent):
        suspend(process)
    time.sleep(FREEZE_S + 0.5)  # how long the user looks at something else
    emitted = warm_job.emitted()
    for process in (psutil.Process(warm_job.launcher.pid), warm_job.agent):
        process.resume()
    wait_for(lambda: warm_job.emitted() > emitted + 5)

    def listed_here():
        """Other tests of this machine may have jobs of their own torchrun."""
        return [run for run in json.loads(ppwork("ps", "--json")) if run["run_dir"] == str(warm_job.run_dir)]

    (listed,) = listed_here()
    assert (listed["launcher"], listed["torchrun"]) == (warm_job.launcher.pid, warm_job.agent.pid)
    assert [rank["rank"] for rank in listed["ranks"]] == [0, 1, 2]
    assert {rank["pid"] for rank in listed["ranks"]} == {rank.pid for rank in warm_job.ranks}
    shown = ppwork("ps")
    assert str(warm_job.run_dir) in shown
    assert str(listed["ranks"][2]["pid"]) in shown
    assert f"stopped {warm_job.run_dir}" in ppwork("stop", str(warm_job.run_dir))
    assert all_gone([warm_job.agent, *warm_job.ranks], 0.1) == []
    assert warm_job.launcher.wait(END_S) == 1
    assert listed_here() == []
    ended = "The run was ended by `ppwork stop`."
    assert ended in warm_job.said.read_text()
    assert diagnose(warm_job.run_dir).sentence.startswith(ended)
    assert "SignalException" not in diagnose(warm_job.run_dir).text
