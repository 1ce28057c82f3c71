"""All that a rank of your own needs: ``from ppwork.ranks import Plan, join, run_stage0``.

It defines nothing. Under your own torchrun ``join`` brings a rank up and keeps its records. Then stages run
by ``run_stage0`` and ``run_mesh``, or a loop of yours by the plane's own calls; docs/prototype.md shows both.
It imports torch, which takes seconds, and ties the rank to its torchrun before: one that is killed meanwhile
leaves nobody behind. The notebook side is ``import ppwork``.
"""
# ruff: noqa: E402

from ppwork.worker.orphan import die_with_torchrun

die_with_torchrun()

from ppwork.errors import PPWorkError
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role
from ppwork.records.spans import Recorder, span_file
from ppwork.runtime import FollowerPlane, LeaderPlane, MeshPlane, PPControlPlane, Stage0Plane
from ppwork.stage import (
    NOT_YET,
    Chunk,
    Emission,
    Generator,
    Result,
    Stage0,
    StageContext,
    TensorParallel,
    Tensors,
)
from ppwork.worker.own_job import join, run_mesh, run_stage0, stage_context

__all__ = [
    "NOT_YET",
    "Chunk",
    "ChunkPlan",
    "Emission",
    "FollowerPlane",
    "Generator",
    "Ids",
    "LeaderPlane",
    "MeshPlane",
    "PPAction",
    "PPControlPlane",
    "PPEnvelope",
    "PPResult",
    "PPWorkError",
    "PipelinePlan",
    "Plan",
    "Recorder",
    "Result",
    "Role",
    "Stage0",
    "Stage0Plane",
    "StageContext",
    "TensorParallel",
    "Tensors",
    "join",
    "run_mesh",
    "run_stage0",
    "span_file",
    "stage_context",
]
