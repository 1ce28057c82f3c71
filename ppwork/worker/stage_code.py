"""Runs code of a stage: visible to the watchdog, behind the guards, and without autograd."""

from __future__ import annotations

import dis
from types import TracebackType
from typing import Self

import torch

from ppwork.errors import PeerTimeoutError, PPWorkError, StageError, cause_of, text_of
from ppwork.protocol.backend_errors import as_peer_error, is_backends
from ppwork.protocol.topology import Role
from ppwork.records.failure import source_of
from ppwork.records.spans import WhichChunk
from ppwork.runtime import Groups
from ppwork.worker import progress
from ppwork.worker.collectives import OnlyGroup, heed, seeing
from ppwork.worker.contract import Kinds

CONSTRUCTOR = "constructor"
RAISE = dis.opmap["RAISE_VARARGS"]


class StageCode:
    """A block of user code; an exception in it becomes a ``StageError``, with the exception as its cause.

    This is a class because it encloses every step: each context manager made from a generator costs some 20
    us on a rank that has slept, whose caches are cold.

    Args:
        step: Name of the step, such as ``encode``; if it has several methods, an error names that of
            ``entering``.
        stage: The stage, or its class; its attribute ``inference_mode`` is respected.
        groups: This rank's groups; stage code may use ``tp_pg`` on the mesh, and no group on rank 0.
        which: The chunk, with the ids that are known.
        seen: Check functional collectives, too; slow, so only for the first chunks.
        kinds: What the last chunks came with; an error tells of a change.

    Raises:
        StageError: The body raised an error that is not ours (the rank that ran it).
        PeerLostError, PeerTimeoutError: A call of the backend in the body lost a peer, or waited for a silent
            one; the ``__cause__`` is the backend's error (the rank that ran it).
        LocalProtocolError: The body was about to create a group, or to use a forbidden one (that rank).
    """

    def __init__(
        self,
        step: str,
        stage: object,
        groups: Groups,
        which: WhichChunk | None = None,
        *,
        seen: bool = False,
        kinds: Kinds | None = None,
    ) -> None:
        self._step, self._which, self._kinds = step, which, kinds
        self._mode, self._group = without_autograd(stage, step), OnlyGroup(groups, _group_of(groups))
        self._seeing = seeing(groups, None) if seen else None
        self._groups = groups

    def entering(self, method: str) -> None:
        """Note which of the stage's methods is called next."""
        self._step = method
        progress.entering(method)

    def __enter__(self) -> Self:
        self._outer = progress.enter(self._step, self._which)
        self._mode.__enter__()
        self._group.__enter__()
        if self._seeing is not None:
            self._seeing.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seeing is not None:
            self._seeing.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._group.__exit__()
        self._mode.__exit__(kind, error, trace)
        progress.leave(self._outer)
        late = _of_a_peer(error) if self._step == CONSTRUCTOR else None
        if error is not None and isinstance(late, PeerTimeoutError):
            # No symptom, since no failure caused it: the watchdog ends a slow loader before that bound.
            what = f"A collective in the stage's constructor met nobody: {late.what}"
            check = "do all mesh ranks make it in their constructors? those that came out of theirs wait here"
            alone = StageError(what, where=late.where, check_first=check)
            alone.source = source_of(error)
            raise alone from None
        if error is None:
            heed(self._which)
        elif isinstance(error, PPWorkError):
            error.at(**(self._which or {}))
        elif (named := _lost_in(self._step, error, self._groups)) is not None:
            named.at(**(self._which or {}))
            named.source = source_of(error)
            raise named from error
        elif not _is_ctrl_c(error):  # a SystemExit's code 0 would look like success
            notes = [*getattr(error, "__notes__", []), *(self._kinds.change() if self._kinds else [])]
            raise StageError(
                f"The stage's {self._step} raised {text_of(error)}".removesuffix(": ") + cause_of(error),
                where=self._which,
                check_first="; ".join([*notes, "its traceback: the last frame outside ppwork is yours"]),
            ) from error


def without_autograd(stage: object, step: str = "") -> torch.inference_mode | torch.no_grad:
    """Return the mode in which a stage runs, the same in the pipeline and in the reference.

    Else a cache would keep the graph of every chunk. The constructor makes ordinary tensors, for which torch
    counts the writes. The other methods make inference tensors, whose bytes are checked.
    """
    if not getattr(stage, "inference_mode", True):
        return torch.inference_mode(False)
    return torch.no_grad() if step == CONSTRUCTOR else torch.inference_mode()


def _group_of(groups: Groups) -> str | None:
    return None if groups.role is Role.STAGE0 else "tp_pg"


def _is_ctrl_c(error: BaseException) -> bool:
    """Say whether a signal raised this error, amid whatever ran then, and no ``raise`` in some code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    by_code = trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == RAISE
    return isinstance(error, KeyboardInterrupt) and not by_code


def _lost_in(step: str, error: BaseException, groups: Groups) -> PPWorkError | None:
    """Return what a backend's error in a step says about a peer; ``None``: it is none, or says nothing."""
    if step == CONSTRUCTOR or not isinstance(error, RuntimeError) or not is_backends(error):
        return None
    at = f" at {source}" if (source := source_of(error)) else ""
    return as_peer_error(error, f"the stage's {step}{at}", rank=groups.rank, role=str(groups.role))


def _of_a_peer(error: BaseException | None) -> BaseException | None:
    """Return an error; turn a backend's error into what it says about a peer."""
    return (as_peer_error(error, "a call") or error) if isinstance(error, RuntimeError) else error
