"""A failing rank's last words: whole or not at all, pointing at user code; and which record is the cause."""

import json
from pathlib import Path

import hypothesis
import pytest
from failure_records import record

from ppwork.errors import PeerLostError, PeerTimeoutError, PPWorkError, StageError, TerminalNotice
from ppwork.records.failure import (
    failure_file,
    first_cause,
    read_records,
    record_of,
    write_record,
)


def raised(make):
    try:
        make()
    except Exception as error:  # noqa: BLE001  any error, with its traceback
        return error
    raise AssertionError("nothing was raised")


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{__file__}:{next(n for n, line in enumerate(lines, 1) if line.endswith(text))}"


# Making


def test_record_of_our_error_keeps_its_parts():
    error = PPWorkError("It broke.", where={"peer": 2, "rank": 7}, check_first="that")
    made = record_of(error, 3, {"main": {"name": "emit"}})
    assert (made.rank, made.error_type, made.what, made.check_first) == (
        3,
        "PPWorkError",
        "It broke.",
        "that",
    )
    assert made.where == {"rank": 7, "peer": 2}
    assert made.last_instants == {"main": {"name": "emit"}}
    assert made.at_ns > 0
    assert not made.symptom


def test_record_of_a_foreign_error_names_its_type_and_rank():
    made = record_of(raised(lambda: {}["missing"]), 2, {})
    assert (made.error_type, made.what, made.where) == ("KeyError", "'missing'", {"rank": 2})
    assert "KeyError: 'missing'" in made.traceback
    assert str(made).startswith("KeyError: 'missing'\n")
    assert made.check_first
    assert not made.symptom


def test_a_foreign_error_brings_the_one_it_was_raised_from():
    """ "cannot load weights" alone says too little."""

    def load(text=""):
        try:
            return {}["layer.3"]
        except KeyError as error:
            raise RuntimeError(*text) from error

    made = record_of(raised(lambda: load(["cannot load weights"])), 2, {})
    assert made.what == "cannot load weights (from KeyError: 'layer.3')"
    assert record_of(raised(load), 2, {}).what == "(from KeyError: 'layer.3')"
    alone = RuntimeError("no weights")
    alone.__cause__ = KeyError()
    assert record_of(alone, 2, {}).what == "no weights (from KeyError)"


def test_a_record_is_written_also_where_the_users_folder_has_no_name_in_utf_8(tmp_path):
    made = record_of(raised(lambda: exec(compile("1/0", "/tmp/\udcff/my.py", "exec"))), 0, {})  # noqa: S102
    write_record(tmp_path, made)
    assert [found.source for found in read_records(tmp_path, 1)] == [r"/tmp/\udcff/my.py:1"]


@pytest.mark.parametrize("kind", [TerminalNotice, PeerLostError, PeerTimeoutError])
def test_error_about_a_gone_peer_is_a_symptom(kind):
    assert record_of(kind("gone"), 0, {}).symptom


def test_source_points_at_the_line_of_user_code_that_raised():
    def user_code():
        raise ValueError("in user code")  # HERE-1

    def stage():
        try:
            user_code()
        except ValueError as error:
            raise StageError("The stage's step raised.") from error

    assert record_of(raised(stage), 1, {}).source == line_of("# HERE-1")


def test_source_points_at_the_user_code_that_called_a_library():
    def with_standard_library():
        json.loads("{")  # HERE-2

    def with_installed_library():
        hypothesis.settings(max_examples=-1)  # HERE-3

    assert record_of(raised(with_standard_library), 1, {}).source == line_of("# HERE-2")
    error = raised(with_installed_library)
    assert "site-packages" in error.__traceback__.tb_next.tb_next.tb_frame.f_code.co_filename
    assert record_of(error, 1, {}).source == line_of("# HERE-3")


def test_source_of_an_error_that_began_in_a_library_is_the_line_that_led_there():
    """As of metadata that cannot travel: the cause has frames of ours alone."""

    def refused():
        try:
            json.JSONDecoder().decode("{")
        except ValueError as error:
            error.__traceback__ = error.__traceback__.tb_next
            raise PPWorkError("It could not be read.") from error  # HERE-4

    assert record_of(raised(refused), 1, {}).source == line_of("# HERE-4")


def test_source_is_empty_when_only_the_runtime_is_in_the_traceback():
    error = raised(lambda: PPWorkError("x", where={"nope": 1}))
    while error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    assert record_of(error, 0, {}).source == ""
    assert record_of(ValueError("never raised"), 0, {}).source == ""


def test_error_that_is_its_own_cause_ends():
    """Crash beats hang: `raise error from error` is legal Python."""

    def alone():
        error = ValueError("loop")
        raise error from error

    def in_pairs():
        one, other = ValueError("one"), ValueError("other")
        one.__cause__, other.__cause__ = other, one
        raise one

    for make in (alone, in_pairs):
        assert record_of(raised(make), 0, {}).error_type == "ValueError"


def test_record_prints_like_an_error():
    text = str(record(where={"rank": 1, "call_id": 3}, source="my_stages.py:7"))
    assert text == (
        "StageError: It broke.\n  where: rank=1 call_id=3\n  check first: the log\n  at: my_stages.py:7"
    )
    assert "at:" not in str(record())


# Writing and reading


def test_record_reads_back_as_written_and_leaves_no_other_file(tmp_path):
    one = record_of(raised(lambda: 1 / 0), 1, {"main": {"name": "emit", "at_ns": 3}})
    write_record(tmp_path, one)
    assert read_records(tmp_path, 3) == [one]
    assert list(tmp_path.iterdir()) == [failure_file(tmp_path, 1)]


def test_records_are_read_by_rank_and_only_of_this_world(tmp_path):
    for rank in (2, 0, 5):
        write_record(tmp_path, record(rank=rank))
    assert [one.rank for one in read_records(tmp_path, 3)] == [0, 2]
    assert read_records(tmp_path / "nowhere", 3) == []


def test_message_with_a_file_name_that_is_not_utf8_can_be_written(tmp_path):
    error = FileNotFoundError(2, "No such file", "clip-\udcff.mp4")
    write_record(tmp_path, record_of(error, 0, {}))
    (back,) = read_records(tmp_path, 1)
    assert "clip-" in back.what


# Which one is the cause


def test_cause_comes_before_symptom_however_late():
    symptom, cause = record(rank=0, symptom=True, at_ns=1), record(rank=2, at_ns=9)
    assert first_cause([symptom, cause]) is cause
    assert first_cause([cause, symptom]) is cause


def test_earliest_of_equals_comes_first():
    for symptom in (False, True):
        late, early = record(at_ns=9, symptom=symptom), record(at_ns=2, symptom=symptom)
        assert first_cause([late, early]) is early


def test_no_records_have_no_cause():
    assert first_cause([]) is None


@pytest.mark.parametrize("kind", [Exception, RuntimeError], ids=["any", "one that may be a backend's"])
def test_an_exception_whose_own_text_raises_still_leaves_a_record_with_the_line_of_the_raise(kind):
    """A user's broken __str__ must not hide the failure."""

    class Mute(kind):
        def __str__(self):
            raise ValueError("no text")

    class Deaf(Mute):
        def __str__(self):
            raise Deaf

    for error, said in ((Mute(), "ValueError: no text"), (Deaf(), "Deaf: <exception str() failed>")):
        with pytest.raises(kind) as caught:
            raise error
        found = record_of(caught.value, 1, {})
        assert (found.error_type, found.symptom) == (type(error).__name__, False)
        assert found.what.startswith("(its __str__ raised ")
        assert found.what.endswith(f"{said})")
        assert found.source == f"{__file__}:{caught.traceback[-1].lineno + 1}"
