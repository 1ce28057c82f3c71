"""A rank speaks once, whoever of its threads is first, and leaves with the code that fits what it said."""

from __future__ import annotations

import threading

import msgspec
import pytest

from ppwork.errors import PeerLostError, PeerTimeoutError, PPWorkError, RecordError, StuckError
from ppwork.process import FAILED, SECONDARY, STUCK, UNWRITABLE
from ppwork.records.failure import STACKS_IN_LOG, read_records, record_of, write_record
from ppwork.records.run import log_file
from ppwork.records.spans import Recorder
from ppwork.worker import last_words
from ppwork.worker.last_words import FailureWriter


@pytest.fixture
def words(tmp_path):
    recorder = Recorder(None)
    recorder.instant("emit")
    return FailureWriter(tmp_path, 1, recorder)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), FAILED),
        (PPWorkError("x"), FAILED),
        (SystemExit(0), FAILED),
        (PeerLostError("x"), SECONDARY),
        (StuckError("x"), STUCK),
        (RecordError("x"), FAILED),
    ],
)
def test_the_code_follows_from_the_error(words, tmp_path, error, code):
    assert words.exit_code == 0
    assert words.write(error)
    assert words.exit_code == code
    (record,) = read_records(tmp_path, 2)
    assert record.error_type == type(error).__name__
    assert record.last_instants["main"]["name"] == "emit"


def test_only_the_first_error_is_written(words, tmp_path):
    assert words.write(PeerLostError("first"))
    assert not words.write(ValueError("second"))
    assert words.exit_code == SECONDARY
    assert [record.what for record in read_records(tmp_path, 2)] == ["first"]


def test_of_ranks_that_all_lost_a_peer_the_first_points_at_the_whole_story(tmp_path, caplog):
    """Each saw the other's record, and none said where to read on."""
    first, later = (FailureWriter(tmp_path, rank, Recorder(None)) for rank in (0, 2))
    first.write(PeerLostError("x"))
    later.write(PeerLostError("y"))
    assert [text.split(": ")[0] for text in caplog.messages] == ["rank 0 ended because of another one"]
    caplog.clear()
    earlier = msgspec.structs.replace(later.record, rank=2, at_ns=first.record.at_ns + 10**9)
    write_record(tmp_path, earlier)
    first._point_at(first.record)  # the other's record was there before its own line
    assert len(caplog.messages) == 1


def test_ranks_that_waited_in_vain_each_say_where_unless_somebody_knows_the_cause(tmp_path, caplog):
    """Only the first spoke, which may be the one that had waited for another: no line named that."""
    ranks = [FailureWriter(tmp_path, rank, Recorder(None)) for rank in (0, 1, 2)]
    for rank in ranks[:2]:
        rank.write(PeerTimeoutError("x"), source=f"/s/loop.py:{rank._rank}")
    lines = [text.splitlines()[0] for text in caplog.messages]
    assert lines == [f"rank {n} waited in vain: PeerTimeoutError: x, at /s/loop.py:{n}" for n in (0, 1)]
    write_record(tmp_path, record_of(StuckError("y"), 2, {}))
    caplog.clear()
    ranks[1]._point_at(ranks[1].record)
    assert caplog.messages == []


def test_source_and_stack_stand_in_for_a_traceback(words, tmp_path):
    words.write(StuckError("x"), source="a.py:3", stack="the stack")
    (record,) = read_records(tmp_path, 2)
    assert (record.source, record.traceback) == ("a.py:3", "the stack")


def test_a_rank_that_is_stuck_speaks_also_in_a_folder_without_a_name_in_utf_8(words, tmp_path):
    words.write(StuckError("x"), source="\udcff/a.py:3", stack="in \udcff/a.py")
    (record,) = read_records(tmp_path, 2)
    assert (record.source, record.traceback) == (r"\udcff/a.py:3", r"in \udcff/a.py")


def test_a_rank_that_is_stuck_is_looked_for_in_the_file_that_has_its_stack(words, tmp_path):
    """A torchrun of one's own keeps no log of ours."""
    check = f"{STACKS_IN_LOG}: a loop without an end?"
    words.write(StuckError("x", check_first=check), stack="the stack")
    (record,) = read_records(tmp_path, 2)
    assert record.check_first == "the stack in failure-rank1.json: a loop without an end?"
    log_file(tmp_path, 2).touch()
    of_ours = FailureWriter(tmp_path, 2, Recorder(None))
    of_ours.write(StuckError("x", check_first=check), stack="the stack")
    assert of_ours.record.check_first == check


def test_what_else_is_left_behind_comes_after_the_record(words, tmp_path):
    found = []
    words.also = lambda: found.extend(read_records(tmp_path, 2))
    words.write(ValueError("x"))
    words.write(ValueError("y"))
    assert len(found) == 1


def test_a_record_that_cannot_be_written_is_an_exit_code_and_no_error(tmp_path, caplog):
    words = FailureWriter(tmp_path / "nowhere", 1, Recorder(None))
    assert words.write(ValueError("the cause"))
    assert words.exit_code == UNWRITABLE
    assert "could not write its failure record: No such file or directory" in caplog.text
    assert "the cause" in caplog.text


def test_a_thread_that_never_comes_back_from_an_errors_text_holds_nobody_up(words, monkeypatch):
    monkeypatch.setattr(last_words, "PATIENCE_S", 0.05)
    entered, release = threading.Event(), threading.Event()

    class Endless(Exception):
        def __str__(self):
            entered.set()
            release.wait(20.0)
            return "x"

    main = threading.Thread(target=words.write, args=(Endless(),))
    main.start()
    assert entered.wait(20.0)
    assert not words.write(StuckError("x"))
    assert words.exit_code == UNWRITABLE
    release.set()
    main.join()
