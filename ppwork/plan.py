"""The frozen plan of a run: everything that changes what the ranks send, receive or compute.

All ranks must hold the same plan. They compare its digest and its fields at start-up (rule R5, and F04 of
the catalogue). So a difference causes an error that names the key and the ranks, and not a hang. This module
reads no environment variable and does not import torch.

The checks here refuse values that no plan may have. Just before the ranks start, the launcher refuses values
that cannot work with the machine, the clip or the stages.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from errno import EINVAL
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ppwork.errors import PlanError
from ppwork.protocol.plan import PipelinePlan, at_least, finite_from, refuse

VIDEO_STAGE0 = "ppwork.workloads.denoiser:VideoSource"
VIDEO_STAGE1 = "ppwork.workloads.denoiser:VideoDenoiser"
SYNTHETIC_STAGE0 = "ppwork.workloads.synthetic:SyntheticSource"
SYNTHETIC_STAGE1 = "ppwork.workloads.synthetic:SyntheticGenerator"
VERIFY_VARIABLE = "PPWORK_VERIFY_DIR"
"""``ppwork verify`` sets it for a program's ranks: the folder for the run, whose results ``join`` keeps."""
SCHEDULES = ("overlap", "send-after-decode")


class Plan(PipelinePlan, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, agreed by all ranks: the pipeline, and what its stages compute.

    Fields for your own stages and for your own loops:

    - ranks and overlap: ``mesh_size``, ``in_flight_depth`` (or ``d_in`` and ``d_out``), ``backend``
    - work: ``steps``, the calls of ``step`` for a chunk
    - timeouts and limits: ``timeout_s``, ``stall_s``, ``freeze_s``, ``max_message_bytes``
    - checks: ``compare_collectives`` (in a loop only 0 has an effect), ``check_buffers``, ``strict``;
      ``keep_outputs``, ``tolerance``
    - rarely needed: ``threads_per_rank``, ``share_gpu``, ``frame_bytes``

    Fields for stages only: ``stage0``, ``stage1`` and their ``options``; ``hard_cuts``, ``flushes``,
    ``recompute_every``, ``seed``, ``heartbeat_s``; ``digests``, ``verify``, ``one_process``.
    A run in which fewer chunks come than ``chunks`` fails at its end; one more is refused.

    ``fault`` and a non-default ``schedule`` are for teaching. The shipped stages have ``options``, too:
    ``workloads.spec.VideoOptions``, and ``synthetic``.

    >>> Plan(mesh_size=2, chunks=8).world_size
    3

    Raises:
        PlanError: On construction, if a field has a value that cannot work, or if there is no field of that
            name; names the field and its value, or the field that was meant.
    """

    chunks: int | None = None
    """Chunks to run: if fewer come, the run fails at its end. ``None``: the whole clip, or with your own
    stages until ``encode`` returns ``None``."""
    seed: int = 0
    hard_cuts: tuple[int, ...] = ()
    """Chunk indexes at which the cache is reset (a *cut*, rule R3)."""
    flushes: tuple[int, ...] = ()
    """Chunk indexes at which the cache is reset and everything in flight becomes stale (a *flush*, R3)."""
    recompute_every: int = 0
    """Number of chunks between two rebuilds of the cache from context frames; 0 is never."""
    schedule: str = "overlap"
    """When envelope k+1 leaves: ``overlap``, or ``send-after-decode``, the classic mistake (for teaching)."""
    stage0: str = ""
    """Import path ``module:Class`` of stage 0. Empty: the launcher runs the shipped video's stage 0."""
    stage1: str = ""
    """Import path of the generator, which runs on every rank of the mesh. Empty: the shipped video's."""
    options: dict[str, Any] = {}  # noqa: RUF012  msgspec copies it
    """Free options of the stages: any JSON data."""
    heartbeat_s: float | None = None
    """Seconds after the last envelope until rank 0 sends a NOOP; ``None``: a quarter of ``timeout_s``."""
    digests: bool = False
    """Compare replicated weights over the mesh at start-up, and inputs and results for every chunk."""
    one_process: bool = False
    """Run rank 0 and a mesh of one as threads of one process, copies as links: true times of one GPU."""
    fault: str = ""
    """Fault of the catalogue to inject, such as ``F07`` (``ppwork fault list``); empty is none."""
    threads_per_rank: int = 1
    verify: bool = False
    """Compare rank 0's outputs, and the tensors that the mesh returned, with the single-process reference."""
    strict: bool = False
    """Let a run that ended well fail also if nobody waited for a handle, only some mesh ranks wrote into what
    all received, or they gave different metadata; under ``ppwork run`` also if a thread died. Results that
    differ between mesh ranks, a cut that reset nothing and fewer chunks than planned fail it in any case."""
    keep_outputs: bool = False
    """Keep rank 0's outputs in its memory, and write them to the folder at the end: ``Run.outputs``."""
    tolerance: float = 1e-4
    """Largest absolute difference that ``verify`` allows in a mesh of 2 or more; for a mesh of 1 it is 0."""

    FILE_NAME: ClassVar[str] = "plan.json"

    def __post_init__(self) -> None:
        """Refuse values that cannot work with any workload on any machine."""
        for field in ("stage0", "stage1"):
            path = getattr(self, field)
            if isinstance(path, type) or str(path).startswith("__main__:"):
                need = "an import path such as my_stages:Source: ranks are processes of their own"
                refuse(
                    field,
                    path,
                    need,
                    "a cell that begins with %%stages my_stages.py writes its classes to that file",
                )
        if isinstance(self.options, dict):
            msgspec.structs.force_setattr(self, "options", _plain(self.options, "options"))
        super().__post_init__()
        at_least(self, 1, "threads_per_rank")
        at_least(self, 0, "recompute_every", "seed")
        if self.chunks is not None:
            at_least(self, 1, "chunks")
        finite_from(self, 0, "tolerance")
        if self.heartbeat_s is not None and not 0 < self.heartbeat_s < self.timeout_s / 2:
            need = f"above 0 and under half of timeout_s, {self.timeout_s / 2:g}"
            refuse(
                "heartbeat_s", self.heartbeat_s, need, "a peer must hear from rank 0 before its bound passes"
            )
        if self.schedule not in SCHEDULES:
            refuse("schedule", self.schedule, f"one of {', '.join(SCHEDULES)}", "--schedule")
        if self.one_process:
            for field, only in (("mesh_size", 1), ("share_gpu", False), ("fault", "")):
                if getattr(self, field) != only:
                    refuse(field, getattr(self, field), f"{only!r} with one_process", "--one-process")
        _check_cuts(self)

    @property
    def allowed_difference(self) -> float:
        """Largest absolute difference that ``verify`` accepts; 0 for a mesh of 1, which makes no sums."""
        return self.tolerance if self.mesh_size > 1 else 0.0

    @property
    def staged(self) -> Plan:
        """This plan with its stages named; where it names none they are those of the shipped video."""
        return self.replace(stage0=self.stage0 or VIDEO_STAGE0, stage1=self.stage1 or VIDEO_STAGE1)

    @property
    def is_video(self) -> bool:
        """Whether both stages are the shipped video denoiser; ``False`` if it names none (``staged``)."""
        return self.stage0 == VIDEO_STAGE0 and self.stage1 == VIDEO_STAGE1

    @property
    def is_synthetic(self) -> bool:
        """Whether both stages are the shipped ones that only take time."""
        return self.stage0 == SYNTHETIC_STAGE0 and self.stage1 == SYNTHETIC_STAGE1

    @classmethod
    def from_json(cls, text: bytes) -> Plan:
        """Read a plan back.

        Raises:
            PlanError: The text is not JSON, has an unknown field or a wrong type (the process that reads it).
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (ValueError, RecursionError) as error:
            raise PlanError(
                f"The plan does not read: {error}.", check_first="was it written by this version of ppwork?"
            ) from error

    def save(self, run_dir: Path | str) -> None:
        """Write ``plan.json`` into a run folder, for all ranks and readers, before any of them starts.

        Raises:
            OSError: The file cannot be written; no half of it is left.
        """
        path = Path(run_dir) / self.FILE_NAME
        file = path.open("wb")
        try:
            with file:
                file.write(msgspec.json.format(self.to_json(), indent=2))
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                path.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, run_dir: Path | str) -> Plan:
        """Read ``plan.json`` of a run folder.

        Raises:
            PlanError: The file is missing or does not read.
        """
        path = Path(run_dir) / cls.FILE_NAME
        try:
            if path.exists() and not path.is_file():  # reading a pipe would block
                raise OSError(EINVAL, "It is no regular file")  # noqa: TRY301
            text = path.read_bytes()
        except OSError as error:
            raise PlanError(
                f"The plan file {path} cannot be read: {error.strerror}.",
                check_first="is this the folder of a run?",
            ) from error
        return cls.from_json(text)


def _plain(value: object, place: str) -> object:
    """Return an option as the ranks will read it back from JSON."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(member, f"{place}[{key!r}]") for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member, f"{place}[{index}]") for index, member in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        refuse(place, value, "finite: JSON has no word for it", "the options of the stages")
    for kind in (str, int, float):  # numpy's numbers have types of their own
        if isinstance(value, kind):
            return kind(value)
    need = "text, a number, true, false, none, a list, or a dict by text: ranks read it from a file"
    return refuse(place, value, need, "the options of the stages")


def _check_cuts(plan: Plan) -> None:
    for field, option in {"hard_cuts": "--hard-cut-at", "flushes": "--flush-at"}.items():
        cuts: tuple[int, ...] = getattr(plan, field)
        for cut in cuts:
            if cut < 1 or (plan.chunks is not None and cut >= plan.chunks):
                last = "the last chunk" if plan.chunks is None else plan.chunks - 1
                refuse(field, cut, f"chunk indexes in 1..{last}", f"{option} counts from 0")
        if len(set(cuts)) != len(cuts):
            refuse(field, cuts, "without repeats", option)
    both = set(plan.hard_cuts) & set(plan.flushes)
    if both:
        need = f"apart from hard_cuts, not {min(both)} in both"
        refuse("flushes", plan.flushes, need, "a flush is a cut, too")
