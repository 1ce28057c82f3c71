"""Tensors that the caller has lent to the transport, and must not write to until the loan ends.

A large tensor is sent from where it is, without a copy. If the caller fills the same buffer for the next
chunk, it changes the chunk that is on its way: the peer gets the wrong chunk, or half of each, and no backend
notices. So each lent tensor is checked again when its loan ends, before anybody gets the result. It is
checked earlier if its memory is handed over once more, which happens when a buffer is filled anew. Tensors of
all sizes are checked, even those that were copied for sending: else the same code would be right for a small
chunk and wrong for a large one. CUDA tensors are not checked: they are copied, in the order of their stream.

torch counts the writes to a tensor, but not writes to an inference tensor or to a part of a tensor, nor
writes that others (numpy) make to its memory. So the bytes are summed as well: all bytes in the first chunks,
and in each later chunk a sample, which costs the same for any size. A buffer that is filled anew differs in
some byte of the sample; a change of only a few bytes may be missed. To return the same buffer twice is not a
mistake by itself: a tensor that never changes may go along with every chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

import torch

from ppwork.errors import LocalProtocolError
from ppwork.runtime.tensors import checksum_of, sample_of, spec_of

CPU = torch.device("cpu")
PLAIN = (torch.Tensor, torch.nn.Parameter)
RUNTIME = str(Path(__file__).parent)


@dataclass(slots=True)
class Loan:
    """One tensor as it was when it was lent; ``writes`` is -1 if torch does not count its writes."""

    name: str
    tensor: torch.Tensor
    address: int
    looked_at: memoryview
    writes: int
    digest: int

    @property
    def is_as_lent(self) -> bool:
        """Whether nobody has written to the tensor, as far as the checks can tell."""
        if self.writes >= 0 and self.writes != self.tensor._version:
            return False
        return self.digest == checksum_of(self.looked_at)


class Lent:
    """The tensors that this rank has lent, chunk by chunk.

    Args:
        whole: ``check_buffers`` of the plan: first chunks whose bytes are all summed; -1: all chunks.
        what: Words for a lent tensor's chunk in the error, such as ``the result of chunk``.
        until: Words for the end of the loan.
    """

    def __init__(self, whole: int, what: str, until: str) -> None:
        self._whole, self._what, self._until = whole, what, until
        self._chunks: dict[int, tuple[str, list[Loan]]] = {}

    def lend(self, chunk_index: int, tensors: Mapping[str, Any], *, passed: bool = True) -> None:
        """Remember the tensors of a chunk as they are now; a chunk that is lent already stays as it was.

        Args:
            chunk_index: The chunk.
            tensors: Its tensors.
            passed: Preflight has passed them; else tensors that cannot be checked are left out.
        """
        if chunk_index not in self._chunks:
            whole = self._whole < 0 or chunk_index < self._whole
            seen = [(k, t) for k, t in tensors.items() if (t.is_cpu if passed else _is_in_one_piece(t))]
            self._chunks[chunk_index] = line_of_caller(), [_loan(name, t, whole=whole) for name, t in seen]

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Check the lent tensors that start at the address of one of these, which are about to be sent.

        Raises:
            LocalProtocolError: A lent tensor was written to; names the tensor and its chunk (this rank).
        """
        if not self._chunks:
            return
        again = {t.data_ptr() for t in tensors.values() if type(t) in PLAIN and t.layout is torch.strided}
        for chunk_index, (line, loans) in self._chunks.items():
            self._look_at(chunk_index, line, [loan for loan in loans if loan.address in again])

    def take_back(self, through: int) -> None:
        """Check the chunks up to this index, and forget them: the transport is done with them.

        Raises:
            LocalProtocolError: A tensor of theirs was written to; names the tensor and its chunk (this rank).
        """
        for chunk_index in [index for index in self._chunks if index <= through]:
            self._look_at(chunk_index, *self._chunks.pop(chunk_index))

    def _look_at(self, chunk_index: int, line: str, loans: list[Loan]) -> None:
        for loan in loans:
            if not loan.is_as_lent:
                written = LocalProtocolError(
                    f"The tensor {loan.name!r} of {self._what} {chunk_index} was written to before "
                    f"{self._until}{f'; it was handed over at {line}' if line else ''}.",
                    where={"chunk_index": chunk_index},
                    check_first="which buffer is filled anew for each chunk? hand over a copy: "
                    "`.clone()`; in a loop `copy=True` does it, too",
                )
                written.source = line
                raise written


def _is_in_one_piece(value: object) -> bool:
    """Say whether this is a tensor whose data is one contiguous piece of host memory."""
    try:
        spec_of("", value, CPU)
    except LocalProtocolError:
        return False
    return True


def _loan(name: str, tensor: torch.Tensor, *, whole: bool) -> Loan:
    """Record how a tensor looks now."""
    # A part of a larger tensor, such as one place of a ring, shares its count with all other parts.
    counted = not tensor.is_inference() and tensor.nbytes == tensor.untyped_storage().nbytes()
    looked_at, writes = sample_of(tensor, whole=whole), tensor._version if counted else -1
    return Loan(name, tensor, tensor.data_ptr(), looked_at, writes, checksum_of(looked_at))


def line_of_caller() -> str:
    """Return ``file:line`` of the user's loop that called the runtime; empty if ppwork itself called it."""
    frame = sys._getframe(1)
    while (file := frame.f_code.co_filename).startswith(RUNTIME) and frame.f_back is not None:
        frame = frame.f_back
    return "" if file.startswith(RUNTIME.removesuffix("runtime")) else f"{file}:{frame.f_lineno}"


def line_in_loop(trace: TracebackType | None) -> str:
    """Return `` at file:line`` of the innermost frame of a traceback that is neither torch's nor ours."""
    ours = (RUNTIME.removesuffix("runtime"), str(Path(torch.__file__).parent))
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(trace)]
    lines = [f" at {file}:{line}" for file, line in frames if not file.startswith(ours)]
    return lines[-1] if lines else ""


def copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return contiguous copies that nobody else writes to; anything else stays for preflight to refuse."""
    whole = torch.contiguous_format
    return {
        name: t.clone(memory_format=whole) if isinstance(t, torch.Tensor) and t.layout is torch.strided else t
        for name, t in tensors.items()
    }
