"""The frozen plan of a run: everything that changes what the ranks send, receive or compute.

All ranks must hold the same plan; its digest and its fields are compared at start-up (rules R5 and F04 of
the catalogue), so a difference is one error with a key and ranks in it instead of a hang. Nothing here reads
an environment variable and nothing here knows torch.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ppwork.errors import PlanError
from ppwork.topology import Topology

VIDEO_STAGE0 = "ppwork.workloads.denoiser:VideoSource"
VIDEO_STAGE1 = "ppwork.workloads.denoiser:VideoDenoiser"
SYNTHETIC_STAGE0 = "ppwork.workloads.synthetic:SyntheticSource"
SYNTHETIC_STAGE1 = "ppwork.workloads.synthetic:SyntheticGenerator"
BACKENDS = ("auto", "gloo", "nccl")
MAX_RANKS = 64
MAX_DEPTH = 64

Scalar = str | int | float | bool


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, agreed by all ranks.

    >>> Plan(mesh_size=2, chunks=8).world_size
    3

    Raises:
        PlanError: On construction, when a field cannot work; names the field and its value.
    """

    mesh_size: int = 2
    """Ranks of stage 1; the world is one larger."""
    chunks: int | None = None
    """Chunks to run; ``None`` is resolved by the launcher to all the input has."""
    frames_per_chunk: int = 4
    input: str = ""
    """Path of the clip; empty is the one that ships with the package."""
    width: int = 160
    height: int = 96
    noise: float = 25.0
    """Standard deviation of the added noise, in units of 1/255."""
    seed: int = 0
    hard_cuts: tuple[int, ...] = ()
    """Chunk indexes at which the cache is reset (a *cut*, rule R3)."""
    denoise_steps: int = 1
    """Generator calls per chunk, without recompute."""
    recompute_every: int = 0
    """Every so many chunks the cache is rebuilt from context frames; 0 is never."""
    in_flight_depth: int = 1
    """Bound on unfinished chunks; 1 is sequential ("PP0")."""
    backend: str = "auto"
    share_gpu: bool = False
    """Several NCCL ranks on one GPU: for teaching, never for timing."""
    stage0: str = VIDEO_STAGE0
    stage1: str = VIDEO_STAGE1
    options: dict[str, Scalar] = {}
    """Free options of user stages."""
    timeout_s: float = 60.0
    """Longest wait for a peer, bring-up included (rule R12)."""
    frame_bytes: int = 8192
    """Size of the control frame that every message starts with; same on all ranks."""
    max_message_bytes: int = 1 << 30
    """Largest sum of tensor bytes of one message that a receiver will allocate."""
    threads_per_rank: int = 1
    verify: bool = False
    """Keep what rank 0 emitted, to be compared with the single-process reference."""
    tolerance: float = 1e-4
    """Largest absolute difference that ``verify`` allows in a mesh of 2 and more; a mesh of 1 gets 0."""

    FILE_NAME: ClassVar[str] = "plan.json"

    def __post_init__(self) -> None:
        """Refuse what cannot work whatever the workload and the machine."""
        _check_types(self)
        _check_counts(self)
        _check_choices(self)

    @property
    def topology(self) -> Topology:
        """Roles and groups of this plan."""
        return Topology(self.mesh_size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def is_video(self) -> bool:
        """Whether both stages are the shipped video denoiser."""
        return self.stage0 == VIDEO_STAGE0 and self.stage1 == VIDEO_STAGE1

    def replace(self, **changes: Any) -> Plan:  # noqa: ANN401  any field
        """Return a copy with some fields changed, checked again."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    def to_json(self) -> bytes:
        """Return the deterministic JSON that the digest is made of."""
        return msgspec.json.encode(self, order="deterministic")

    @property
    def digest(self) -> str:
        """SHA-256 of ``to_json``, first 16 hex digits."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]

    @classmethod
    def from_json(cls, text: bytes) -> Plan:
        """Read a plan back.

        Raises:
            PlanError: The text is not JSON, has an unknown field or a wrong type (whoever reads it).
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise PlanError(
                f"The plan does not read: {error}.",
                check_first="was it written by this version of ppwork?",
            ) from error

    @classmethod
    def load(cls, run_dir: Path) -> Plan:
        """Read ``plan.json`` of a run folder.

        Raises:
            PlanError: The file is missing or does not read.
        """
        path = Path(run_dir) / cls.FILE_NAME
        try:
            text = path.read_bytes()
        except OSError as error:
            raise PlanError(
                f"The plan file {path} cannot be read: {error.strerror}.",
                check_first="is this the folder of a run?",
            ) from error
        return cls.from_json(text)


def _refuse(field: str, value: object, need: str, check_first: str) -> None:
    raise PlanError(f"The plan's {field} was {value!r}; it must be {need}.", check_first=check_first)


def _check_types(plan: Plan) -> None:
    # A plan made in Python passes no decoder, but every rank reads it from JSON: what is kept here is what
    # they will read (25 becomes 25.0, a list a tuple), so that plan and digest are the same on both sides.
    for field in msgspec.structs.fields(Plan):
        value = getattr(plan, field.name)
        try:
            msgspec.structs.force_setattr(plan, field.name, msgspec.convert(value, field.type))
        except msgspec.ValidationError as error:
            _refuse(field.name, value, f"of another type: {error}", f"the option that sets {field.name}")


def _check_counts(plan: Plan) -> None:
    at_least_one = {
        "mesh_size": plan.mesh_size,
        "frames_per_chunk": plan.frames_per_chunk,
        "width": plan.width,
        "height": plan.height,
        "denoise_steps": plan.denoise_steps,
        "in_flight_depth": plan.in_flight_depth,
        "threads_per_rank": plan.threads_per_rank,
        "max_message_bytes": plan.max_message_bytes,
    }
    if plan.chunks is not None:
        at_least_one["chunks"] = plan.chunks
    for field, value in at_least_one.items():
        if value < 1:
            _refuse(field, value, "1 or more", f"the option that sets {field}")
    if plan.mesh_size >= MAX_RANKS:
        _refuse("mesh_size", plan.mesh_size, f"below {MAX_RANKS}", "did you mean --chunks?")
    for field, number in {
        "noise": plan.noise,
        "timeout_s": plan.timeout_s,
        "tolerance": plan.tolerance,
    }.items():
        least = 1 if field == "timeout_s" else 0
        if not math.isfinite(number) or number < least:
            _refuse(field, number, f"a finite number from {least} up", f"the option that sets {field}")
    for name, option in plan.options.items():
        if isinstance(option, float) and not math.isfinite(option):
            _refuse("options", {name: option}, "finite: JSON has no word for it", f"the option {name}")
    if plan.recompute_every < 0 or plan.seed < 0:
        field = "seed" if plan.seed < 0 else "recompute_every"
        _refuse(field, getattr(plan, field), "0 or more", f"the option that sets {field}")
    if plan.frame_bytes % 64 or not 512 <= plan.frame_bytes <= 1 << 20:
        _refuse("frame_bytes", plan.frame_bytes, "a multiple of 64 in 512..1048576", "leave it out")


def _check_choices(plan: Plan) -> None:
    if plan.backend not in BACKENDS:
        _refuse("backend", plan.backend, f"one of {', '.join(BACKENDS)}", "--backend")
    if plan.in_flight_depth > MAX_DEPTH:
        _refuse("in_flight_depth", plan.in_flight_depth, f"at most {MAX_DEPTH}", "--depth: 2 or 3 overlap")
    if plan.share_gpu and plan.backend == "gloo":
        _refuse("share_gpu", True, "False with backend gloo", "--backend nccl, or no --share-gpu")
    for cut in plan.hard_cuts:
        if cut < 1 or (plan.chunks is not None and cut >= plan.chunks):
            last = "the last chunk" if plan.chunks is None else plan.chunks - 1
            _refuse("hard_cuts", cut, f"chunk indexes in 1..{last}", "--hard-cut-at counts from 0")
    if len(set(plan.hard_cuts)) != len(plan.hard_cuts):
        _refuse("hard_cuts", plan.hard_cuts, "without repeats", "--hard-cut-at")
