"""The protocol: the messages that ranks exchange, and the rules that say when each message may come.

Bytes and events go in; messages, actions and errors come out. There is no I/O, no clock and no torch. A
table drives the state machine (``states``). Limits bound what is read from the wire (``header``, ``wire``).

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
