"""The frozen plan of a run: everything that changes what the ranks send, receive or compute.

All ranks must hold the same plan; its digest and its fields are compared at start-up (rules R5 and F04 of
the catalogue), so a difference is one error with a key and ranks in it instead of a hang. Nothing here reads
an environment variable and nothing here knows torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ppwork.errors import PlanError
from ppwork.plan_checks import check_plan_fields
from ppwork.topology import Topology

if TYPE_CHECKING:
    from ppwork.costs import Costs
    from ppwork.simulate import Simulation

VIDEO_STAGE0 = "ppwork.workloads.denoiser:VideoSource"
VIDEO_STAGE1 = "ppwork.workloads.denoiser:VideoDenoiser"
SYNTHETIC_STAGE0 = "ppwork.workloads.synthetic:SyntheticSource"
SYNTHETIC_STAGE1 = "ppwork.workloads.synthetic:SyntheticGenerator"

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
    flushes: tuple[int, ...] = ()
    """Chunk indexes at which the cache is reset and all that is in flight becomes stale (a *flush*, R3)."""
    denoise_steps: int = 1
    """Generator calls per chunk, without recompute."""
    recompute_every: int = 0
    """Every so many chunks the cache is rebuilt from context frames; 0 is never."""
    in_flight_depth: int = 1
    """Bound on unfinished chunks; 1 is sequential ("PP0"). Split, it is ``d_in + d_out``."""
    d_in: int | None = None
    """Bound on chunks that have left and whose result has not arrived at rank 0; together with ``d_out``."""
    d_out: int | None = None
    """Bound on results that have arrived at rank 0 and are not decoded; further ones wait at the leader."""
    order: str = "overlap"
    """When envelope k+1 leaves: ``overlap``, or ``send-after-decode``, the classic mistake (for teaching)."""
    backend: str = "auto"
    share_gpu: bool = False
    """Several NCCL ranks on one GPU: for teaching, never for timing."""
    stage0: str = VIDEO_STAGE0
    stage1: str = VIDEO_STAGE1
    options: dict[str, Scalar] = {}
    """Free options of user stages."""
    timeout_s: float = 60.0
    """Longest wait for a peer, bring-up included (rule R12)."""
    heartbeat_s: float | None = None
    """So long after the last envelope a pausing source sends a NOOP; ``None``: a quarter of the timeout."""
    stall_s: float | None = None
    """So long may one step of a stage take before this rank counts as stuck; ``None``: 0.8 timeouts."""
    freeze_s: float = 5.0
    """So long may a process be stopped (SIGSTOP) before its peers leave."""
    compare_collectives: int = 2
    """First chunks whose ``tp_pg`` collectives mesh ranks compare before each call; 0 never, -1 always."""
    digests: bool = False
    """Compare inputs and replicated weights over the mesh: at start, and for every chunk."""
    fault: str = ""
    """Fault of the catalogue to inject, such as ``F07`` (``ppwork fault list``); empty is none."""
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
        check_plan_fields(self)

    @property
    def topology(self) -> Topology:
        """Roles and groups of this plan."""
        return Topology(self.mesh_size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def bounds(self) -> tuple[int, int]:
        """``d_in`` and ``d_out`` as they apply: the plan's, or the whole depth each when it is not split.

        >>> Plan(in_flight_depth=3).bounds, Plan(d_in=2, d_out=1).bounds
        ((3, 3), (2, 1))
        """
        return self.d_in or self.in_flight_depth, self.d_out or self.in_flight_depth

    @property
    def is_video(self) -> bool:
        """Whether both stages are the shipped video denoiser."""
        return self.stage0 == VIDEO_STAGE0 and self.stage1 == VIDEO_STAGE1

    @property
    def is_synthetic(self) -> bool:
        """Whether both stages are the shipped ones that only take time."""
        return self.stage0 == SYNTHETIC_STAGE0 and self.stage1 == SYNTHETIC_STAGE1

    def replace(self, **changes: Any) -> Plan:  # noqa: ANN401  any field
        """Return a copy with some fields changed, checked again.

        A new split brings its own ``in_flight_depth``; a new ``in_flight_depth`` alone takes a split back.
        """
        if "d_in" in changes or "d_out" in changes:
            changes = {"in_flight_depth": 1, **changes}
        elif "in_flight_depth" in changes:
            changes = {"d_in": None, "d_out": None, **changes}
        return msgspec.structs.replace(self, **changes)

    def simulate(self, costs: Costs, **options: Any) -> Simulation:  # noqa: ANN401  as ``simulate``'s
        """Run this plan on paper; options and errors are those of ``simulate.simulate``."""
        from ppwork.simulate import simulate  # the one import that points up, for convenience of the plan

        return simulate(self, costs, **options)

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
