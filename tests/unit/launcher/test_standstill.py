"""A program whose ranks do nothing for a while: said once, with where they stand and when it ends."""

from __future__ import annotations

import pytest
from made_calls import MadeCalls

from ppwork.launcher import standstill
from ppwork.launcher.standstill import STILL_S, SaysStandstill, Standstill
from ppwork.launcher.view import QUIET_VARIABLE

LIMIT_S = 120.0


@pytest.fixture
def passes(monkeypatch):
    """Let seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(standstill.time, "monotonic", lambda: now[0])

    def let(seconds: float) -> None:
        now[0] += seconds

    return let


@pytest.fixture
def made(tmp_path):
    calls = MadeCalls(tmp_path, 2)
    calls.call(0, "all_reduce", 1, None, line=5)
    calls.call(1, "barrier", 1, 2, line=7)
    return calls


def printed(folder, text):
    log = folder / "none" / "attempt_0" / "1" / "stdout.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)


def test_it_says_who_waits_in_which_call_how_long_already_and_when_it_ends(tmp_path, made, passes):
    still = Standstill(tmp_path, LIMIT_S)
    assert still.look() == ""
    passes(STILL_S - 1)
    assert still.look() == ""
    passes(1)
    *stand, end = still.look().splitlines()
    assert stand == [
        "No rank has printed anything or made a call for 15 s.",
        "  rank 0 waits for rank 1: all_reduce at prog.py:5",
        "  rank 1 waits for nobody: in code of its own, after barrier at prog.py:7",
    ]
    assert "stopped 120 s after its start" in end
    assert "--limit" in end


@pytest.mark.parametrize("what", ["call", "print"])
def test_whatever_a_rank_does_ends_the_standstill(tmp_path, made, passes, what):
    still = Standstill(tmp_path, LIMIT_S)
    still.look()
    passes(STILL_S)
    assert still.look()
    if what == "call":
        made.call(1, "all_reduce", 3, 4)
    else:
        printed(tmp_path, "step 1\n")
    passes(standstill.EVERY_S)
    assert still.look() == ""
    passes(STILL_S - 1)
    assert still.look() == ""
    passes(1)
    assert still.look()


def test_without_calls_it_says_what_it_knows(tmp_path, passes):
    """They were not recorded, or do not read, or no rank has begun."""
    still = Standstill(tmp_path, LIMIT_S)
    still.look()
    passes(STILL_S)
    first, end = still.look().splitlines()
    assert first == "No rank has printed anything for 15 s."
    assert "stopped 120 s after its start" in end


def test_on_a_console_it_is_one_notice_for_each_standstill(tmp_path, made, passes, capsys, monkeypatch):
    monkeypatch.delenv(QUIET_VARIABLE, raising=False)
    view = SaysStandstill(tmp_path, LIMIT_S)
    for _ in range(40):
        view.look()
        passes(1)
    assert capsys.readouterr().err.count("No rank has printed") == 1
    made.call(1, "all_reduce", 3, 4)
    for _ in range(40):
        view.look()
        passes(1)
    assert capsys.readouterr().err.count("No rank has printed") == 1
    monkeypatch.setenv(QUIET_VARIABLE, "1")
    view = SaysStandstill(tmp_path, LIMIT_S)
    for _ in range(40):
        view.look()
        passes(1)
    assert capsys.readouterr().err == ""
