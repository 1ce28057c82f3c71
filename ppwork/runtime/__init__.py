"""The runtime: one rank's end of the pipeline on ``torch.distributed``.

``PPControlPlane.join(plan)`` returns a ``Stage0Plane``, which sends chunks and receives results, or a
``MeshPlane``: the leader's receives chunks and sends results, a follower's only receives chunks. Behind each
call are the session's rules, preflight, the lanes and the commitment points. ``PPControlPlane`` needs only
this room, ``protocol``, ``records.spans`` and the ground.
May import: ``protocol``, ``records``, ``errors``, ``process``.
"""

from ppwork.runtime.cuda_mesh import CudaFollowerPlane, CudaLeaderPlane
from ppwork.runtime.groups import Groups
from ppwork.runtime.mesh import FollowerPlane, LeaderPlane, MeshPlane
from ppwork.runtime.plane import Hook, OnFailure, PPControlPlane, Timed
from ppwork.runtime.stage0 import Stage0Plane

__all__ = [
    "CudaFollowerPlane",
    "CudaLeaderPlane",
    "FollowerPlane",
    "Groups",
    "Hook",
    "LeaderPlane",
    "MeshPlane",
    "OnFailure",
    "PPControlPlane",
    "Stage0Plane",
    "Timed",
]
