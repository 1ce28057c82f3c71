"""Damaged run folders and logs through all their readers: an answer or a refusal, nothing else.

The whole is ``scripts/fuzz_runs.py`` on a million damaged files; here a few, and what it found when new.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

import msgspec
import pytest
from checkout import SCRIPTS
from made_runs import made

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.program_waits import program_waits
from ppwork.diagnosis.report import Report, longest_pause_s
from ppwork.diagnosis.story import failure_story
from ppwork.errors import PlanError, RunFailed, UnreadableError
from ppwork.pictures.run_table import rows_of
from ppwork.pictures.timeline_words import timeline_finding
from ppwork.plan import Plan
from ppwork.records.calls import Begun, CallEnded, CallWriter, Head, calls_file, read_calls
from ppwork.records.run import SUMMARY_FILE, Run
from ppwork.records.spans import Instant
from ppwork.timeline.meetings import Meetings

MUTATIONS = 700


@pytest.fixture(scope="module")
def damaged_folders():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module("damaged_folders")


@pytest.mark.processes
def test_damaged_folders_and_logs_are_read_or_refused(damaged_folders):
    """In a process of its own, because one property is that it does not grow."""
    command = [sys.executable, str(SCRIPTS / "fuzz_runs.py"), "--mutations", str(MUTATIONS), "--seed", "1"]
    answer = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=110, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = msgspec.json.decode(answer.stdout)
    assert found["mutations"] == MUTATIONS
    assert found["outcomes"].keys() == damaged_folders.DAMAGES.keys()
    # Whatever refuses everything would find nothing: each kind of file is also read to its end.
    assert all(outcomes.get("answered", 0) for outcomes in found["outcomes"].values())
    damages = {damage.__name__ for kind in damaged_folders.DAMAGES.values() for damage in kind}
    assert found["damages"].keys() == damages


def test_fuzzer_notices_a_reader_that_raises(damaged_folders, monkeypatch, tmp_path):
    fuzz_runs = importlib.import_module("fuzz_runs")
    monkeypatch.setattr(fuzz_runs, "diagnose_job", lambda job: job.no_such_thing)
    findings = fuzz_runs.Findings()
    fuzz_runs.fuzz(findings, fuzz_runs.Folders(tmp_path), 1, range(20))
    assert any("no_such_thing" in what for _, what in findings.finds.values())
    assert "FIND" in fuzz_runs.table(findings, 1.0, 30.0, 30.0)


# What it found


@pytest.mark.parametrize(
    "text",
    [
        f"[rank{'9' * 5000}]: Traceback (most recent call last):\n",
        f"[default{'9' * 5000}]:x\n[rank0]: Traceback (most recent call last):\n",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 99\n",
    ],
    ids=["rank", "local rank", "signal"],
)
def test_numbers_that_no_rank_and_no_signal_has_are_read_past(tmp_path, text):
    log = tmp_path / "console.log"
    log.write_text(text)
    assert diagnose_job(read_job(log)).text


def test_signals_and_pauses_that_are_none_are_left_out():
    assert Report.of("process 1 terminated with signal SIGFOO").codes == {}
    assert longest_pause_s("ppwork: the launcher did not run for 1.2.3 s") == 0.0


def test_rank_that_only_the_report_of_an_earlier_attempt_names_has_left_no_word(tmp_path):
    for attempt in (0, 1):
        (tmp_path / f"run_x/attempt_{attempt}/0").mkdir(parents=True)
        (tmp_path / f"run_x/attempt_{attempt}/0/stderr.log").write_text("")
    words = "torch/distributed/elastic failed (exitcode: -9) local_rank: 2 (pid: 5)\n"
    (tmp_path / "console.log").write_text(words + words.replace("-9", "1"))
    assert "rank 2" in diagnose_job(read_job(tmp_path)).text.lower()


def calls_of(folder, *lines, world_size=2):
    writer = CallWriter(folder, 0)
    writer.introduce(Head(0, world_size, "clock", 0))
    for line in lines:
        writer.write(line)


def test_calls_that_no_rank_wrote_are_refused_or_read_past(tmp_path):
    calls_of(
        tmp_path,
        Begun(0, 1, "recv", "a.py:1"),
        CallEnded(0, 2, peer=1),
        Begun(1, 3, "wait", "a.py:2", of=0, part=-7),
    )
    assert program_waits(Meetings(read_calls(tmp_path))) is not None
    path = calls_file(tmp_path, 0)
    for damage in (
        b"\xff" * 9,
        b"[" * 5000,
        b'{"type": "head", "rank": 5, "world_size": 2, "clock": "", "at_ns": 0}',
    ):
        path.write_bytes(damage + b"\n")
        with pytest.raises(UnreadableError, match="do not read"):
            read_calls(tmp_path)
    calls_of(tmp_path, world_size=10**12)
    with pytest.raises(UnreadableError, match="do not read"):
        read_calls(tmp_path)


@pytest.mark.parametrize(
    "damage", [{"period_ms": "x"}, {"versions": 1.5}, {"max_abs_diff": []}, {"period_ms": 1.0}]
)
def test_summary_with_values_of_other_types_is_shown_without_them(tmp_path, damage):
    (tmp_path / Plan.FILE_NAME).write_bytes(Plan(mesh_size=1, chunks=1).to_json())
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 1, **damage}))
    names = {name for name, _ in rows_of(Run(tmp_path, 0))}
    assert not names & {"period", "verified"}


def test_a_failed_rank_that_the_plan_does_not_have_is_refused(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(Plan(mesh_size=1, chunks=1).to_json())
    with pytest.raises(PlanError, match="not in its plan"):
        failure_story(Run(tmp_path, 1, RunFailed("It failed.", where={"rank": 2})))


def test_emissions_at_one_moment_have_a_sentence():
    entries = made()
    first = next(entry.at_ns for entry in entries[0] if isinstance(entry, Instant) and entry.name == "emit")
    entries[0] = [
        msgspec.structs.replace(entry, at_ns=first) if entry.name == "emit" else entry for entry in entries[0]
    ]
    assert "the period is 0.0 ms" in timeline_finding(entries)
