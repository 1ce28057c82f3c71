"""A workbench for pipeline-parallel inference on torch.distributed: see it, break it, measure it.

This face is the notebook side: it starts processes and reads what they left, and imports neither torch nor
CUDA. Inside a rank, import ``ppwork.control_plane`` and its neighbours.
"""

from ppwork.diagnosis import diagnose
from ppwork.envelope import PPAction, PPEnvelope, PPResult
from ppwork.errors import (
    LocalProtocolError,
    ParityError,
    PeerFrozenError,
    PeerLostError,
    PeerTimeoutError,
    PlanError,
    PPWorkError,
    RecordError,
    RemoteProtocolError,
    RunFailed,
    StageError,
    StuckError,
    TerminalNotice,
)
from ppwork.launch import launch
from ppwork.plan import Plan
from ppwork.run import Run
from ppwork.show import Picture, show
from ppwork.topology import Topology
from ppwork.version import __version__

__all__ = [
    "LocalProtocolError",
    "PPAction",
    "PPEnvelope",
    "PPResult",
    "PPWorkError",
    "ParityError",
    "PeerFrozenError",
    "PeerLostError",
    "PeerTimeoutError",
    "Picture",
    "Plan",
    "PlanError",
    "RecordError",
    "RemoteProtocolError",
    "Run",
    "RunFailed",
    "StageError",
    "StuckError",
    "TerminalNotice",
    "Topology",
    "__version__",
    "diagnose",
    "launch",
    "show",
]
