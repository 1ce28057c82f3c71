"""Counts of stage 1 in the chunk that it computes: generator calls and collectives begun (rule R4).

Counted as they begin and not when they are done: one call too many is refused before the generator is
entered, so before it makes a collective that no other rank will make (F12). Pure.

Which chunks are compared follows from the plan and the envelope alone, so all mesh ranks agree (rule R5).
Collectives have no budget beyond those chunks: a stage may rightly make other ones in a chunk that resets or
rebuilds its cache, and only the stage knows which.

Collectives match by order alone. One more on one rank, or another shape, makes each later one mean something
else: a hang, or a sum of things that do not belong together. So in the compared chunks mesh ranks show each
other what they are about to call, and again that a chunk has ended, before they go on; ``collectives``
exchanges the records. Later chunks are compared by ``shared_calls``, where the ranks share a host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ChunkPlan, Ids
from ppwork.records.ledger import CollectiveCall
from ppwork.worker.shared_calls import SharedCalls

COUNTED_METHODS = ("recompute", "step")


class Tally:
    """One mesh rank's counts of one chunk after another.

    ``compare`` is ``compare_collectives`` of the plan; rank and role are for errors.

    Attributes:
        comparing: Whether this chunk's collectives are compared before they are called.
        calls: Generator calls begun in this chunk.
        collectives: Collectives begun in this chunk.
        site: The user's line that the last of them came from, and those that led to it.
        made: Those of this chunk that were compared and found the same, and its end.
        shared: This rank's calls beside those of the others, for chunks that are not compared by an exchange.
        digest: Of this chunk's result, to be laid beside those of the others, too.
        odd: Mesh ranks that ended this chunk with another digest, once it has ended.
        told_of_cut: Whether the log has told of a cut at which there was nothing to reset.
    """

    def __init__(self, rank: int, role: str, compare: int) -> None:
        self.comparing = False
        self.calls = self.collectives = 0
        self.site = ""
        self.made: list[CollectiveCall] = []
        self.shared: SharedCalls | None = None
        self.digest = 0
        self.odd: list[int] = []
        self.told_of_cut = False
        self._rank, self._role, self._compare = rank, role, compare
        self._ids: Ids | None = None
        self._expected = 0

    def begin(self, ids: Ids, plan: ChunkPlan) -> None:
        """Count from zero, for this chunk."""
        self._ids, self._expected = ids, plan.expected_calls
        self.calls = self.collectives = 0
        self.site, self.made = "", []
        self.digest, self.odd = 0, []
        first = ids.chunk_index < self._compare or (self._compare > 0 and plan.reset_cache)
        self.comparing = self._compare < 0 or first

    def end(self) -> None:
        """Count no more: between chunks the stage may do as it likes."""
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

    def call(self, operation: str) -> CollectiveCall:
        """Return the call that this rank is about to make in this chunk; no operation is the chunk's end."""
        chunk_index = -1 if self._ids is None else self._ids.chunk_index
        return CollectiveCall(chunk_index, self.collectives, operation, self.site)

    def where(self) -> dict[str, Any]:
        """Return the facts for an error about this chunk."""
        ids = {} if self._ids is None else self._ids.where()
        return {"rank": self._rank, "role": self._role, **ids}


def counted(stage: type, tally: Tally) -> type:
    """Return the stage's class with its generator calls counted, also those that the stage itself makes."""

    def nothing(*_: object) -> None:
        """Stand in for a method that a stage need not have; a call of it counts all the same."""

    def counting(name: str) -> Callable[..., Any]:
        @functools.wraps(getattr(stage, name, nothing))
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the user's
            tally.generator_call(name)
            return getattr(super(made, self), name, nothing)(*args, **kwargs)

        return method

    methods: dict[str, Any] = {name: counting(name) for name in COUNTED_METHODS}
    same = {"__module__": stage.__module__, "__qualname__": stage.__qualname__, "__doc__": stage.__doc__}
    made = type(stage.__name__, (stage,), {**methods, **same, "calls_are_counted": True})
    return made
