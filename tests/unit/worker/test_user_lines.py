"""The line of the user's own that led to a call, and the words for a call that torch will refuse."""

import sys

from ppwork.worker.shared_calls import operation
from ppwork.worker.user_lines import line_from


def number_of_line():
    return int(line_from(sys._getframe(1)).split(":")[1])


def test_two_functions_that_begin_on_one_line_keep_their_own_lines():
    first, second = lambda: number_of_line() + 0, lambda: (
        number_of_line() + 0
    )  # fmt: skip
    assert [second() - first(), first() - first()] == [1, 0]


def test_a_root_that_the_group_does_not_have_is_left_to_torch():
    assert operation("broadcast", (), "", 5, (1, 2)) == "broadcast(from group rank 5)"
    assert operation("broadcast", (), "", -1, (1, 2)) == "broadcast(from group rank -1)"
    assert operation("broadcast", (), "", 1, (1, 2)) == "broadcast(from rank 2)"
