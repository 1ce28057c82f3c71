"""Arguments of a call of ``torch.distributed``, as far as its line of source shows them.

A traceback has the line and no values: what stands there as a number is known, or is counted from the rank.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ppwork.timeline.meetings import START

_GROUP_AT = {
    "barrier": 0, "monitored_barrier": 0,
    "all_gather": 2, "all_gather_into_tensor": 2, "all_gather_object": 2, "all_reduce": 2, "all_to_all": 2,
    "broadcast": 2, "broadcast_object_list": 2,
    "gather": 3, "gather_object": 3, "reduce": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3,
    "scatter": 3, "scatter_object_list": 3,
    "all_to_all_single": 4,
}  # fmt: skip
"""Collectives, and the place of ``group`` among their arguments."""
COLLECTIVES = frozenset(_GROUP_AT)
_LONGEST = 400
"""Characters of a line that are read."""


def is_of_all_ranks(text: str, call: str) -> bool:
    """Say whether a line makes a collective and gives no group to it, or starts: all ranks have to make it.

    >>> is_of_all_ranks("dist.all_reduce(x.sum(), dist.ReduceOp.MAX)", "all_reduce")
    True
    >>> is_of_all_ranks("dist.all_reduce(x, group=tp)", "all_reduce")
    False
    """
    if call == START:
        return True
    place = _GROUP_AT.get(call)
    groups = [argument(node, place, "group") for node in calls_in(text, call)] if place is not None else []
    return bool(groups) and not any(groups)


def names_a_group(text: str, call: str) -> bool:
    """Say whether a line makes a collective as a whole and gives a group to it.

    >>> names_a_group("dist.all_reduce(x, group=tp)", "all_reduce")
    True
    """
    place = _GROUP_AT.get(call)
    return place is not None and any(argument(node, place, "group") for node in calls_in(text, call))


def names_one_root(text: str, call: str, root: str) -> bool:
    """Say whether a line gives a number as the root of a collective: it is the same on all that run the line.

    >>> names_one_root("dist.broadcast(x, 1, group=mesh)", "broadcast", "src")
    True
    >>> names_one_root("dist.broadcast(x, leader, group=mesh)", "broadcast", "src")
    False
    """
    if re.search(rf"\b(?:group_)?{root}\s*=\s*\d+\b", text):  # also of a call that goes on in the next line
        return True
    place = 1 if call.startswith(("broadcast", "reduce")) else 2
    given = [argument(node, place, root) for node in calls_in(text, call)]
    return any(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in given)


def calls_in(text: str, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function that a line has as a whole."""
    text = text[:_LONGEST]
    for start in re.finditer(rf"\b{re.escape(name)}\(", text) if name else ():
        call = text[start.start() :]
        for end in re.finditer(r"\)", call):
            try:
                node = ast.parse(call[: end.end()], mode="eval").body
            except (SyntaxError, ValueError):
                continue  # a parenthesis inside
            if isinstance(node, ast.Call):
                yield node
            break


def argument(node: ast.Call, place: int, keyword: str) -> ast.expr | None:
    """Return an argument by its place or keyword; one that is passed with ``*`` or ``**`` may be any."""
    named = [each.value for each in node.keywords if each.arg in (keyword, None)]
    starred = [each for each in node.args if isinstance(each, ast.Starred)]
    return next(iter([*named, *starred, *node.args[place : place + 1]]), None)
