"""``ppwork timeline`` on runs of real ranks: the files are there, whole, and true to the spans."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from checkout import SUPPORT
from commands import ppwork
from failure_records import record
from trace_check import check_trace

import ppwork as pp
from ppwork.records.failure import failure_file

pytestmark = pytest.mark.multiproc


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    plan = pp.Plan(
        mesh_size=2,
        chunks=6,
        backend="gloo",
        timeout_s=20.0,
        stage0="toy_stages:Counter",
        stage1="toy_stages:Scaler",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(SUPPORT)
        return pp.launch(plan, out=tmp_path_factory.mktemp("timeline") / "run")


def test_timeline_writes_picture_table_and_trace_and_says_what_they_show(run):
    done = ppwork("timeline", run.run_dir)
    assert done.returncode == 0, done.stderr
    folder = run.run_dir
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG\r\n")
    table = (folder / "timeline.txt").read_text()
    assert f"the period is {run.summary['period_ms']:.1f} ms" in table
    assert done.stdout.startswith(table.splitlines()[0])
    for name in ("timeline.png", "timeline.txt", "trace.json"):
        assert str(folder / name) in done.stdout
    trace = (folder / "trace.json").read_bytes()
    check_trace(trace)
    events = json.loads(trace)["traceEvents"]
    assert json.loads(trace)["otherData"]["flows_left_out"] == 0  # one host, one clock
    for phase in "sf":
        assert len([e for e in events if e["ph"] == phase]) == 6 * 2
    rows = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert rows == {"rank 0 stage0", "rank 1 leader", "rank 2 follower"}


def test_two_runs_are_compared_in_one_picture_and_one_table_and_a_failed_one_is_called_so(run, tmp_path):
    """The second folder has a record of a failure, too, as a run has that stopped after its last chunk."""
    other = tmp_path / "other"
    shutil.copytree(run.run_dir, other)
    failure_file(other, 2).write_bytes(msgspec.json.encode(record(rank=2, where={"rank": 2})))
    done = ppwork("timeline", run.run_dir, "--compare", other, "--chunks", "2:4")
    assert done.returncode == 0, done.stderr
    assert (run.run_dir / "timeline-compare.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert done.stdout.count("the period is") == 2
    rows = (run.run_dir / "timeline.txt").read_text().splitlines()
    assert len([row for row in rows if "mean" in row.split()]) == 2
    assert done.stdout.count("This run failed: Rank 2") == 1
    assert f"ppwork diagnose {other}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{}/nowhere"], "cannot be read"),
        (["{}/empty"], "no spans of any chunk"),
        (["{run}", "--compare", "{}/nowhere"], "cannot be read"),
        (["{run}", "--chunks", "4:2"], "FIRST:LAST"),
        (["{run}", "--chunks", "70:80"], "the run has 0 to 5"),
    ],
    ids=["no folder", "no spans", "no second folder", "no range", "no such chunks"],
)
def test_bad_input_exits_2_with_one_message_and_writes_nothing(run, command, tmp_path, arguments, text):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "plan.json").write_bytes(run.plan.to_json())
    before = sorted(tmp_path.rglob("*"))
    code, message = command("timeline", *(word.format(tmp_path, run=run.run_dir) for word in arguments))
    assert code == 2, message
    assert message.startswith("bad input: ")
    assert text in message
    assert "Traceback" not in message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_record_that_does_not_read_is_no_bad_input(run, command, tmp_path):
    (tmp_path / "plan.json").write_bytes(run.plan.to_json())
    (tmp_path / "spans-rank0.jsonl").write_text("nonsense\n")
    code, message = command("timeline", str(tmp_path))
    assert code == 1
    assert message.startswith(f"The spans of {tmp_path} do not read")
