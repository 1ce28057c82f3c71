"""A folder from elsewhere is read whatever is in it: damaged, deep, endless, or waiting for a writer."""

from __future__ import annotations

import errno
import os
import signal
import zlib
from pathlib import Path

import msgspec
import pytest
from captured_logs import console
from failed_runs import KILLED, failed_run

from ppwork.cli.main import timeline
from ppwork.diagnosis import run_evidence
from ppwork.diagnosis.logs import split_by_rank
from ppwork.diagnosis.runs import diagnose
from ppwork.errors import PlanError, UnreadableError
from ppwork.plan import Plan
from ppwork.records.failure import failure_file
from ppwork.records.pulse import Pulse, pulse_file, read_pulse
from ppwork.records.run import END_FILE, SUMMARY_FILE, TORCHRUN_LOG, Run
from ppwork.records.spans import span_file

pytestmark = pytest.mark.usefixtures("at_once")
DEEP = b"[" * 200_000 + b"]" * 200_000
STATE = 4 + 4 + 8 + 64 + 8
"""Where a pulse has its state."""


@pytest.fixture
def at_once():
    """Who waits for a writer, or reads a device, is ended."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it was waited for"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path):
    failed_run(tmp_path, **KILLED)
    return tmp_path


def changed(folder, **fields):
    path = failure_file(folder, 1)
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"where": {"rank": 1, "secret": "x"}},
        {"where": {"rank": 1, "peer": [0]}},
        {"where": {"rank": "one"}},
        {"where": {"rank": 1, "role": {}}},
        {"rank": 99},
        {"rank": 0},
    ],
    ids=str,
)
def test_a_record_that_no_rank_wrote_is_named_and_passed_over(folder, fields):
    changed(folder, **fields)
    found = diagnose(folder)
    assert found.cause is not None
    assert found.cause.rank == 2
    assert f"what {failure_file(folder, 1).name} says: it does not read" in found.unknown


def test_json_that_is_nested_too_deep_does_not_read(folder):
    for path in (
        failure_file(folder, 1),
        folder / SUMMARY_FILE,
        folder / END_FILE,
        folder / "flight-rank1.json",
    ):
        path.write_bytes(b'{"rank": ' + DEEP + b"}")
    span_file(folder, 2).write_bytes(b'{"type": "span", "x": ' + DEEP + b"}\n")
    assert {failure_file(folder, 1).name, "spans-rank2.jsonl"} <= {
        question.split()[1] for question in diagnose(folder).unknown
    }
    assert Run(folder, None).summary == {}
    with pytest.raises(UnreadableError, match="do not read"):
        Run.load(folder)
    (folder / Plan.FILE_NAME).write_bytes(b'{"options": ' + DEEP + b"}")
    with pytest.raises(PlanError, match="plan does not read"):
        diagnose(folder)


def test_a_pulse_of_no_state_is_none(tmp_path):
    Pulse(tmp_path, 1)
    body = bytearray(pulse_file(tmp_path, 1).read_bytes()[:-4])
    assert body[STATE] == 0
    body[STATE] = 200
    pulse_file(tmp_path, 1).write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
    assert read_pulse(tmp_path, 1) is None


def test_a_record_that_does_not_read_is_named_where_there_is_no_other(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(Plan().to_json())
    failure_file(tmp_path, 1).write_bytes(b"{")
    assert f"what {failure_file(tmp_path, 1).name} says" in diagnose(tmp_path).text


def test_pipes_in_place_of_files_are_not_waited_for(folder):
    for path in (
        failure_file(folder, 1),
        span_file(folder, 2),
        folder / TORCHRUN_LOG,
        folder / SUMMARY_FILE,
        folder / END_FILE,
    ):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    os.mkfifo(pulse_file(folder, 2))
    assert diagnose(folder).cause is not None
    (folder / Plan.FILE_NAME).unlink()
    os.mkfifo(folder / Plan.FILE_NAME)
    for read in (diagnose, lambda path: timeline(path, None, "")):
        with pytest.raises(PlanError, match="no regular file"):
            read(folder)


@pytest.mark.parametrize("made", ["pipe", "device"])
def test_a_console_that_does_not_end_is_refused(tmp_path, made):
    path = tmp_path / "console.log"
    if made == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(PlanError, match="No rank"):
        diagnose(path)


def test_pipes_in_a_jobs_folder_are_not_waited_for(tmp_path):
    rank = tmp_path / "attempt_0" / "0"
    rank.mkdir(parents=True)
    (rank / "stdout.log").write_text("")
    os.mkfifo(rank / "stderr.log")
    os.mkfifo(rank / "error.json")
    os.mkfifo(tmp_path / "console.log")
    assert diagnose(tmp_path).text


def test_a_log_of_somebody_else_is_named_and_passed_over(folder, monkeypatch):
    opened = Path.open

    def refused(path, *args, **options):
        if path.name == TORCHRUN_LOG:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **options)

    (folder / TORCHRUN_LOG).write_text("ppwork: the run passed its limit")
    monkeypatch.setattr(Path, "open", refused)
    assert f"what {TORCHRUN_LOG} says: it does not read" in diagnose(folder).unknown


def test_a_path_that_cannot_even_be_asked_for_is_bad_input(tmp_path, folder):
    """Python says of some that they are not there, and raises for others: too long, or of another user."""
    for paths in ([tmp_path / ("a" * 300)], [folder, tmp_path / ("a" * 300)]):
        with pytest.raises(PlanError, match="cannot be read"):
            diagnose(paths)


def test_what_torchrun_printed_is_sorted_by_rank_once(tmp_path, monkeypatch):
    Plan(mesh_size=8).save(tmp_path)
    (tmp_path / TORCHRUN_LOG).write_text(console("raises").read_text())
    asked = []
    monkeypatch.setattr(
        run_evidence, "split_by_rank", lambda *args: asked.append(args) or split_by_rank(*args)
    )
    diagnose(tmp_path)
    assert len(asked) == 1
