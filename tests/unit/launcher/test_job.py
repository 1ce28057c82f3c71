"""Jobs of a made Slurm: what is handed in, what is asked, and how a job that ends is told."""

from __future__ import annotations

import itertools
import shlex
import signal
import sys
import time
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

import ppwork as pp
from ppwork.cli import main as cli
from ppwork.cli.main import app
from ppwork.errors import NotOverError, PlanError, RunFailed, UnavailableError
from ppwork.lab import live
from ppwork.lab.job import JobProgress, attach
from ppwork.launcher import job as jobs
from ppwork.launcher import slurm as queue
from ppwork.launcher.job import JOB_FILE, Job, JobRecord, find, own_jobs, submit
from ppwork.launcher.launch import launch
from ppwork.launcher.registry import own_runs
from ppwork.launcher.view import StopAsked
from ppwork.process import STOPPED
from ppwork.records.run import LaunchEnd
from ppwork.records.spans import Recorder, span_file

pytestmark = pytest.mark.processes

PLAN = pp.synthetic(
    pp.Plan(mesh_size=2, chunks=2, backend="gloo"), encode_ms=1, decode_ms=1, stage1_ms=1, payload_mb=0.1
)
COMMANDS = ("sbatch", "squeue", "scancel", "srun")
ANSWER = """\
#!/bin/sh
name=$(basename "$0")
printf '%s\\n' "$name $*" >> {folder}/asked
case "$*" in *--me*) name=$name.mine;; *--states=PENDING*) name=$name.waiting;;
*%k*) name=$name.comment;; esac
[ "$name" = sbatch ] && cat > {folder}/script
[ -f {folder}/$name.says ] && cat {folder}/$name.says
[ -f {folder}/$name.hangs ] && {{ trap 'kill $!; touch {folder}/$name.left; exit 1' TERM; sleep 60 & wait; }}
[ -f {folder}/$name.fails ] && {{ cat {folder}/$name.fails >&2; exit 1; }}
exit 0
"""


class Slurm:
    """Commands of this folder in the place of Slurm's."""

    def __init__(self, folder):
        self._folder = folder

    def says(self, command, text):
        (self._folder / f"{command}.says").write_text(text)

    def is_of(self, folder):
        """The job's comment is this folder."""
        self.says("squeue.comment", f"4711|{folder}\n")

    def hangs(self, command):
        (self._folder / f"{command}.hangs").touch()

    def fails(self, command, text):
        (self._folder / f"{command}.fails").write_text(text)

    @property
    def asked(self):
        return [shlex.split(line) for line in (self._folder / "asked").read_text().splitlines()]

    @property
    def script(self):
        return (self._folder / "script").read_text()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    (folder := tmp_path / "slurm").mkdir()
    for name in COMMANDS:
        (folder / name).write_text(ANSWER.format(folder=folder))
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(jobs, "ASK_S", 0.0)
    monkeypatch.setattr(jobs, "LATE_S", 0.3)
    made = Slurm(folder)
    made.says("sbatch", "4711;lab\n")
    return made


def test_what_is_handed_in_is_the_run_and_does_not_begin_twice(slurm, tmp_path):
    on = pp.Slurm(2, partition="gpu", time="0:10:00", ranks=(1, 2), python="/opt/a python")
    job = submit(PLAN, on=on, out=tmp_path / "a run")
    assert (job.job_id, job.run_dir) == ("4711", tmp_path / "a run")
    ((command, *words),) = slurm.asked
    assert command == "sbatch"
    assert {"--no-requeue", "--nodes=2", "--ntasks-per-node=1", "--partition=gpu"} < {*words}
    assert shlex.split(slurm.script.splitlines()[1]) == [
        "exec", "/opt/a python", "-P", "-m", "ppwork", "batch", str(job.run_dir),
    ]  # fmt: skip
    record = JobRecord.load(job.run_dir)
    assert (record.plan, record.job_id) == (PLAN, "4711")
    assert pp.Slurm(record.nodes, srun=record.asked, **record.options) == on


def test_what_no_queue_takes_is_refused_and_leaves_nothing(slurm, tmp_path):
    with pytest.raises(PlanError, match="without a queue"):
        submit(PLAN, on=pp.Hosts("a", "b"))
    with pytest.raises(PlanError, match="over hosts"):
        submit(pp.Plan(mesh_size=1, one_process=True), on=pp.Slurm(2))
    with pytest.raises(PlanError, match="ranks"):
        submit(PLAN, on=pp.Slurm(2, ranks=(1, 1)))
    slurm.fails("sbatch", "sbatch: error: invalid partition specified: gpu\n")
    with pytest.raises(UnavailableError, match="invalid partition"):
        submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_job_that_waits_says_how_many_are_before_it(slurm, tmp_path):
    job = submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    slurm.says("squeue", "PENDING|Priority|all\n")
    slurm.says("squeue.waiting", "4000\n4711\n5000\n")
    assert job.state == "PENDING (Priority), 2 of 3 in the queue"
    assert not job.is_over
    slurm.fails("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    assert (job.state, job.is_over) == (queue.GONE, True)
    slurm.fails("squeue", "Unable to contact slurm controller\n")
    with pytest.raises(UnavailableError, match="Unable to contact"):
        _ = job.state


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (LaunchEnd(exit_code=0), ""),
        (LaunchEnd(exit_code=0, what="The outputs differ.", check_first="x"), "The outputs differ"),
        (LaunchEnd(exit_code=STOPPED, what="It was asked to end."), "asked to end"),
        (LaunchEnd(exit_code=jobs.REFUSED, what="The hosts have no torch."), "no torch"),
        (None, r"Slurm's job 4711 ended \(NODE_FAIL\), and its launcher left no word: slurmstepd: oops"),
    ],
)
def test_a_job_that_has_ended_is_read_as_its_launcher_left_it(slurm, tmp_path, end, words):
    job = submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    slurm.says("squeue", "RUNNING|None|all\n" if end is not None else "NODE_FAIL|NodeDown|all\n")
    if end is not None:
        end.save(job.run_dir)
    (job.run_dir / jobs.JOB_LOG).write_text("slurmstepd: oops\n")
    run = attach(job.run_dir, check=False, limit_s=20.0)
    assert run.exit_code == (None if end is None else end.exit_code)
    assert (run.failure is None) == (not words)
    if words:
        with pytest.raises(RunFailed, match=words):
            attach(job.run_dir)


def test_who_looks_no_longer_leaves_the_job_alone_and_the_stop_button_ends_it(slurm, tmp_path):
    job = submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    slurm.says("squeue", "RUNNING|None|all\n")
    slurm.is_of(job.run_dir)
    with pytest.raises(NotOverError, match="was not over"):
        attach(job, limit_s=0.3)
    assert "scancel" not in {words[0] for words in slurm.asked}

    class Pressed:
        def __init__(self, followed):
            slurm.says("squeue", "CANCELLED|None|all\n")

        def look(self):
            raise StopAsked

        def end(self, finished):
            self.finished = finished

    run = jobs.follow(job, check=False, view=Pressed)
    assert ["scancel", "4711"] in slurm.asked
    assert "(CANCELLED)" in run.failure.what


def test_jobs_are_listed_and_stopped_by_folder_or_number(slurm, tmp_path):
    job = submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    slurm.says("squeue.mine", f"4711|PENDING|Resources|{job.run_dir}\n")
    slurm.says("squeue", "PENDING|Resources|all\n")
    assert [(each.job_id, each.run_dir, each.last) for each in own_jobs()] == [
        ("4711", job.run_dir, "PENDING (Resources)")
    ]
    assert find("4711").run_dir == find(4711).run_dir == find(job.run_dir).run_dir == job.run_dir
    with pytest.raises(PlanError, match="no job 4712"):
        find(4712)
    with pytest.raises(PlanError, match="no folder of a submitted run"):
        find(tmp_path)
    slurm.is_of(job.run_dir)
    for which in (str(job.run_dir), "4711"):
        done = CliRunner().invoke(app, ["stop", which], catch_exceptions=False)
        assert "cancelled job 4711" in done.output
    listed = CliRunner().invoke(app, ["ps"], catch_exceptions=False).output
    assert "job 4711" in listed
    slurm.fails("squeue.mine", "squeue: fatal: Could not establish a configuration source\n")
    assert own_jobs() == []
    slurm.fails("squeue.mine", "Unable to contact slurm controller\n")
    assert "Unable to contact" in CliRunner().invoke(app, ["ps"], catch_exceptions=False).output
    done = CliRunner().invoke(app, ["submit", "--out", str(tmp_path / "two"), "--on", "slurm:2,time=5"])
    assert "job 4711" in done.output
    assert "--time=5" in slurm.asked[-1]


def test_a_launch_that_waits_in_the_queue_says_so_and_can_be_stopped_there(slurm, tmp_path):
    slurm.says("srun", "srun: job 4711 queued and waiting for resources\n")
    slurm.hangs("srun")
    slurm.says("squeue", "PENDING|Resources|all\n")
    slurm.says("squeue.waiting", "4000\n4711\n")
    said = []

    def press_stop(words):
        said.append(words)
        raise StopAsked

    with pytest.raises(RunFailed, match=r"stopped while it waited in the queue\. Nothing was started"):
        launch(PLAN, on=pp.Slurm(2), out=tmp_path / "run", queued=press_stop)
    assert said == ["job 4711: PENDING (Resources), 2 of 2 in the queue"]
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "slurm" / "srun.left").exists()  # asked to, so that it took its job out of the queue


def test_ps_lists_a_launch_that_waits_in_the_queue_and_stop_ends_it(slurm, tmp_path, monkeypatch):
    """There is no plan in its folder yet, and no rank that could be asked."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    slurm.says("srun", "srun: job 4711 queued and waiting for resources\n")
    slurm.hangs("srun")
    slurm.says("squeue", "PENDING|Resources|all\n")
    said = []

    def once(_words):
        if not said:
            commands = ["ps"], ["ps", "--json"], ["stop", str(tmp_path / "run")]
            said.extend(CliRunner().invoke(app, words, catch_exceptions=False).output for words in commands)

    with pytest.raises(UnavailableError, match="Nothing was started") as refused:
        launch(PLAN, on=pp.Slurm(2), out=tmp_path / "run", queued=once)
    listed, as_json, stopped = said
    assert "waits" in listed
    (run,) = [run for run in msgspec.json.decode(as_json) if run["run_dir"] == str(tmp_path / "run")]
    assert (run["run_dir"], run["waits"], run["ranks"]) == (str(tmp_path / "run"), "waits in the queue", [])
    assert stopped == f"stopped {tmp_path / 'run'}\n"
    assert (tmp_path / "slurm" / "srun.left").exists()  # asked to, so that it took its job out of the queue
    assert "ppwork stop" in refused.value.check_first
    assert own_runs() == []
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_taken_is_refused_before_the_queue_is_waited_for(slurm, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(PlanError, match="is not empty"):
        launch(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    assert not (tmp_path / "slurm" / "asked").exists()
    assert (tmp_path / "run" / "mine").exists()


def test_what_the_queue_says_stands_in_the_cell_until_the_run_has_a_view_of_its_own(monkeypatch):
    seen = []

    class Seen:
        def __init__(self, facts):
            self.look = lambda: seen.append((facts.name, facts.look()))
            self.end = seen.append

    monkeypatch.setattr(live, "view_of", lambda facts, live: Seen(facts))
    queue = live.InQueue(live=True)
    queue.close()  # there was none
    assert seen == []
    queue.say("job 4711: PENDING (Resources)")
    queue.say("job 4711: RUNNING")
    queue.close()
    queue.close()
    *shown, stays = seen
    assert shown == [("job 4711: PENDING (Resources)", []), ("job 4711: RUNNING", [])]
    assert repr(stays) == "job 4711 waited 0 s in the queue"


def handed_in(folder, job_id):
    folder.mkdir(exist_ok=True)
    JobRecord(plan=PLAN, nodes=2, asked=(), options={}, limit_s=1.0, job_id=job_id).save(folder)
    return folder


@pytest.mark.parametrize(
    ("job_id", "comment", "words"),
    [
        ("--me", "", "no folder of a submitted run"),
        ("4711\n", "", "no folder of a submitted run"),
        ("", "", "does not say whether Slurm took its job"),
        ("4711", "4711|/srv/me/runs/another\n", "is not of"),
        ("4711", "4711|(null)\n", "is not of"),
        ("4711", "", None),
    ],
)
def test_a_folder_ends_no_job_but_its_own(slurm, tmp_path, job_id, comment, words):
    """Its file may be anybody's, old, or of a submit that was interrupted."""
    folder = handed_in(tmp_path / "run", job_id)
    slurm.says("squeue", "RUNNING|None|all\n")
    slurm.says("squeue.comment", comment)
    if words is None:  # it has just ended
        find(folder).stop()
    else:
        with pytest.raises(UnavailableError if not job_id else PlanError, match=words):
            find(folder).stop()
        assert words in str(CliRunner().invoke(app, ["stop", str(folder)]).exception)
    (tmp_path / "slurm" / "asked").open("a").close()
    assert "scancel" not in {words[0] for words in slurm.asked}


def test_stop_says_that_slurm_does_not_answer_and_not_that_no_run_is_going(slurm, tmp_path):
    folder = handed_in(tmp_path / "run", "4711")
    slurm.fails("squeue", "Unable to contact slurm controller\n")
    slurm.fails("squeue.mine", "Unable to contact slurm controller\n")
    for which in (str(folder), "4711"):
        assert "Unable to contact" in str(CliRunner().invoke(app, ["stop", which]).exception)


def test_a_submit_that_slurm_did_not_answer_in_time_may_be_queued(slurm, tmp_path, monkeypatch):
    """The launcher of such a job needs its file, and the user the number."""
    slurm.fails("sbatch", "sbatch: error: Batch job submission failed: Socket timed out on send/recv\n")
    with pytest.raises(UnavailableError, match=r"timed out.*may be queued") as late:
        submit(PLAN, on=pp.Slurm(2), out=tmp_path / "one")
    assert "squeue --me --name=ppwork" in late.value.check_first
    slurm.hangs("sbatch")
    monkeypatch.setattr(queue, "ANSWER_S", 0.3)
    with pytest.raises(UnavailableError, match=r"within 0.3 s.*may be queued"):
        submit(PLAN, on=pp.Slurm(2), out=tmp_path / "two")
    assert JobRecord.load(tmp_path / "one").job_id == JobRecord.load(tmp_path / "two").job_id == ""


def test_a_slurm_that_answers_slowly_is_not_asked_all_the_time(tmp_path, monkeypatch):
    now, asked = [1000.0], []

    def slept(seconds):
        now[0] += seconds

    def silent(job):
        slept(queue.ANSWER_S)
        asked.append(now[0])
        raise UnavailableError("Slurm's squeue did not answer.", check_first="")

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=slept))
    monkeypatch.setattr(Job, "state", property(silent))
    with pytest.raises(NotOverError, match="was not over"):
        jobs.follow(Job("4711", tmp_path), limit_s=400.0)
    between = [late - early for early, late in itertools.pairwise(asked)]
    assert between
    assert min(between) > queue.ANSWER_S + queue.ASK_S


def test_ctrl_c_at_the_terminal_leaves_the_job_and_says_so(slurm, tmp_path, monkeypatch, capfd):
    job = submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ppwork.cli.jobs.follow", pressed)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # as a process of its own it has them
    monkeypatch.setattr(cli.sys, "argv", ["ppwork", "attach", str(job.run_dir)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capfd.readouterr().err
    assert (left.value.code, "job 4711 goes on" in said) == (STOPPED, True)
    assert "no rank" not in said
    assert "scancel" not in {words[0] for words in slurm.asked}


def test_ctrl_c_while_a_run_is_handed_in_says_that_it_may_be_queued(tmp_path, monkeypatch, capfd):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ppwork.cli.jobs.submit", pressed)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # as a process of its own it has them
    monkeypatch.setattr(cli.sys, "argv", ["ppwork", "submit", "--on", "slurm:2"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capfd.readouterr().err
    assert left.value.code == STOPPED
    assert "may be queued" in said
    assert "squeue" in said
    assert "no rank" not in said


def test_the_launcher_of_a_job_writes_down_why_it_started_nothing(slurm, tmp_path, monkeypatch):
    """Slurm's own message goes to a log on a node that nobody reads."""
    monkeypatch.setattr(jobs.signal, "signal", lambda *_: None)  # as a process of its own it has them
    job = submit(PLAN, on=pp.Slurm(2), out=tmp_path / "run")
    slurm.fails("srun", "srun: error: no such option\n")
    assert jobs.main(job.run_dir) == jobs.REFUSED
    assert "srun: error: no such option" in LaunchEnd.load(job.run_dir).what
    (job.run_dir / "plan.json").write_bytes(PLAN.to_json())
    LaunchEnd(exit_code=0).save(job.run_dir)
    assert jobs.main(job.run_dir) == jobs.REFUSED  # begun once more by somebody: the first one's word stays
    assert LaunchEnd.load(job.run_dir).exit_code == 0


def test_a_job_whose_file_does_not_read_says_so_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.signal, "signal", lambda *_: None)  # as a process of its own it has them
    (tmp_path / JOB_FILE).write_text("{}")
    assert jobs.main(tmp_path) == jobs.REFUSED
    assert "no folder of a submitted run" in LaunchEnd.load(tmp_path).what


def test_bars_of_a_job_end_where_its_records_do_whatever_its_clock_says(tmp_path):
    """Its launcher's clock was compared with nobody's here."""
    record = JobRecord(plan=PLAN, nodes=2, asked=(), options={}, limit_s=1.0, job_id="4711")
    (tmp_path / JOB_FILE).write_bytes(msgspec.json.encode(record))
    ahead_ns = time.monotonic_ns() + 5_000_000_000_000
    facts = JobProgress(Job("4711", tmp_path))
    with Recorder(span_file(tmp_path, 1)) as recorder:
        facts.look()
        ids = {"call_id": 0, "chunk_index": 0, "cache_epoch": 0}
        recorder.add_span("generate", ahead_ns, end_ns=ahead_ns + 1000, ids=ids)
        facts.look()
    (bar,) = facts.bars
    assert facts.now_ns == bar.end_ns
    assert facts.name.endswith("job 4711: handed in")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("attach", "4711"), 1, "Slurm's squeue failed: Unable to contact slurm controller"),
        (("submit", "--on", "slurm:2", "--out", "{}/new"), 1, "Slurm's sbatch failed: Unable to contact"),
        (("attach", "{}"), 2, "bad input: {} is no folder of a submitted run"),
    ],
    ids=["attach", "submit", "no job"],
)
def test_a_slurm_that_does_not_answer_is_no_bad_input(
    slurm, tmp_path, monkeypatch, capsys, words, code, said
):
    for name in ("sbatch", "squeue", "squeue.mine"):
        slurm.fails(name, "Unable to contact slurm controller\n")
    monkeypatch.setattr(sys, "argv", ["ppwork", *(word.format(tmp_path) for word in words)])
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main() == code
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
    assert capsys.readouterr().err.startswith(said.format(tmp_path))
