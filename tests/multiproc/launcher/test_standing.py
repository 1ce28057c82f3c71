"""A job that stands still now: ``ppwork diagnose`` reads its ranks' stacks from outside, and ends nothing.

With py-spy itself where it is installed and may look, and everywhere with what it once said of the same
programs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from checkout import EXAMPLES, ROOT, SUPPORT
from waiting import wait_for

from ppwork.errors import PlanError, UnavailableError
from ppwork.launcher.processes import end
from ppwork.launcher.standing import diagnose_any, diagnose_standing

pytestmark = pytest.mark.multiproc

PROGRAM = SUPPORT / "hanging" / "programs.py"
SAID = SUPPORT / "captured" / "standing.json"
"""By program and rank the threads that py-spy 0.4.3 showed, in an installation somewhere else."""
PYTHON = sys.executable
STANDS_S = 60.0
LINES = PROGRAM.read_text().splitlines()


def at(text, name):
    """Return ``file:line`` of the last line with this text in a program."""
    begin = LINES.index(f"def {name}():")
    end = next(n for n, line in enumerate(LINES) if n > begin and line[:4] in ("def ", "glob"))
    return f"{PROGRAM}:{[n for n in range(begin, end) if text in LINES[n]][-1] + 1}"


NEW, RECV = at("dist.new_group", "left_out_group"), at("dist.recv", "circle")
CASES = {
    "late": (
        "Rank 2 was not in any call of torch.distributed; ranks 0 and 1 were in barrier.",
        [f"rank 0 waits for rank 2: barrier at {at('dist.barrier', 'late')}", "time.sleep(60)"],
        {"rank": 2},
    ),
    "circle": (
        f"Ranks 0 and 1 stood in recv at {RECV} for a message that never came; rank 2 was in barrier.",
        ["do both receive first?"],
        {"rank": 0, "peer": 1},
    ),
    "left_out_group": (
        f"The ranks were in different calls: rank 0 in new_group at {NEW}; rank 1 in new_group at {NEW}; "
        f"rank 2 in all_reduce at {at('dist.all_reduce(x)', 'left_out_group')}.",
        ["why rank 2 took another branch"],
        {"rank": 2},
    ),
}


@contextmanager
def ended_after(*started):
    """End these processes, and all below them, after the body."""
    try:
        yield started
    finally:
        own = [psutil.Process(each.pid) for each in started]
        end([*own, *(below for each in own for below in each.children(recursive=True))], 0.0)
        for each in started:
            each.wait(10)


def rank_of_a_job(rank, size=3, port="29999", first=0, here=3):
    """Start a process that has a rank's variables, and sleeps."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank - first, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": here}
    variables = {name: str(number) for name, number in numbers.items()}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [PYTHON, "-c", "import time; time.sleep(300)"]
    return subprocess.Popen(command, env={**os.environ, **variables})


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Put a ``py-spy`` first in the path that says what the real one said of a program."""

    def tell(program, **others):
        said = json.loads(SAID.read_text())[program] | others
        text = json.dumps(said).replace("{program}", str(PROGRAM)).replace("{ours}", str(ROOT / "ppwork"))
        tool = tmp_path / "py-spy"
        tool.write_text(
            f"#!{sys.executable}\nimport sys, json\n"
            "environment = open(f'/proc/{sys.argv[-1]}/environ').read().split('\\0')\n"
            "rank = next(v[5:] for v in environment if v.startswith('RANK='))\n"
            f"print(json.dumps(json.loads({text!r})[rank]))\n"
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return tell


def judged(found, name):
    sentence, lines, where = CASES[name]
    assert found.sentence == sentence
    assert [line for line in lines if line not in found.text] == []
    assert found.cause.where == where


@pytest.mark.parametrize("name", CASES)
def test_where_the_ranks_of_a_standing_job_are_is_told_by_what_py_spy_has_said(told, name):
    told(name)
    with ended_after(*map(rank_of_a_job, range(3))) as ranks:
        judged(diagnose_standing(ranks[1].pid), name)
        assert [rank.poll() for rank in ranks] == [None] * 3


LOOP = "/srv/me/loop.py"
PLANES = {
    "plane_mesh_sleeps": (
        "Rank 2 was not in any call of torch.distributed; rank 0 was in receive_result, "
        "rank 1 was in all_reduce.",
        [
            f"rank 0 waits for rank 1: receive_result at {LOOP}:41",
            f"rank 1 waits for rank 2: all_reduce at {LOOP}:32",
        ],
        2,
    ),
    "plane_rank0_sleeps": (
        "Rank 0 was not in any call of torch.distributed; ranks 1 and 2 were in chunks.",
        [f"rank 1 waits for rank 0: chunks at {LOOP}:49", f"rank 2 waits for rank 1: chunks at {LOOP}:49"],
        0,
    ),
    "plane_message": (
        f"Rank 1 stood in recv at {PROGRAM}:59 for a message that never came; rank 0 was in receive_result, "
        "rank 2 was in all_reduce.",
        [f"rank 0 waits for rank 1: receive_result at {LOOP}:41"],
        1,
    ),
    "plane_loads": (
        "Rank 2 was not in any call of torch.distributed; ranks 0 and 1 were in join.",
        [f"rank 0 waits for rank 2: join at {LOOP}:36", f"rank 1 waits for rank 2: join at {LOOP}:36"],
        2,
    ),
}
"""Loops of ppwork: rank 0 waits there in a queue, and was named in place of the rank that slept."""


@pytest.mark.parametrize("name", PLANES)
def test_a_rank_in_a_plane_waits_for_the_rank_at_its_other_end(told, name):
    told(name)
    sentence, lines, rank = PLANES[name]
    with ended_after(*map(rank_of_a_job, range(3))) as ranks:
        found = diagnose_standing(ranks[1].pid)
    assert found.sentence == sentence
    assert [line for line in lines if line not in found.text] == []
    assert found.cause.where == {"rank": rank}


def stopped(process):
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def test_a_rank_that_is_stopped_is_named_with_what_lets_it_go_on(told):
    """py-spy cannot look into it; it was told to have taken another branch."""
    told("late")
    with ended_after(*map(rank_of_a_job, range(3))) as ranks:
        stopped(ranks[1])
        found = diagnose_standing(ranks[0].pid)
        assert (found.cause.rank, found.cause.where) == (1, {"rank": 1})
        assert found.sentence.startswith(
            f"Rank 1 (pid {ranks[1].pid}) is stopped (SIGSTOP, Ctrl-Z or a debug"
        )
        assert f"`kill -CONT {ranks[1].pid}`" in found.check_first
        assert f"rank 0, in barrier at {at('dist.barrier', 'late')}" in found.text
        for rank in ranks:
            stopped(rank)
        assert diagnose_standing(ranks[0].pid).sentence.startswith("Rank 0 (pid ")


@pytest.fixture(scope="module")
def py_spy():
    """Skip where py-spy is not installed, or may not look into a process of ours."""
    if shutil.which("py-spy") is None:
        pytest.skip("py-spy is not installed")
    with ended_after(rank_of_a_job(0, 1, here=1)) as (process,):
        until = time.monotonic() + 5.0
        while True:  # Python may not have begun
            command = ["py-spy", "dump", "--pid", str(process.pid)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            if time.monotonic() > until:
                pytest.skip(f"py-spy may not look into a process: {done.stderr}")


@pytest.mark.usefixtures("py_spy")
@pytest.mark.parametrize("name", CASES)
def test_py_spy_itself_says_the_same_of_a_torchrun_that_stands(name):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    variables = {**os.environ, "BOUND_S": "100", "OMP_NUM_THREADS": "1"}
    torchrun = subprocess.Popen(
        [*command, str(PROGRAM), name], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with ended_after(torchrun):
        until = time.monotonic() + STANDS_S
        found = None
        while time.monotonic() < until and (found is None or found.sentence != CASES[name][0]):
            try:
                found = diagnose_any([Path(str(torchrun.pid))])
            except (PlanError, UnavailableError):  # its ranks have not begun
                time.sleep(0.5)
        judged(found, name)
        assert torchrun.poll() is None


def test_a_job_is_found_by_itself_if_it_is_the_only_one_and_several_are_told_apart(told):
    told("late")
    first, second = (
        [rank_of_a_job(rank, 2, here=2) for rank in range(2)],
        rank_of_a_job(0, 1, port="29998", here=1),
    )
    with ended_after(*first, second):
        with pytest.raises(PlanError, match=r"\d jobs run here: ") as several:
            diagnose_any([])
        assert "time.sleep(300)" in several.value.what
        assert "rank 0 waits for rank 1" not in diagnose_standing(second.pid).text


def test_ranks_that_still_import_are_no_hang(told):
    """They were "in a call that does not end", and the network between hosts was asked for."""
    lines = [("<frozen importlib._bootstrap>", 241), ("<frozen importlib._bootstrap_external>", 940)]
    frames = [{"name": "load", "filename": file, "line": line} for file, line in (*lines, (str(PROGRAM), 3))]
    importing = [{"thread_name": "MainThread", "frames": frames}]
    told("late", **dict.fromkeys("012", importing))
    with ended_after(*map(rank_of_a_job, range(3))) as ranks:
        found = diagnose_standing(ranks[0].pid)
    assert (found.sentence, found.cause) == ("No hang is seen: ranks 0, 1 and 2 still import modules.", None)
    assert f"ranks 0, 1 and 2 at {PROGRAM}:3" in found.text
    assert "ask again in some seconds" in found.text


def test_a_rank_that_is_in_no_line_of_its_user_is_not_taken_for_the_one_that_never_came(told):
    """So stands rank 0 of a run of stages: it waits for a result in code of ours."""
    frame = {"name": "get", "filename": "/usr/lib/python3/site-packages/ppwork/runtime/lanes.py", "line": 3}
    told("late", **{"0": [{"thread_name": "MainThread", "frames": [frame]}]})
    with ended_after(*map(rank_of_a_job, range(3))) as ranks:
        found = diagnose_standing(ranks[0].pid)
    assert found.sentence == "Rank 2 was not in any call of torch.distributed; rank 1 was in barrier."
    assert "rank 0, in no line of your code" in found.text


def test_a_job_of_which_other_ranks_run_elsewhere_says_so(told):
    told("late")
    with ended_after(rank_of_a_job(2, 4, first=2, here=1)) as (alone,):
        assert "as the job has 4: ask there, too" in diagnose_standing(alone.pid).text


def test_without_py_spy_or_without_a_rank_it_is_said_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(PlanError, match=f"No rank of a job runs in process {os.getpid()}"):
        diagnose_standing(os.getpid())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        ended_after(rank_of_a_job(0, 1, here=1)) as (process,),
        pytest.raises(UnavailableError, match="py-spy") as error,
    ):
        diagnose_standing(process.pid)
    assert error.value.check_first == "pip install py-spy"


def test_a_file_that_is_called_as_a_process_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "123").mkdir()
    assert "No run began in 123" in diagnose_any([tmp_path.joinpath("123").relative_to(tmp_path)]).text


@pytest.mark.usefixtures("py_spy")
def test_py_spy_itself_finds_the_mesh_rank_that_sleeps_below_a_loop_of_ppwork(tmp_path):
    program = tmp_path / "sleeps.py"
    sleep = "    if x[0] == 6 and dist.get_rank() == 2:\n        time.sleep(300)\n    share = x /"
    program.write_text((EXAMPLES / "overlap.py").read_text().replace("    share = x /", sleep))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    torchrun = subprocess.Popen(
        [*command, str(program), "2", str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with ended_after(torchrun):
        until, found = time.monotonic() + STANDS_S, None
        while time.monotonic() < until and (found is None or "receive_result" not in found.sentence):
            try:
                found = diagnose_any([Path(str(torchrun.pid))])
            except (PlanError, UnavailableError):
                time.sleep(0.2)
    assert found.sentence == PLANES["plane_mesh_sleeps"][0]
    assert found.cause.source.startswith(f"{program}:")
