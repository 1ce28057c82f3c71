"""Every error of ppwork: what happened, where, and what to check first.

::

    PPWorkError
    ├── PlanError (also ValueError)     your plan, option or path cannot work; nothing has started
    ├── UnavailableError                Slurm, a host, a tool or a driver is missing or does not do its part
    ├── UnreadableError                 a file that was whole once does not read: it was cut or changed
    ├── NotOverError                    a submitted run goes on, and the time to wait for it is up
    ├── ParityError                     start-up: the ranks do not agree on plan or environment
    ├── LocalProtocolError              this rank was about to do something illegal; nothing was sent
    │   └── WrongRoleError (also AttributeError)    only another role has this call
    ├── RemoteProtocolError             a peer sent something illegal
    │   └── TerminalNotice              a peer told us that the session is over, and why
    ├── PeerLostError                   a peer's connection closed or broke
    ├── PeerTimeoutError                a named peer stayed silent past the bound
    │   └── PeerFrozenError             the peer's process exists but does not run
    ├── StuckError                      this rank's own code made no progress past the bound
    ├── RecordError                     this rank's records could not be written: disk full, mostly
    ├── StageError                      user code of a stage raised; its traceback is the cause
    └── RunFailed                       the launcher: some rank failed; names the first one

This module defines the form of an error, and the words that sentences share: ``named_ranks``, ``duration``
and the like. It knows no group, file or process.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from traceback import format_exception_only
from typing import Any, TypeVar
from unicodedata import category

V = TypeVar("V", bound="Hashable")
MOST_NAMED = 8
"""Most chunks, or ranges of chunks, that a sentence names."""

WHERE_KEYS = ("rank", "role", "group", "peer", "call_id", "chunk_index", "cache_epoch")
"""The keys of ``where``, in the order they are always printed (the same as in logs)."""


class PPWorkError(Exception):
    """Base of all errors here.

    Args:
        what: One sentence in the past tense, complete without context.
        where: Known facts only; keys are a subset of ``WHERE_KEYS``.
        check_first: The likeliest cause and the one thing that confirms it.

    Raises:
        ValueError: ``where`` has a key that is not in ``WHERE_KEYS`` (any rank).
    """

    source = ""
    """``file:line`` of the user's code that caused the error, if the traceback leads elsewhere."""
    between: tuple[int, ...] = ()
    """All ranks that were compared, if some differed: nobody knows which ranks are right."""

    def __init__(self, what: str, *, where: Mapping[str, Any] | None = None, check_first: str = "") -> None:
        self.what = what
        self.check_first = check_first
        self.where: dict[str, Any] = {}
        self.at(**(where or {}))
        super().__init__(what)

    def at(self, **facts: Any) -> PPWorkError:  # noqa: ANN401  ranks, roles and ids: ints and strings
        """Add facts that the raising code did not know; facts already present are kept. Returns self."""
        unknown = set(facts) - set(WHERE_KEYS)
        if unknown:
            raise ValueError(f"`where` has unknown keys {sorted(unknown)}; known are {WHERE_KEYS}")
        merged = {**{k: v for k, v in facts.items() if v is not None}, **self.where}
        self.where = {key: merged[key] for key in WHERE_KEYS if key in merged}
        return self

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append("  where: " + " ".join(f"{k}={v}" for k, v in self.where.items()))
        if self.check_first:
            lines.append(f"  check first: {self.check_first}")
        return visible("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.check_first), self.__dict__)

    def _render_traceback_(self) -> list[str]:
        """Show three lines in a notebook instead of a stack (IPython calls this)."""
        return f"{type(self).__name__}: {self}".splitlines()


def visible(text: str) -> str:
    r"""Return a foreign text with its control and format characters escaped, safe for a terminal.

    >>> visible("a\x1b[2J\nb\u202ec")
    'a\\x1b[2J\nb\\u202ec'
    """
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        sign if sign in "\n\t" or category(sign) not in unseen else ascii(sign)[1:-1] for sign in text
    )


def duration(seconds: float) -> str:
    """Return a time in readable form: ``8.1 ms``, ``250 ms``, ``1.2 s``."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def named_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as words for a sentence.

    >>> named_ranks((2,)), named_ranks((0, 2))
    ('rank 2', 'ranks 0 and 2')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def named_chunks(indexes: Iterable[int]) -> str:
    """Return chunks as words for a sentence; three or more neighbours become a range.

    >>> named_chunks([3]), named_chunks([0, 1, 20]), named_chunks([2, 11, 12, 13, 14])
    ('chunk 3', 'chunks 0, 1 and 20', 'chunks 2 and 11 to 14')
    """
    every = sorted(set(indexes))
    parts: list[str] = []
    named = 0
    for _, numbered in groupby(enumerate(every), key=lambda pair: pair[1] - pair[0]):
        stretch = [index for _, index in numbered]
        texts = [f"{stretch[0]} to {stretch[-1]}"] if len(stretch) > 2 else [*map(str, stretch)]
        if len(parts) + len(texts) > MOST_NAMED:
            parts.append(f"{len(every) - named} more")
            break
        parts += texts
        named += len(stretch)
    return f"chunk{'s' if len(every) > 1 else ''} {listed(parts)}"


def listed(items: Iterable[object]) -> str:
    """Return items as a list in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    every = [str(item) for item in items]
    return f"{', '.join(every[:-1])} and {every[-1]}" if len(every) > 1 else "".join(every)


def meant(name: str, known: Iterable[str]) -> str:
    """Return the question "did you mean ...?" with the closest known name, or an empty text.

    >>> meant("timeouts", ["mesh_size", "timeout_s"])
    "did you mean 'timeout_s'? "
    """
    return "".join(f"did you mean {near!r}? " for near in get_close_matches(name, list(known), 1))


def ranks_by_value(values: Mapping[int, V]) -> dict[V, list[int]]:
    """Group the ranks that have the same value; values and ranks keep their order.

    >>> ranks_by_value({0: "a", 1: "b", 2: "a"})
    {'a': [0, 2], 'b': [1]}
    """
    groups: dict[V, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    return groups


def text_of(error: BaseException) -> str:
    """Return ``Type: message`` of any exception."""
    return f"{type(error).__name__}: {message_of(error)}"


def cause_of(error: BaseException) -> str:
    """Return `` (from Type: message)`` for the error that an error was raised from; nothing if for none."""
    cause = error.__cause__
    return f" (from {text_of(cause).splitlines()[0].removesuffix(': ')})" if cause is not None else ""


def message_of(error: BaseException) -> str:
    """Return the message of any exception, even if its ``str`` raises."""
    try:
        return str(error)
    except Exception as own:  # noqa: BLE001  a user's broken __str__ must not hide the failure
        return f"(its __str__ raised {format_exception_only(own)[-1].strip()})"


def _rebuild(kind: type[PPWorkError], what: str, where: dict[str, Any], check_first: str) -> PPWorkError:
    return kind(what, where=where, check_first=check_first)


class PlanError(PPWorkError, ValueError):
    """Your plan, an option or a path cannot work; raised before the first chunk is on its way."""


class UnavailableError(PPWorkError):
    """The machine, another host or Slurm lacks what is needed, or does not answer."""


class UnreadableError(PPWorkError):
    """A file that a run needs or has left does not read: it was cut, damaged or changed by hand."""


class NotOverError(PPWorkError):
    """A submitted run goes on, and the time to wait for its end is up."""


class ParityError(PPWorkError):
    """Ranks were started with different plans or environments; every rank sees the same text."""


class LocalProtocolError(PPWorkError):
    """This rank was about to send or call something illegal; nothing left it."""


class WrongRoleError(LocalProtocolError, AttributeError):
    """This rank used a call that only another role has; ``hasattr`` is false for it on this rank's plane."""


class RemoteProtocolError(PPWorkError):
    """A peer sent something that the protocol or the wire format forbids."""


class TerminalNotice(RemoteProtocolError):
    """A peer ended the session and said why. This error is a symptom; the cause is in the peer's record."""


class PeerLostError(PPWorkError):
    """The connection to a peer closed or broke; the peer is probably dead."""


class PeerTimeoutError(PPWorkError):
    """A peer stayed silent past the bound."""


class PeerFrozenError(PeerTimeoutError):
    """A peer's process exists but does not run, because it or its host is stopped; found by the watchdog."""


class StuckError(PPWorkError):
    """This rank's own code made no progress past the bound; found by the watchdog, or by a lane."""


class RecordError(PPWorkError):
    """A record of this rank could not be written, so the run's records would be incomplete."""


class StageError(PPWorkError):
    """Code of a stage raised; the original exception is ``__cause__``."""


class RunFailed(PPWorkError):
    """Some rank of a run failed; the text starts with the first failed rank, its error and its log.

    Attributes:
        headline: The sentence that says what happened, without files and the other ranks.
    """

    def __init__(
        self, what: str, *, where: Mapping[str, Any] | None = None, check_first: str = "", headline: str = ""
    ) -> None:
        super().__init__(what, where=where, check_first=check_first)
        self.headline = headline

    def below(self, line: str, check_first: str = "") -> RunFailed:
        """Return this failure with a line above that explains more, and with another thing to check."""
        return RunFailed(
            f"{line}\n{self.what}",
            where=self.where,
            check_first=check_first or self.check_first,
            headline=self.headline,
        )
