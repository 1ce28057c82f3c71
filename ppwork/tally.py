"""What stage 1 has begun in the chunk that it computes: its generator calls and its collectives (rule R4).

Counted as they begin and not when they are done: one call too many is refused before the generator is
entered, so before it makes a collective that no other rank will make (F12). Pure.

Which chunks are compared follows from the plan and the envelope alone, so all mesh ranks agree (rule R5).
Collectives have no budget beyond those chunks: a stage may rightly make other ones in a chunk that resets or
rebuilds its cache, and only the stage knows which.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ppwork.errors import LocalProtocolError
from ppwork.handshake import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.envelope import ChunkPlan, Ids

COUNTED_METHODS = ("recompute", "step")


class Tally:
    """One mesh rank's counts of one chunk after another.

    Args:
        rank: This rank, for errors.
        role: Its role.
        compare: ``compare_collectives`` of the plan.

    Attributes:
        comparing: Whether this chunk's collectives are compared before they are called.
        calls: Generator calls begun in this chunk.
        collectives: Collectives begun in this chunk.
    """

    def __init__(self, rank: int, role: str, compare: int) -> None:
        self.comparing = False
        self.calls = self.collectives = 0
        self._rank, self._role, self._compare = rank, role, compare
        self._ids: Ids | None = None
        self._expected = 0

    def begin(self, ids: Ids, plan: ChunkPlan) -> None:
        """Count from zero, for this chunk."""
        self._ids, self._expected = ids, plan.expected_calls
        self.calls = self.collectives = 0
        first = ids.chunk_index < self._compare or (self._compare > 0 and plan.reset_cache)
        self.comparing = self._compare < 0 or first

    def end(self) -> None:
        """Count no more: what the stage does between chunks is nobody's."""
        self._ids, self.comparing = None, False

    def generator_call(self, name: str) -> None:
        """Count one generator call that is about to begin.

        Raises:
            LocalProtocolError: The chunk's plan expected fewer (this mesh rank; nothing was entered).
        """
        if self._ids is None:
            return
        if self.calls >= self._expected:
            raise LocalProtocolError(
                f"A {name} was asked for after {self.calls} generator calls; the chunk's plan expected "
                f"{self._expected}.",
                where=self.where(),
                check_first="does the generator call its own step or recompute, or repeat one on this rank?",
            )
        self.calls += 1

    def call(self, operation: str) -> Call:
        """Return what this rank is about to do in this chunk; no operation is the chunk's end."""
        return Call(-1 if self._ids is None else self._ids.chunk_index, self.collectives, operation)

    def where(self) -> dict[str, Any]:
        """Return what an error about this chunk knows."""
        ids = {} if self._ids is None else self._ids.where()
        return {"rank": self._rank, "role": self._role, **ids}


def counted(stage: type, tally: Tally) -> type:
    """Return the stage's class with its generator calls counted, whoever makes them, the stage included.

    Args:
        stage: A class with the contract's methods of stage 1.
        tally: Where they are counted.
    """

    def counting(name: str) -> Callable[..., Any]:
        @functools.wraps(getattr(stage, name))
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the user's
            tally.generator_call(name)
            return getattr(super(made, self), name)(*args, **kwargs)

        return method

    methods: dict[str, Any] = {name: counting(name) for name in COUNTED_METHODS}
    same = {"__module__": stage.__module__, "__qualname__": stage.__qualname__, "__doc__": stage.__doc__}
    made = type(stage.__name__, (stage,), {**methods, **same, "calls_are_counted": True})
    return made
