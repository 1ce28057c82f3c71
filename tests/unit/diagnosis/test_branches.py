"""The `if` of a loop below which a call may be left out, found in the source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ppwork.diagnosis.branches import always_made, branch_of, early_ends, helpers_branch, left_loop, own_loop
from ppwork.diagnosis.source_numbers import program_of
from ppwork.diagnosis.stacks import Frame

PROGRAM = """\
for step in range(4):
    if step == 9:
        break
    dist.broadcast(x, src=1)  # ROOT
    if rank != 2:
        with guard:
            dist.all_reduce(loss)  # AROUND
    try:
        send()
    except OSError:
        if late:
            dist.barrier()  # HANDLED
    if loss.isnan():
        continue
    dist.reduce(loss, dst=0)  # BEHIND
    if ready(dist.gather(loss)):  # IN THE TEST
        pass
    if step == 2: dist.scatter(loss)  # ONE LINE
dist.barrier()  # AFTER
"""


def frame(path, mark, text=None):
    lines = PROGRAM.splitlines()
    number = next(at for at, line in enumerate(lines, start=1) if line.endswith(f"# {mark}"))
    return Frame(str(path), number, "main", lines[number - 1] if text is None else text)


ANSWERS = """\
for chunk in plane.chunks():
    for step in range(4):
        if step == 2:
            continue
    if chunk.x is None:
        continue
    try:
        y = model(chunk)
    except ValueError:
        print("not this one")
    except OSError:
        raise
    else:
        plane.reply(y)
"""


def test_a_turn_of_a_loop_ends_at_its_own_continue_or_else_at_an_except_that_goes_on(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ANSWERS)
    assert early_ends(str(path), 1) == [6]
    assert early_ends(str(path), 2) == [4]
    assert early_ends(str(path), 3) == []
    path.write_text(ANSWERS.replace("continue", "pass"))
    program_of.cache_clear()
    assert early_ends(str(path), 1) == [9]
    assert early_ends(str(tmp_path / "gone.py"), 1) == []


@pytest.mark.parametrize(
    ("call", "other", "line"),
    [
        ("AROUND", "ROOT", 5),
        ("HANDLED", "ROOT", 11),
        ("BEHIND", "ROOT", 13),
        ("BEHIND", "AROUND", 13),
        ("ROOT", "AROUND", None),  # line 2 leaves before both
        ("IN THE TEST", "BEHIND", None),
        ("ONE LINE", "ROOT", 18),
        ("AFTER", "ROOT", None),  # not in the loop
        ("ROOT", "AFTER", None),
    ],
)
def test_an_if_around_a_call_or_one_that_leaves_before_it_is_found(tmp_path, call, other, line):
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    assert branch_of(frame(path, call), frame(path, other)) == line


@pytest.mark.parametrize(
    ("call", "behind", "line", "shared"),
    [
        ("ROOT", "AFTER", 1, False),
        ("AROUND", "AFTER", 1, False),
        ("ROOT", "BEHIND", None, True),
        ("AFTER", "ROOT", None, False),
    ],
)
def test_the_loop_that_a_rank_behind_it_has_left_is_found(tmp_path, call, behind, line, shared):
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    assert left_loop(frame(path, call), frame(path, behind)) == (line, shared)


def test_a_loop_around_both_may_have_turned_between_them(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("for epoch in range(2):\n    for batch in it:\n        sum_up()\n    meet()\n")
    assert left_loop(Frame(str(path), 3, "main"), Frame(str(path), 4, "main")) == (2, True)


TURNS = """def serve():
    while True:
        head = dist.broadcast(HEAD)
        if not head:
            break
        for each in tensors:
            dist.broadcast(EACH)
        try:
            answer(TRIED)
        except ValueError:
            continue
        flag and dist.barrier(MAYBE)
        net(NET)
    dist.barrier(END)
def net():
    for layer in layers:
        dist.all_reduce(SUM)
    return dist.all_gather(ONCE)
"""


def place_of(path, word):
    return Frame(str(path), TURNS[: TURNS.index(word)].count("\n") + 1, "any")


@pytest.mark.parametrize(
    ("call", "behind", "always", "loop"),
    [
        ("HEAD", "NET", True, None),
        ("EACH", "NET", False, 6),
        ("TRIED", "NET", False, None),
        ("MAYBE", "NET", False, None),
        ("NET", "HEAD", True, None),
        ("HEAD", "END", False, 2),  # no loop is around both
        ("SUM", None, False, 16),
        ("ONCE", None, True, None),
        ("END", None, True, None),
    ],
)
def test_a_call_that_nothing_decides_about_is_made_by_whoever_comes_there(
    tmp_path, call, behind, always, loop
):
    path = tmp_path / "mine.py"
    path.write_text(TURNS)
    other = place_of(path, behind) if behind else None
    assert always_made(place_of(path, call), other) is always
    assert own_loop(place_of(path, call), other.line if other else None) == loop
    own = own_loop(place_of(path, call), None, for_ever=False)
    assert own == {"EACH": 6, "SUM": 16}.get(call)
    path.write_text("changed")
    program_of.cache_clear()
    assert not always_made(place_of(path, call), other)


def test_of_a_source_that_is_gone_any_line_may_be_of_the_turn_before(tmp_path):
    path = tmp_path / "gone.py"
    assert left_loop(frame(path, "ROOT"), frame(path, "AFTER")) == (None, True)


def test_nothing_is_read_from_a_file_that_is_gone_does_not_parse_or_has_changed(tmp_path):
    path = tmp_path / "mine.py"
    pair = frame(path, "AROUND"), frame(path, "ROOT")
    assert branch_of(*pair) is None
    program_of.cache_clear()  # a program is read once
    path.write_text(PROGRAM.replace("for step", "for for"))
    assert branch_of(*pair) is None
    program_of.cache_clear()
    path.write_text(PROGRAM)
    assert branch_of(frame(path, "AROUND", "dist.all_reduce(other)"), pair[1]) is None
    assert branch_of(frame(path, "AROUND", ""), pair[1]) == 5  # a stack without source lines


def test_a_log_that_names_what_is_no_program_has_nothing_read_of_it(tmp_path):
    """A pipe would hang its reader, and /dev/zero has no end."""
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        assert branch_of(frame(path, "AROUND"), frame(path, "ROOT")) is None


HELPER = """\
if main:
    def sum_up(x, late):
        if late:
            return x
        dist.all_reduce(x)
        with guard:
            if x.any():
                dist.reduce(x)
        return x

    def plain(x):
        dist.barrier()
"""


@pytest.mark.parametrize(("line", "branch"), [(5, 3), (8, 7), (12, None), (99, None)])
def test_an_if_of_the_function_that_makes_a_call_is_found_without_a_loop(tmp_path, line, branch):
    path = tmp_path / "helper.py"
    path.write_text(HELPER)
    assert helpers_branch(Frame(str(path), line, "sum_up")) == branch


def test_a_break_leaves_no_call_out_of_a_turn_before(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("for n in sizes:\n    meet()\n    if n == 0:\n        break\n    sum_up()\n")
    assert branch_of(Frame(str(path), 5, "main"), Frame(str(path), 2, "main")) is None
    program_of.cache_clear()
    path.write_text(path.read_text().replace("break", "continue"))
    assert branch_of(Frame(str(path), 5, "main"), Frame(str(path), 2, "main")) == 3
