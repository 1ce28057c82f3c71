"""A learner's program of ranks, run: what its ranks printed and called, and hints on what it shows.

An exercise is a function of an ``Attempt`` that yields hints, the most useful one first. A program that does
not end or fails is answered before that, by the diagnosis that every failure gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ppwork.launcher.script import ScriptRun
from ppwork.process import PAST_LIMIT, STOPPED
from ppwork.records.calls import ANY, RECV, SEND, Call, CallPart, read_calls
from ppwork.timeline.meetings import Endpoint, Meetings


class WholeMessage(NamedTuple):
    """A message that was sent and received."""

    sent: Endpoint
    received: Endpoint

    @property
    def left_ns(self) -> int:
        """When its sender called."""
        return self.sent.call.start_ns

    @property
    def back_ns(self) -> int:
        """When its receiver knew that it was there; a handle that nobody waited for has had its hint."""
        return self.received.done_ns or 0


@dataclass(frozen=True)
class Attempt:
    """A program of ranks that ended well."""

    run: ScriptRun

    @property
    def nproc(self) -> int:
        """Number of ranks."""
        return self.run.nproc

    @cached_property
    def met(self) -> Meetings:
        """The calls of all ranks, and which of them met."""
        return Meetings(read_calls(self.run.run_dir))

    def lines(self, rank: int) -> list[str]:
        """Return what a rank printed, without surrounding space."""
        return [line.strip() for line in self.run.printed(rank).splitlines() if line.strip()]

    def calls(self, rank: int, *names: str) -> list[Call]:
        """Return the calls of a rank, in order; with names those of these functions."""
        of_rank = self.met.ranks.get(rank)
        return [call for call in (of_rank.calls if of_rank else ()) if not names or call.name in names]

    def messages(self, sender: int, receiver: int | None = None) -> list[WholeMessage]:
        """Return the messages of a rank that were received, in their order; ``None``: by any rank."""
        return [
            WholeMessage(m.sent, m.received)
            for m in self.met.messages
            if m.sent is not None and m.received is not None
            if m.sender == sender and receiver in (None, m.receiver)
        ]

    def sent_bytes(self, rank: int) -> int:
        """Return the bytes of all messages that a rank sent by p2p."""
        return sum(part.size for call in self.calls(rank) for part in call.begun.parts if part.kind == SEND)

    def received_bytes(self, rank: int) -> int:
        """Return the bytes of all messages that a rank received by p2p."""
        return sum(part.size for call in self.calls(rank) for part in call.begun.parts if part.kind == RECV)

    def forgotten(self, rank: int) -> list[Call]:
        """Return the calls of a rank that returned a handle nobody waited for."""
        return [call for call in self.calls(rank) if id(call) in self.met.forgotten]

    def shared(self, rank: int) -> list[tuple[Call, Call]]:
        """Return pairs of calls of a rank: the second was given a buffer that torch still had from the first.

        Two that only read it, such as two sends, are no pair. It follows from the order of the rank's own
        calls, whenever the bytes moved.
        """
        pairs = []
        for loan in self.met.loans:
            first, end_ns = loan.call, loan.end_ns
            if first.rank != rank or end_ns is None:
                continue
            held = [first.begun.parts[loan.part]] if loan.part != ANY else first.begun.parts
            pairs += [
                (first, call)
                for call in self.calls(rank)
                if first.start_ns < call.start_ns < end_ns
                and any(_clash(one, other) for one in held for other in call.begun.parts)
            ]
        return pairs

    def lent_at_once(self, rank: int) -> int:
        """Return how many buffers of a rank torch had at one time, at most."""
        loans = [loan for loan in self.met.loans if loan.call.rank == rank]
        moments = [(loan.call.start_ns, 1) for loan in loans]
        moments += [(loan.end_ns, -1) for loan in loans if loan.end_ns is not None]
        count = most = 0
        for _, change in sorted(moments):
            count += change
            most = max(most, count)
        return most


def lent_twice(attempt: Attempt, rank: int) -> Iterator[str]:
    """Yield hints on calls of a rank that were given a buffer which torch still had."""
    for first, second in attempt.shared(rank):
        yield (
            f"Rank {rank} gives {second.name} ({second.line}) the buffer that torch still has from "
            f"{first.name} ({first.line}): two messages under way need two buffers."
        )


def _clash(one: CallPart, other: CallPart) -> bool:
    """Whether two calls were given the same bytes, and one of them writes to them."""
    overlap = one.at and other.at and one.at < other.at + other.size and other.at < one.at + one.size
    return bool(overlap) and not one.kind == other.kind == SEND


Hints = Callable[[Attempt], Iterable[str]]
Programs = Mapping[str, Callable[[ScriptRun], str]]
"""Exercises of a lesson by number: each returns a hint about a program that was run, or nothing."""


def program(ranks: int) -> Callable[[Hints], Callable[[ScriptRun], str]]:
    """Make the check of an exercise of a function that yields hints about a program that ended well.

    Args:
        ranks: The number of ranks that the exercise asks for; another one is the first hint.
    """

    def check_of(hints: Hints) -> Callable[[ScriptRun], str]:
        def hint_of(run: ScriptRun) -> str:
            if run.nproc != ranks:
                return f"It ran on {run.nproc} ranks; this exercise asks for {ranks}."
            if run.failure is not None:
                return _failed(run)
            return next(iter(hints(Attempt(run))), "")

        return hint_of

    return check_of


def first_of(*looks: Callable[[ScriptRun], str]) -> Callable[[ScriptRun], str]:
    """Return a check that asks one look after the other, and ends at the first hint."""
    return lambda run: next(filter(None, (look(run) for look in looks)), "")


def ends_well(advice: str) -> Callable[[ScriptRun], str]:
    """Return a look at how a program ended: advice, not the diagnosis: the cause is the task."""
    ended = comes_to_an_end(advice)
    return lambda run: ended(run) or (f"It does not end well. {advice}" if run.failure is not None else "")


def comes_to_an_end(advice: str) -> Callable[[ScriptRun], str]:
    """Return a look at a program that was stopped at its limit: advice, as a diagnosis names the symptom."""
    return lambda run: f"It did not end. {advice}" if run.exit_code == PAST_LIMIT else ""


def _failed(run: ScriptRun) -> str:
    """Say how a program ended that did not end well, and what to look at."""
    failure = run.failure
    assert failure is not None  # noqa: S101  the caller has asked
    if run.exit_code == STOPPED:
        return "You stopped it."
    said = failure.headline or failure.what.splitlines()[0]
    if run.exit_code == PAST_LIMIT:
        said = f"It did not end. {said}"
    return f"{said} Check first: {failure.check_first}." if failure.check_first else said
