"""Counts what stage 1 begins in the chunk that it computes: generator calls and collectives (rule R4).

They are counted when they begin, not when they are done: one call too many is refused before it enters the
generator, so before it makes a collective that no other rank will make (F12). No I/O.

The plan and the envelope alone decide which chunks are compared, so all mesh ranks agree (rule R5). Later
chunks have no limit on collectives: a stage may rightly make others in a chunk that resets or rebuilds its
cache, and only the stage knows which.

Collectives match by order alone. One more on one rank, or another shape, changes what each later one means: a
hang, or a sum of unrelated tensors. So in the compared chunks mesh ranks show each other each coming call,
and the end of the chunk, before they go on; ``collectives`` exchanges the records. ``shared_calls`` compares
later chunks, if the ranks share a host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ChunkPlan, Ids
from ppwork.records.ledger import CollectiveCall
from ppwork.worker.contract import Kinds
from ppwork.worker.shared_calls import SharedCalls

COUNTED_METHODS = ("recompute", "step")
NO_RESULT = 0, ""
"""In place of a result's digest and shapes: there is none to compare."""


class Tally:
    """One mesh rank's counts, chunk after chunk.

    ``compare``: so many first chunks, and first cuts, are compared; rank and role are for errors.

    Attributes:
        comparing: Whether this chunk's collectives are compared before they are called.
        calls: Generator calls begun in this chunk.
        collectives: Collectives begun in this chunk.
        shows: Whether this rank shows others what it holds: that exchange is ours, and not compared itself.
        site: The user's line of the last collective, and the lines that led to it.
        returns: Lines at which the step may return, in that form: the place of an end without a collective.
        made: This chunk's calls, and its end, that were compared and found the same.
        shared: Compares this rank's calls with the others', in chunks without an exchange.
        digest: Digest and shapes of this chunk's result, which are compared, too.
        odd: Mesh ranks that ended this chunk with another result, and its shapes; set at the chunk's end.
        kinds: What the last chunks came with.
        told_of_cut: Whether the log has named a cut that had nothing to reset.
    """

    def __init__(self, rank: int, role: str, compare: int) -> None:
        self.comparing = self.shows = False
        self.calls = self.collectives = self._cuts = 0
        self.site = self.returns = ""
        self.made: list[CollectiveCall] = []
        self.shared: SharedCalls | None = None
        self.digest = NO_RESULT
        self.odd: dict[int, str] = {}
        self.kinds = Kinds()
        self.told_of_cut = False
        self._rank, self._role, self._compare = rank, role, compare
        self._ids: Ids | None = None
        self._expected = 0

    def begin(self, ids: Ids, plan: ChunkPlan) -> None:
        """Reset the counts for this chunk."""
        self._ids, self._expected = ids, plan.expected_calls
        self.calls, self.collectives, self.site, self.made = 0, 0, "", []
        self.digest, self.odd = NO_RESULT, {}
        self._cuts += plan.reset_cache and ids.chunk_index >= self._compare
        is_cut = plan.reset_cache and self._cuts <= self._compare  # not of all: a stream may have many
        self.comparing = self._compare < 0 or ids.chunk_index < self._compare or is_cut

    def end(self) -> None:
        """Stop counting: between chunks the stage may do as it likes."""
        self._ids, self.comparing = None, False

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Inside, this rank exchanges what it holds."""
        self.shows = True
        try:
            yield
        finally:
            self.shows = False

    def generator_call(self, name: str) -> None:
        """Count one generator call that is about to begin.

        Raises:
            LocalProtocolError: The chunk's plan expected fewer calls (this mesh rank; nothing was entered).
        """
        if self._ids is None:
            return
        if self.calls >= self._expected:
            raise LocalProtocolError(
                f"`{name}` was called as generator call {self.calls + 1} of a chunk that has "
                f"{self._expected}.",
                where=self.where(),
                check_first="does the generator call its own step or recompute, or repeat one on this rank?",
            )
        self.calls += 1

    def call(self, operation: str) -> CollectiveCall:
        """Return the call that this rank is about to make in this chunk; an empty operation is the end."""
        chunk_index = -1 if self._ids is None else self._ids.chunk_index
        site = self.site or ("" if operation else self.returns)
        return CollectiveCall(chunk_index, self.collectives, operation, site)

    def where(self) -> dict[str, Any]:
        """Return the facts for an error about this chunk."""
        return {"rank": self._rank, "role": self._role, **({} if self._ids is None else self._ids.where())}


def counted(stage: type, tally: Tally) -> type:
    """Return the stage's class with its generator calls counted, even calls by the stage itself."""

    def nothing(*_: object) -> None:
        """Stand in for an optional method; a call of it counts all the same."""

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
