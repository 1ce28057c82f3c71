"""Two plain torchruns on two hosts that share nothing but a cable: results, records, clocks, the verdict."""

from __future__ import annotations

import json
import subprocess
import sys

import host_processes
import pytest
from checkout import EXAMPLES
from hosts import job_over, needs_hosts
from typer.testing import CliRunner
from waiting import wait_for

import ppwork as pp
from ppwork.cli.main import app
from ppwork.records.clocks import clock_names, host_of
from ppwork.records.pulse import read_pulse
from ppwork.records.run import VERIFY_FILE
from ppwork.records.spans import read_entries
from ppwork.timeline.chunks import aligned, emissions, spans_by_chunk

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(240), needs_hosts]

AHEAD_S = 5000


def run_command(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_the_shipped_clip_over_two_hosts_equals_one_process_and_reads_as_one_run(tmp_path):
    """Rank 0 here, the mesh there, on a clock that is 5000 s ahead; each host has a folder of its own."""
    plan = pp.Plan(mesh_size=2, chunks=6, in_flight_depth=3, backend="gloo", keep_outputs=True)
    for name in ("hosta", "hostb"):
        (tmp_path / name / "run").mkdir(parents=True)
        plan.save(tmp_path / name / "run")
    with job_over(tmp_path, "-m", "ppwork", "worker", "{local}/run", ahead_s=AHEAD_S) as job:
        assert job.wait() == [0, 0], [log.read_text() for log in job.logs]
    whole = tmp_path / "whole"
    folders = [folder / "run" for folder in job.folders]
    run_command("collect", *folders, *job.logs, "--out", whole)
    subprocess.run([sys.executable, "-m", "ppwork", "reference", str(whole)], check=True, timeout=60)
    assert json.loads((whole / VERIFY_FILE).read_bytes())["max_abs_diff"] <= plan.allowed_difference

    run = pp.open(whole)
    hosts = {rank: host_of(name) for rank, name in clock_names(run.entries_by_rank).items()}
    assert hosts == {0: "hosta", 1: "hostb", 2: "hostb"}
    chunks, emits = spans_by_chunk(aligned(run.entries_by_rank)), emissions(aligned(run.entries_by_rank))
    assert sorted(chunks) == list(range(6))
    for k, spans in chunks.items():
        ways = [(0, "send"), (1, "generate"), (0, "decode")], [(0, "send"), (2, "generate")]
        for way in ways:
            begins = [spans[step][0].start_ns for step in way]
            assert begins == sorted(begins), f"chunk {k} came before it was sent"
        assert spans[1, "generate"][0].end_ns < emits[k]
    run_command("timeline", whole)
    assert json.loads((whole / "trace.json").read_bytes())["otherData"]["flows_left_out"] == 0
    assert "Nothing failed" in pp.diagnose(whole).text


def test_a_rank_killed_on_another_host_is_named_with_both_folders_and_nobody_with_one(tmp_path):
    """A program of one's own: ``join`` makes a folder on each host, with the plan in it."""
    script = EXAMPLES / "prototype.py"
    with job_over(tmp_path, script, "{local}/run", "--chunks", "1000000") as job:
        here, there = (folder / "run" for folder in job.folders)
        wait_for(lambda: any(entry.name == "emit" for entry in read_entries(here, 0)), 60)
        host_processes.process(job.hosts[1], read_pulse(there, 2).pid).kill()
        assert all(job.wait())
    alone = pp.diagnose(here)
    assert (alone.cause.rank, alone.cause.error_type) == (-1, "RecordsMissing")
    assert "Ranks 1 and 2 ran on hostb, whose records are not here" in alone.text
    assert "ppwork collect" in alone.check_first
    by_folders = pp.diagnose([here, there, *job.logs])
    run_command("collect", here, there, *job.logs, "--out", tmp_path / "whole")
    for found in (by_folders, pp.diagnose(tmp_path / "whole"), pp.diagnose(job.logs)):
        assert found.cause.rank == 2, found.text
        assert "was killed by SIGKILL" in found.text
