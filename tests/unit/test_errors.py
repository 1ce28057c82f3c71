"""How an error speaks: three parts, one order, and it survives a process border."""

import pickle

import pytest

from ppwork import errors
from ppwork.errors import (
    WHERE_KEYS,
    PlanError,
    PPWorkError,
    RemoteProtocolError,
    RunFailed,
    TerminalNotice,
    ranks_by_value,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PPWorkError)]


def test_error_text_has_what_where_and_check_first_in_that_order():
    """STYLE 4, errors: three parts."""
    error = PPWorkError("It broke.", where={"call_id": 3, "rank": 1}, check_first="the log")
    assert str(error) == "It broke.\n  where: rank=1 call_id=3\n  check first: the log"
    assert (error.what, error.where, error.check_first) == (
        "It broke.",
        {"rank": 1, "call_id": 3},
        "the log",
    )


def test_error_without_facts_says_only_what():
    assert str(PPWorkError("It broke.")) == "It broke."


def test_where_is_printed_in_the_fixed_order_whatever_order_it_was_given_in():
    where = {key: index for index, key in enumerate(reversed(WHERE_KEYS))}
    assert tuple(PPWorkError("x", where=where).where) == WHERE_KEYS
    late = PPWorkError("x", where={"cache_epoch": 0}).at(rank=2)
    assert tuple(late.where) == ("rank", "cache_epoch")


def test_where_refuses_an_unknown_key_and_names_it():
    with pytest.raises(ValueError, match="host"):
        PPWorkError("x", where={"host": "a"})
    with pytest.raises(ValueError, match="host"):
        PPWorkError("x").at(host="a")


def test_at_adds_what_is_unknown_and_keeps_what_is_known():
    error = PPWorkError("x", where={"rank": 1})
    assert error.at(rank=7, peer=2, group=None) is error
    assert error.where == {"rank": 1, "peer": 2}


def test_ranks_of_one_value_stand_together_in_the_order_in_which_they_come():
    assert ranks_by_value({3: "b", 0: "a", 1: "b"}) == {"b": [3, 1], "a": [0]}
    assert ranks_by_value({}) == {}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_survives_pickling_with_all_its_parts(kind):
    """STYLE 4, errors 7: process borders."""
    error = kind("It broke.", where={"rank": 1}, check_first="the log")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    assert type(again) is kind
    assert (again.what, again.where, again.check_first) == ("It broke.", {"rank": 1}, "the log")


def test_a_failure_keeps_its_headline_below_another_line_and_across_a_process_border():
    failure = RunFailed(
        "mine.py:3\nIt broke.", where={"rank": 1}, check_first="the log", headline="It broke."
    )
    full = pickle.loads(pickle.dumps(failure.below("The disk is full.", "df")))  # noqa: S301  our own bytes
    assert (full.what, full.check_first) == ("The disk is full.\nmine.py:3\nIt broke.", "df")
    assert (full.where, full.headline) == ({"rank": 1}, "It broke.")
    assert failure.below("Too late.").check_first == "the log"


def test_error_renders_in_a_notebook_as_its_own_lines():
    lines = PlanError("No.", where={"rank": 0}, check_first="x")._render_traceback_()
    assert lines == ["PlanError: No.", "  where: rank=0", "  check first: x"]


def test_error_tree_lets_the_right_one_be_caught():
    assert issubclass(PlanError, ValueError)
    assert issubclass(TerminalNotice, RemoteProtocolError)
    assert all(name in errors.__doc__ for name in (kind.__name__ for kind in KINDS))
