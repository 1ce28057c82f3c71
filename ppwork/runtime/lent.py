"""Tensors that the caller has lent to the transport, and must leave as they are until it is done with them.

What travels alone is read where it lies, without a copy. Whoever fills the same buffer for the next chunk
changes the one that is on its way: the peer gets the wrong chunk, or half of each, and no backend notices.
So each lent tensor is looked at again before the next call of the transport. All sizes are, also those that
were copied into the frame: else the same code would be right for a small chunk and wrong for a large one.
CUDA tensors are not: they are copied, in the order of their stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ppwork.errors import LocalProtocolError
from ppwork.runtime.tensors import digest_of, spec_of

CPU = torch.device("cpu")


class Lent:
    """What this rank has lent, chunk by chunk.

    torch counts the writes to a tensor, but not those to an inference tensor or to one part of a tensor, nor
    those of others to its memory (numpy). In the first ``checked`` chunks the bytes are summed, too.

    Args:
        checked: ``compare_collectives`` of the plan; -1 is always.
        what: Words for a lent tensor's chunk in the error, such as ``the result of chunk``.
        until: Words for the end of the loan.
    """

    def __init__(self, checked: int, what: str, until: str) -> None:
        self._checked, self._what, self._until = checked, what, until
        self._chunks: dict[int, list[tuple[str, torch.Tensor, tuple[int, int]]]] = {}

    def lend(self, chunk_index: int, tensors: Mapping[str, Any]) -> None:
        """Remember how the tensors of a chunk look; a chunk that is lent already stays as it was."""
        if chunk_index not in self._chunks:
            summed = self._checked < 0 or chunk_index < self._checked
            marks = [(name, tensor, _mark(tensor, summed=summed)) for name, tensor in tensors.items()]
            self._chunks[chunk_index] = [(name, tensor, mark) for name, tensor, mark in marks if mark != NONE]

    def check(self) -> None:
        """Look at all that is lent.

        Raises:
            LocalProtocolError: A tensor was written to; names it and its chunk (this rank).
        """
        for chunk_index, tensors in self._chunks.items():
            for name, tensor, (writes, digest) in tensors:
                if (writes >= 0 and writes != tensor._version) or (
                    digest >= 0 and digest != digest_of(tensor)
                ):
                    raise LocalProtocolError(
                        f"The tensor {name!r} of {self._what} {chunk_index} was written to before "
                        f"{self._until}.",
                        where={"chunk_index": chunk_index},
                        check_first="which buffer is filled anew for each chunk? hand over a copy: "
                        "`.clone()`, or `copy=True` in a loop of your own",
                    )

    def take_back(self, through: int) -> None:
        """Forget the chunks up to this index: the transport is done with them."""
        for chunk_index in [index for index in self._chunks if index <= through]:
            del self._chunks[chunk_index]


NONE = (-1, -1)
"""Nothing can be told of such a tensor, or it is none: preflight will say so."""


def _mark(tensor: Any, *, summed: bool) -> tuple[int, int]:  # noqa: ANN401  whatever the caller has lent
    """Return the count of writes and the digest of a tensor, -1 where there is none."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu:
        return NONE
    try:
        if summed:
            spec_of("", tensor, CPU)
        # A part of a larger tensor, such as one place of a ring, shares its count with all other parts.
        counted = not tensor.is_inference() and tensor.nbytes == tensor.untyped_storage().nbytes()
    except (LocalProtocolError, RuntimeError):  # it has no memory, or not in one piece
        return NONE
    return tensor._version if counted else -1, digest_of(tensor) if summed else -1


def copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies that nobody else writes to; what is no tensor stays for preflight to refuse."""
    return {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in tensors.items()}
