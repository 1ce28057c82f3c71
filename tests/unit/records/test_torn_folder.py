"""A run folder reads after any kill and on a full disk: no crash, and no half taken for a whole."""

from __future__ import annotations

import errno
import subprocess
import sys

import msgspec
import pytest
from made_runs import made

from ppwork.cli.main import timeline
from ppwork.errors import PlanError, RecordError
from ppwork.launcher import launch
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE, TORCHRUN_LOG, Run
from ppwork.records.spans import Recorder, parse_entries, read_entries, span_file

FILLS_UP = """
import resource, sys
from pathlib import Path
from ppwork.errors import RecordError
from ppwork.records.spans import Recorder, read_entries, span_file

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
folder = Path(sys.argv[1])
with Recorder(span_file(folder, 0)) as recorder:
    for whole in range(100):
        try:
            recorder.instant(f"number {whole}")
        except RecordError as error:
            print(error)
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    recorder.instant("there is room again")
assert span_file(folder, 0).stat().st_size == 1000, "the last line is torn"
assert [entry.name for entry in read_entries(folder, 0)] == [f"number {n}" for n in range(whole)]
assert list(recorder.last_instants().values())[0]["name"] == "there is room again"
"""


@pytest.fixture
def folder(tmp_path):
    """Of a run that was killed after six chunks."""
    (tmp_path / Plan.FILE_NAME).write_bytes(Plan(mesh_size=2, chunks=8).to_json())
    for rank, entries in made(6).items():
        with Recorder(span_file(tmp_path, rank)) as recorder:
            for entry in entries:
                recorder.write(entry)
    return tmp_path


def test_spans_cut_at_any_byte_read_up_to_the_last_whole_line(folder):
    path = span_file(folder, 0)
    data, entries = path.read_bytes(), read_entries(folder, 0)
    for end in range(len(data) - 400, len(data)):
        path.write_bytes(data[:end])
        found = read_entries(folder, 0)
        assert found == entries[: data[:end].count(b"\n")]


def test_a_time_that_no_run_has_makes_no_span_file():
    line = b'{"type":"span","name":"load","lane":"main","start_ns":0,"end_ns":1' + b"0" * 400 + b"}\n"
    with pytest.raises(ValueError, match="not a span file"):
        parse_entries(line)


def test_a_killed_run_reads_and_is_drawn(folder, capsys):
    """Cut lines, an empty span file, a summary and a pulse that were being written."""
    path = span_file(folder, 0)
    path.write_bytes(path.read_bytes()[:-7])
    span_file(folder, 2).write_bytes(b"")
    (folder / f".{SUMMARY_FILE}.123").write_bytes(b'{"chunks": 6')
    run = Run(folder, -9)
    assert run.summary == {}
    assert run.entries(2) == []
    assert "chunks=None" in repr(run)
    entries = Run.load(folder).entries_by_rank
    assert [len(found) > 0 for found in entries.values()] == [True, True, False]
    timeline(folder, None, "")
    assert "timeline.png" in capsys.readouterr().out
    assert (folder / "timeline.png").exists()


def test_a_run_killed_before_its_first_chunk_is_told_and_does_not_crash(folder):
    for rank in range(3):
        span_file(folder, rank).write_bytes(b"")
    assert Run(folder, -9).entries(0) == []
    with pytest.raises(PlanError, match="no spans of any chunk") as found:
        Run.load(folder)
    assert "join(plan, run_dir=...)" in str(found.value)  # what an own loop lacks that left none
    (folder / Plan.FILE_NAME).write_bytes(msgspec.json.encode({"mesh_size": 2})[:-3])
    with pytest.raises(PlanError, match="does not read"):
        Run.load(folder)


@pytest.mark.processes
def test_a_recorder_that_cannot_write_says_so_once_and_leaves_a_torn_line_at_the_end_only(tmp_path):
    """F20, in a process of its own with a limit on file sizes; a full disk fails in the same call."""
    told = subprocess.run(
        [sys.executable, "-c", FILLS_UP, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "could not be written: File too large" in told.stdout
    assert f"check first: free space on {tmp_path}" in told.stdout


def test_a_torchrun_that_ended_before_any_rank_ran_is_not_called_well(tmp_path):
    Plan(mesh_size=2, chunks=4).save(tmp_path)
    failed = launch._failure(Run(tmp_path, 0), 0.0, lambda: None)
    assert "Rank 0 left no summary" in failed.what
    assert failed.check_first.endswith(f"{TORCHRUN_LOG}: did any rank run?")


def test_a_summary_that_was_cut_is_told_and_stays_as_it_is(tmp_path):
    (tmp_path / SUMMARY_FILE).write_text('{"chunks": 4')
    with pytest.raises(RecordError, match=r"summary\.json does not read") as refused:
        Run(tmp_path, 0).complete({"mesh_idle_ms": 1.0})
    assert "full" in refused.value.check_first
    assert (tmp_path / SUMMARY_FILE).read_text() == '{"chunks": 4'


def test_a_run_whose_plan_was_removed_in_its_middle_has_failed_and_is_no_bad_input(tmp_path):
    failed = launch._failure(Run(tmp_path, 1), 0.0, lambda: None)
    assert failed is not None
    assert f"The run folder {tmp_path} was moved or removed, or its plan was" in failed.what


def test_a_summary_that_cannot_be_completed_is_told_and_what_was_there_stays(tmp_path, monkeypatch):
    """F20: the disk may be full just after the ranks have left well."""
    (tmp_path / SUMMARY_FILE).write_text('{"chunks": 4}')

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ppwork.records.run.write_whole", full)
    with pytest.raises(RecordError, match="No space left on device") as refused:
        Run(tmp_path, 0).complete({"mesh_idle_ms": 1.0})
    assert "df -h" in refused.value.check_first
    assert Run(tmp_path, 0).summary == {"chunks": 4}
