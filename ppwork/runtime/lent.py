"""Tensors that the caller has lent to the transport, and must leave as they are until it is done with them.

What travels alone is read where it lies, without a copy. Whoever fills the same buffer for the next chunk
changes the one that is on its way: the peer gets the wrong chunk, or half of each, and no backend notices.
So each lent tensor is looked at again before the next call of the transport. All sizes are, also those that
were copied into the frame: else the same code would be right for a small chunk and wrong for a large one.
CUDA tensors are not: they are copied, in the order of their stream.

torch counts the writes to a tensor, but not those to an inference tensor or to one part of a tensor, nor
those of others to its memory (numpy). So bytes are summed as well: in the first chunks all of them, in each
later one a sample, which costs the same for any size. A buffer that is filled anew differs in some of it; a
few bytes that change alone may not be among them. That the same buffer is returned twice is no mistake by
itself: what stays as it is may go along with every chunk.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ppwork.errors import LocalProtocolError
from ppwork.runtime.tensors import as_bytes, spec_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU = torch.device("cpu")
RUNTIME = str(Path(__file__).parent)
SAMPLE_BYTES, WHOLE_BYTES = 256, 4096
"""Bytes of a tensor that are looked at, at least; a tensor of so few is looked at whole."""


@dataclass(frozen=True, slots=True)
class Loan:
    """One tensor as it was when it was lent; ``writes`` is -1 where torch does not count them."""

    name: str
    tensor: torch.Tensor
    looked_at: NDArray[np.uint8]
    writes: int
    digest: int

    @property
    def is_as_lent(self) -> bool:
        """Whether nobody has written to it, as far as one sees."""
        if self.writes >= 0 and self.writes != self.tensor._version:
            return False
        return self.digest == _digest_of(self.looked_at)


class Lent:
    """What this rank has lent, chunk by chunk.

    Args:
        whole: ``check_buffers`` of the plan: first chunks of which all bytes are summed; -1 is always.
        what: Words for a lent tensor's chunk in the error, such as ``the result of chunk``.
        until: Words for the end of the loan.
    """

    def __init__(self, whole: int, what: str, until: str) -> None:
        self._whole, self._what, self._until = whole, what, until
        self._chunks: dict[int, tuple[str, list[Loan]]] = {}

    def lend(self, chunk_index: int, tensors: Mapping[str, Any]) -> None:
        """Remember how the tensors of a chunk look; a chunk that is lent already stays as it was."""
        if chunk_index not in self._chunks:
            whole = self._whole < 0 or chunk_index < self._whole
            loans = (_loan(name, tensor, whole=whole) for name, tensor in tensors.items())
            self._chunks[chunk_index] = line_of_caller(), [loan for loan in loans if loan is not None]

    def check(self) -> None:
        """Look at all that is lent.

        Raises:
            LocalProtocolError: A tensor was written to; names it and its chunk (this rank).
        """
        for chunk_index, (line, loans) in self._chunks.items():
            for loan in loans:
                if not loan.is_as_lent:
                    written = LocalProtocolError(
                        f"The tensor {loan.name!r} of {self._what} {chunk_index} was written to before "
                        f"{self._until}{f'; it was handed over at {line}' if line else ''}.",
                        where={"chunk_index": chunk_index},
                        check_first="which buffer is filled anew for each chunk? hand over a copy: "
                        "`.clone()`, or `copy=True` in a loop of your own",
                    )
                    written.source = line
                    raise written

    def take_back(self, through: int) -> None:
        """Forget the chunks up to this index: the transport is done with them."""
        for chunk_index in [index for index in self._chunks if index <= through]:
            del self._chunks[chunk_index]


def _loan(name: str, tensor: Any, *, whole: bool) -> Loan | None:  # noqa: ANN401  whatever the caller has lent
    """Return how a tensor looks now; ``None`` of one of which nothing can be told: preflight will say so."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu:
        return None
    try:
        spec_of("", tensor, CPU)
    except LocalProtocolError:  # it has no memory, or not in one piece
        return None
    # A part of a larger tensor, such as one place of a ring, shares its count with all other parts.
    counted = not tensor.is_inference() and tensor.nbytes == tensor.untyped_storage().nbytes()
    looked_at: NDArray[np.uint8] = as_bytes(tensor).numpy()
    if not whole and looked_at.size > WHOLE_BYTES:
        # Odd, so that each byte of an item has its turn: the low ones of small whole floats are all 0.
        looked_at = looked_at[:: (looked_at.size // SAMPLE_BYTES - 1) | 1]
    return Loan(name, tensor, looked_at, tensor._version if counted else -1, _digest_of(looked_at))


def _digest_of(raw: NDArray[np.uint8]) -> int:
    return zlib.crc32(np.ascontiguousarray(raw).data)


def line_of_caller() -> str:
    """Return ``file:line`` of the loop of one's own that called the runtime; nothing where that is ours."""
    frame = sys._getframe(1)
    while (file := frame.f_code.co_filename).startswith(RUNTIME) and frame.f_back is not None:
        frame = frame.f_back
    return "" if file.startswith(RUNTIME.removesuffix("runtime")) else f"{file}:{frame.f_lineno}"


def copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return contiguous copies that nobody else writes to; what has none stays for preflight to refuse."""
    whole = torch.contiguous_format
    return {
        name: t.clone(memory_format=whole) if isinstance(t, torch.Tensor) and t.layout is torch.strided else t
        for name, t in tensors.items()
    }
