"""Code of a stage: run where the watchdog sees it, behind the guards, and without autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from ppwork.errors import PPWorkError, StageError, text_of
from ppwork.protocol.topology import Role
from ppwork.records.spans import WhichChunk
from ppwork.runtime import Groups
from ppwork.worker import progress
from ppwork.worker.collectives import only_group, seeing

CONSTRUCTOR = "constructor"


@contextmanager
def stage_code(
    step: str, stage: object, groups: Groups, which: WhichChunk | None = None, *, seen: bool = False
) -> Iterator[None]:
    """Run user code; what it raises becomes a ``StageError``, itself as the cause.

    Args:
        step: Such as ``encode``.
        stage: The stage, or its class; its attribute ``inference_mode`` is heeded.
        groups: This rank's; stage code may use ``tp_pg`` on the mesh, and nothing on rank 0.
        which: The chunk, by what of its ids is known.
        seen: Look at functional collectives, too; slow, so for the first chunks.

    Raises:
        StageError: The body raised something that is not ours (the rank that ran it).
        LocalProtocolError: It was about to make a group, or to use one that it must not (that rank).
    """
    outer = progress.enter(step, which)
    try:
        with without_autograd(stage, step), only_group(groups, _group_of(groups)), ExitStack() as more:
            if seen:
                more.enter_context(seeing(groups, None))
            yield
    except PPWorkError as error:
        error.at(**(which or {}))
        raise
    except (Exception, SystemExit) as error:  # code 0 would look like a good end
        raise StageError(
            f"The stage's {step} raised {text_of(error)}",
            where=which,
            check_first="the traceback above: the last frame outside ppwork is yours",
        ) from error
    finally:
        progress.leave(outer)


def without_autograd(stage: object, step: str = "") -> torch.inference_mode | torch.no_grad:
    """Return the mode in which a stage runs, the same in the pipeline and in the reference.

    A cache would else keep the graph of every chunk. What the constructor makes are ordinary tensors: torch
    counts the writes to them. What the other methods make are inference tensors, watched by their bytes.
    """
    if not getattr(stage, "inference_mode", True):
        return torch.inference_mode(False)
    return torch.no_grad() if step == CONSTRUCTOR else torch.inference_mode()


def _group_of(groups: Groups) -> str | None:
    return None if groups.role is Role.STAGE0 else "tp_pg"
