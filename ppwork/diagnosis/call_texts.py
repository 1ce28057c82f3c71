"""Arguments of a call of ``torch.distributed``, as far as its line of source shows them.

A traceback has the line and no values: a peer that stands there as a number, or is counted from ``rank``, is
known; one in another name is not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from operator import add, mod, sub

_PEERS = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
_GROUP_AT = {
    "barrier": 0, "monitored_barrier": 0,
    "all_gather": 2, "all_gather_into_tensor": 2, "all_gather_object": 2, "all_reduce": 2, "all_to_all": 2,
    "broadcast": 2, "broadcast_object_list": 2,
    "gather": 3, "gather_object": 3, "reduce": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3,
    "scatter": 3, "scatter_object_list": 3,
    "all_to_all_single": 4,
}  # fmt: skip
"""Collectives, and the place of ``group`` among their arguments."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mod: mod,
}
_LONGEST = 400
"""Characters of a line that are read."""


def peer_in_line(text: str, call: str, rank: int, world_size: int) -> int | None:
    """Return the rank that a line names as the peer of its message; ``None``: not known.

    Args:
        text: The line of source.
        call: The call that its rank was in.
        rank: Rank that was there; what the line calls ``rank`` is taken for it.
        world_size: Number of ranks.

    >>> peer_in_line("if rank == 0: dist.send(x, 1); dist.recv(x, (rank + 2) % world_size)", "recv", 1, 3)
    0
    >>> peer_in_line("dist.recv(x, src=before)", "recv", 1, 3)
    """
    keyword = _PEERS.get(call)
    known = {"rank": rank, "world_size": world_size}
    peers = {_number(_argument(node, 1, keyword), known) for node in _calls(text, call)} if keyword else set()
    return peers.pop() if len(peers) == 1 else None


def tag_in_line(text: str, call: str) -> int | None:
    """Return the tag of a line's message, 0 if it gives none; ``None``: not known."""
    tags = {
        0 if (tag := _argument(node, 3, "tag")) is None else _number(tag, {}) for node in _calls(text, call)
    }
    return tags.pop() if len(tags) == 1 else None


def is_of_all_ranks(text: str, call: str) -> bool:
    """Say whether a line makes a collective and gives no group to it: all ranks have to make it.

    >>> is_of_all_ranks("dist.all_reduce(x.sum(), dist.ReduceOp.MAX)", "all_reduce")
    True
    >>> is_of_all_ranks("dist.all_reduce(x, group=tp)", "all_reduce")
    False
    """
    place = _GROUP_AT.get(call)
    groups = [_argument(node, place, "group") for node in _calls(text, call)] if place is not None else []
    return bool(groups) and not any(groups)


def _calls(text: str, name: str) -> Iterator[ast.Call]:
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


def _argument(node: ast.Call, place: int, keyword: str) -> ast.expr | None:
    """Return an argument by its place or keyword; one that is passed with ``*`` or ``**`` may be any."""
    named = [each.value for each in node.keywords if each.arg in (keyword, None)]
    starred = [each for each in node.args if isinstance(each, ast.Starred)]
    return next(iter([*named, *starred, *node.args[place : place + 1]]), None)


def _number(value: ast.expr | None, known: Mapping[str, int]) -> int | None:
    """Return the number that an argument is, counted from what is known; ``None``: it has other names."""
    match value:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return known.get(name)
        case ast.Call(func=ast.Attribute(attr=str() as name), args=[], keywords=[]):
            return known.get(name.removeprefix("get_"))
        case ast.BinOp(left=left, op=op, right=right) if (apply := _OPERATORS.get(type(op))) is not None:
            one, other = _number(left, known), _number(right, known)
            if one is None or other is None or (other == 0 and apply is mod):
                return None
            return apply(one, other)
    return None
