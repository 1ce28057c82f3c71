"""The contract of a stage: what user code implements, and how an import path finds that code.

A stage knows nothing of messages between ranks. Stage 0 turns source chunks into tensors, and results back
into output. Stage 1 (the generator) runs on every mesh rank, and makes collectives only on the group of
``context.tp``. The runtime sets the order and the number of the generator calls, and can so check them
against the plan (rule R4).
"""

from __future__ import annotations

import dis
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from traceback import extract_tb
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Protocol

from ppwork.errors import LocalProtocolError, PlanError, meant, text_of
from ppwork.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Tensors = Mapping[str, "torch.Tensor"]


class Pause(Enum):
    """What ``encode`` returns in place of a chunk when the source has none now."""

    NOT_YET = "no chunk yet; ask again"


NOT_YET: Final = Pause.NOT_YET


class TensorParallel(Protocol):
    """Stage 1's only way to reach the other mesh ranks."""

    size: int
    """Number of mesh ranks."""
    group_rank: int
    """This rank's place in the mesh, 0 for the leader."""

    @property
    def group(self) -> ProcessGroup:
        """The mesh's process group (``tp_pg``), for your own collectives, which all mesh ranks make."""

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh as a ``DeviceMesh`` of one dimension, for DTensor and ``parallelize_module``."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum ``tensor`` over the mesh, in place, and return it.

        Args:
            tensor: Contiguous, same shape and dtype on every mesh rank, on this rank's device.

        Collective:
            ``tp_pg``, all mesh ranks, in the same order. At mesh size 1 nothing is called.

        Blocks:
            Until every mesh rank has made the same call (gloo), at most the plan's ``timeout_s``.
        """

    def compare(self, tensors: Tensors) -> None:
        """Compare tensors that every mesh rank must hold alike, such as counts, a cache, a random state.

        A wrong share of a sum is the same wrong sum on all ranks, so their results do not show it. Every mesh
        rank calls this in the same place in ``step`` or ``recompute``. In a chunk whose collectives are
        compared (the plan's ``compare_collectives``) ranks exchange digests of all bytes. In later chunks
        ranks of one host read each other's in the run's folder, and ranks of other hosts are not compared.

        Args:
            tensors: By name, dense; one on a GPU is copied to the host first, which waits for the GPU.

        Collective:
            ``tp_pg``, all mesh ranks, in a compared chunk; else none.

        Blocks:
            In a compared chunk until every mesh rank has made the same call, at most the plan's
            ``timeout_s``.

        Raises:
            LocalProtocolError: Another mesh rank holds another tensor (in a compared chunk every mesh rank,
                else the later one; names both, with chunk, line and tensor), or no chunk is being computed
                (this mesh rank).
        """


class NoTensorParallel:
    """The mesh of one rank: it has no group, and a sum is the rank's own tensor. Stage 0 gets it, too."""

    size = 1
    group_rank = 0

    @property
    def group(self) -> ProcessGroup:
        """There is no group.

        Raises:
            LocalProtocolError: Always (on the calling rank).
        """
        raise _no_mesh()

    @property
    def device_mesh(self) -> DeviceMesh:
        """There is no device mesh; raises as ``group`` does."""
        raise _no_mesh()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` unchanged.

        Collective:
            None.
        """
        return tensor

    def compare(self, tensors: Tensors) -> None:
        """Do nothing: there is no other rank.

        Collective:
            None.
        """


def _no_mesh() -> LocalProtocolError:
    return LocalProtocolError(
        "The mesh's group was asked for where there is no mesh.",
        check_first="does stage 0 use it? it is one rank, and the mesh is ranks 1..N",
    )


@dataclass(frozen=True)
class StageContext:
    """Everything that a stage may use; the runtime passes it to the constructor."""

    plan: Plan
    device: torch.device
    tp: TensorParallel
    run_dir: Path | None = None
    """Where stage 0 writes its output; ``None`` when only the computation is wanted (the reference)."""


@dataclass(frozen=True)
class Emission:
    """Output of stage 0 from one result.

    Attributes:
        output: The decoded chunk, on the CPU. ``--verify`` compares it, and what it came from.
        metrics: Figures of this chunk, such as ``psnr_db``. The progress bar shows them, and the summary has
            their medians.
    """

    output: torch.Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """What ``encode`` may return in place of tensors: tensors with metadata, cuts or a number of steps.

    Attributes:
        tensors: By name.
        metadata: Plain data that msgpack carries (a tuple arrives as a list): a prompt, a seed, a time. It
            reaches ``step`` and ``decode`` if they have a parameter of this name.
        hard_cut: Reset the cache before this chunk, as at the plan's ``hard_cuts``.
        flush: A hard cut that also drops everything in flight, as at the plan's ``flushes``.
        steps: Steps of this chunk; ``None``: the plan's ``steps``.
    """

    tensors: Tensors
    metadata: Mapping[str, Any] = field(default_factory=dict)
    hard_cut: bool = False
    flush: bool = False
    steps: int | None = None


@dataclass(frozen=True)
class Result:
    """What ``step`` may return in place of tensors: tensors with metadata.

    Attributes:
        tensors: By name.
        metadata: Plain data, as for a chunk: a token, a score, a reason to stop. It reaches ``decode`` if
            ``decode`` has a parameter ``result_metadata``. If several steps return metadata, all of it
            arrives; of two values with the same name, the later one wins.
    """

    tensors: Tensors
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Stage0(Protocol):
    """Rank 0's part: source, encode, decode, emit. Built once, after all groups exist and are warm.

    The methods run under ``torch.inference_mode()``, the constructor under ``torch.no_grad()``, unless the
    class has ``inference_mode = False``. The same holds for the generator.
    """

    def __init__(self, context: StageContext) -> None:
        """Load everything here, so that the first ``encode`` costs no more than the tenth."""

    def encode(self, chunk_index: int) -> Tensors | Chunk | Pause | None:
        """Take the next chunk from the source and encode it; ``None`` ends the stream early.

        The returned tensors belong to the transport until the chunk's result is decoded: do not write to
        them.

        Called once per chunk, with ``chunk_index`` 0, 1, 2, ... If a live source has no chunk yet, it returns
        ``NOT_YET`` and is soon called for the same chunk again. Meanwhile rank 0 decodes what has come back
        and keeps the link alive with heartbeats (NOOPs, ``heartbeat_s`` of the plan).

        Blocks:
            Wait a few milliseconds before you return ``NOT_YET``. If you return at once, rank 0 spins. If you
            wait longer, you hold back results; after ``stall_s`` the rank is ended as stuck.
        """

    def context_frames(self, chunk_index: int) -> Tensors:  # noqa: ARG002  a default
        """Return the tensors from which the generator rebuilds its cache before this chunk (may be none).

        Called after ``encode`` of the same chunk, and only for chunks whose plan says ``recompute``.
        Must not depend on results: at depth 2 and above they have not arrived yet. Default: none.
        """
        return {}

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission | None:
        """Decode the mesh's result of ``chunk_index`` and emit it; ``None`` emits nothing.

        Called in order, but not for a chunk that a flush dropped: discard what you kept for that chunk. If
        the method has the parameters, ``metadata`` is the chunk's, and ``result_metadata`` is what ``step``
        returned.
        """

    def finish(self) -> Mapping[str, object]:
        """Write the last output and return figures for the summary (JSON types only). Default: none."""
        return {}


class Generator(Protocol):
    """Stage 1, on every mesh rank. All mesh ranks get the same tensors and must return the same ones.

    A generator may also have these two members. The mesh ranks then compare them before the first chunk:

    - ``parity_environment``, a tuple of names: the environment variables on which its collectives or its
      numbers depend.
    - ``replicated() -> Mapping[str, Tensor]``: the dense tensors that every mesh rank holds whole, such as
      the weights that are not split; called only with ``digests`` in the plan.
    """

    def __init__(self, context: StageContext) -> None:
        """Load this rank's shard of the weights."""

    def reset_cache(self) -> None:
        """Clear the cache: the next chunk starts a new stream (a hard cut). By default it does nothing."""

    def recompute(self, context_frames: Tensors) -> None:
        """Rebuild the cache from ``context_frames``; every call counts as one generator call.

        By default it does nothing.
        """

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors | Result:
        """Run one denoise step; every call counts as one generator call, even a call by the stage itself.

        ``tensors`` are the envelope's for step 0 and the previous step's result after that. The leader sends
        back the result of the last step. Its tensors belong to the transport until the chunk
        ``in_flight_depth`` later has arrived, so return a static output buffer as ``.clone()``.
        """


class StageKind(Enum):
    """Which stage a class is.

    Attributes:
        required: Methods that the class must have.
        optional: Methods that have defaults.
    """

    STAGE0 = ("encode", "decode"), ("context_frames", "finish")
    GENERATOR = ("step",), ("reset_cache", "recompute", "replicated")

    def __init__(self, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        self.required, self.optional = required, optional


CALLED_WITH = {
    "encode": ("chunk_index",),
    "context_frames": ("chunk_index",),
    "decode": ("chunk_index", "tensors"),
    "finish": (),
    "reset_cache": (),
    "recompute": ("context_frames",),
    "replicated": (),
    "step": ("tensors", "step_index", "num_steps"),
}
"""Arguments of each method, by position."""
RETURNING = ("encode", "step")
"""Methods that must return something, at least on some way through them."""
OFFERED = {"decode": ("metadata", "result_metadata"), "step": ("metadata",)}
"""Arguments given by name to a method that has a parameter of that name."""


def load_stage(path: str, kind: StageKind, *, search: Path | None = None) -> type:
    """Import ``module:Class`` and check that it has the contract's methods.

    Args:
        path: Import path, such as ``my_stages:Denoiser``.
        kind: Which stage the class must be.
        search: Folder put first on ``sys.path`` for a user's own stage, so that Python finds a file beside
            the caller.

    Raises:
        PlanError: The path is not ``module:Class``, does not import, or the class lacks a method or has one
            with wrong parameters (raised in the launcher before any rank starts, and on every rank that loads
            it).
    """
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise PlanError(
            f"The stage path {path!r} is not of the form module:Class.",
            check_first="write it as my_stages:Denoiser, for a class Denoiser in my_stages.py",
        )
    if module_name.endswith(".py"):
        written = module_name.removesuffix(".py").replace("/", ".")
        raise PlanError(
            f"The stage path {path!r} names a file; it takes a module's name.",
            check_first=f"write it as {written}:{class_name}",
        )
    is_ours = module_name.partition(".")[0] == __package__
    if search is not None and not is_ours and str(search) not in sys.path:
        sys.path.insert(0, str(search))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        lines = [f"{line.filename}:{line.lineno}" for line in extract_tb(error.__traceback__)]
        lines = [line for line in lines if line.startswith(f"{search}/") and "/site-packages/" not in line]
        at = f", at {lines[-1]}" if lines and not lines[-1].startswith(__file__) else ""
        raise PlanError(
            f"The stage module {module_name!r} does not import: {text_of(error)}{at}",
            check_first=f"run `python -c 'import {module_name}'` in the folder you launch from",
        ) from error
    stage = getattr(module, class_name, None)
    if not isinstance(stage, type):
        classes = [name for name, each in vars(module).items() if isinstance(each, type)]
        place = getattr(module, "__file__", module_name)
        raise PlanError(
            f"The module {module_name!r} has no class {class_name!r}.",
            check_first=f"{meant(class_name, classes)}look at the names in {place}",
        )
    missing = [name for name in kind.required if not callable(getattr(stage, name, None))]
    if missing:
        slip = next(filter(None, (_misspelt(stage, name) for name in missing)), None)
        hint = f"did you mean it by {slip!r}? " if slip else ""
        raise PlanError(
            f"The stage {path!r} lacks the contract's methods {', '.join(missing)}.",
            check_first=f"{hint}a stage needs {', '.join(kind.required)}; `ppwork new` writes an example",
        )
    _check_constructor(path, stage)
    check_methods(stage, kind)
    return stage


def check_methods(stage: type, kind: StageKind) -> None:
    """Refuse a stage that has a method which the runtime could not call, or would never call.

    Args:
        stage: The stage's class.
        kind: Which stage it is; the optional methods of this kind are checked as well.

    Raises:
        PlanError: A method has wrong parameters, or has a misspelling of an optional method's name and would
            never be called, or returns nothing and must; names the method, with file and line.
    """
    for name in kind.required + kind.optional:
        method = inspect.getattr_static(stage, name, None)
        if method is None and (slip := _misspelt(stage, name)):
            code = inspect.getattr_static(stage, slip).__code__
            raise PlanError(
                f"The stage has no {name}, which is optional, and {stage.__qualname__}.{slip} would never be "
                f"called, {code.co_filename}:{code.co_firstlineno}.",
                check_first=f"did you mean {name!r}? If not, give {slip!r} a name less close to it",
            )
        if not inspect.isfunction(method):
            continue  # the method is missing, or a kind of callable that only a call can check
        signature = inspect.signature(method, follow_wrapped=False)
        by_name = {given: None for given in OFFERED.get(name, ()) if given in signature.parameters}
        try:
            signature.bind(None, *CALLED_WITH[name], **by_name)
        except TypeError as error:
            at = f"{method.__code__.co_filename}:{method.__code__.co_firstlineno}"
            may = f"; it may also have {' and '.join(OFFERED[name])}" if name in OFFERED else ""
            given = ", ".join(CALLED_WITH[name])
            raise PlanError(
                f"The stage's {name} is called with ({given}), and {stage.__qualname__}.{name} is "
                f"{name}{signature}, {at}: {error}.",
                check_first=f"write `def {name}({', '.join(['self', *CALLED_WITH[name]])}):`{may}",
            ) from None
        if name in RETURNING and _returns_nothing(method.__code__):
            at = f"{method.__code__.co_filename}:{method.__code__.co_firstlineno}"
            raise PlanError(
                f"The stage's {name} must return something, and {stage.__qualname__}.{name}, {at}, has no "
                "`return` of a value.",
                check_first="a forgotten `return`, or a `yield` in its place?",
            )


def _returns_nothing(code: CodeType) -> bool:
    """Say whether each end of a function returns the literal ``None``, if it has an end."""
    steps = [*dis.get_instructions(code)]
    returned = [
        step.argval
        if step.opname == "RETURN_CONST"
        else before.argval
        if before.opname == "LOAD_CONST" and not step.is_jump_target
        else ...
        for before, step in pairwise(steps)
        if step.opname in ("RETURN_VALUE", "RETURN_CONST")
    ]
    return bool(returned) and all(each is None for each in returned)


def _misspelt(stage: type, name: str) -> str | None:
    """Return the class's public method whose name is a misspelling of the contract's name."""
    return next(
        (
            given
            for given in dir(stage)
            if not given.startswith("_")
            and _is_slip(given, name)
            and inspect.isfunction(inspect.getattr_static(stage, given))
        ),
        None,
    )


def _is_slip(given: str, meant: str) -> bool:
    """Say whether ``given`` is ``meant`` with letters swapped, or with one letter missing, wrong or doubled.

    A measure of similarity would not do: ``finished`` is closer to ``finish`` than ``fiinsh``, but is a
    different word.
    """
    if given == meant:
        return False
    if len(given) == len(meant):
        return sorted(given) == sorted(meant) or sum(a != b for a, b in zip(given, meant, strict=True)) == 1
    if len(given) == len(meant) - 1:
        return any(meant[:at] + meant[at + 1 :] == given for at in range(len(meant)))
    doubled = [at for at in range(1, len(given)) if given[at] == given[at - 1]]
    return any(given[:at] + given[at + 1 :] == meant for at in doubled)


def _check_constructor(path: str, stage: type) -> None:
    """Refuse a class whose constructor cannot be called with a context alone."""
    try:
        signature = inspect.signature(stage)
    except (TypeError, ValueError):
        return  # the class is written in C, or Python cannot tell its signature
    try:
        signature.bind(None)
    except TypeError:
        own = inspect.unwrap(stage.__init__)  # type: ignore[misc]
        code = getattr(own, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code is not None else _place_of(stage)
        write = "def __init__(self, context: StageContext) -> None:"
        more = "; whatever else it needs has a default, or is in `context.plan.options`"
        raise PlanError(
            f"The stage {path!r} is made of a context, and its constructor is {stage.__name__}{signature}, "
            f"{file}:{line}.",
            check_first=f"write `{write}`{more}",
        ) from None


def _place_of(stage: type) -> tuple[str, int]:
    try:
        return inspect.getsourcefile(stage) or "", inspect.getsourcelines(stage)[1]
    except (OSError, TypeError):
        return stage.__module__, 0
