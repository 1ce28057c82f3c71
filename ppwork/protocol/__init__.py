"""The protocol: messages that ranks exchange, and the rules of when each may come.

Bytes and events go in, messages, actions and errors come out; there is no I/O, no clock and no torch. The
state machine is walked by table (``states``), and the wire is read within limits (``header``, ``wire``).

May import: ``errors``, ``process``, ``version``.
"""

from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult, TensorSpec
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.session import COMMITMENT_POINTS, Session
from ppwork.protocol.topology import Role, Topology

__all__ = [
    "COMMITMENT_POINTS",
    "ChunkPlan",
    "Ids",
    "PPAction",
    "PPEnvelope",
    "PPResult",
    "PipelinePlan",
    "Role",
    "Session",
    "TensorSpec",
    "Topology",
]
