"""A workbench for pipeline-parallel inference on torch.distributed: see it, break it, measure it.

This face is the notebook side: it starts processes and reads what they left, and imports neither torch nor
CUDA. Inside a rank, import ``ppwork.control_plane`` and its neighbours. ``ppwork.claims`` is imported when it
is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ppwork.diagnosis import diagnose
from ppwork.doctor import doctor
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
from ppwork.exercises import check
from ppwork.launch import launch
from ppwork.plan import Plan
from ppwork.run import Run
from ppwork.sequence_chart import sequence_chart
from ppwork.show import Picture, show
from ppwork.topology import Topology
from ppwork.topology_figure import topology
from ppwork.version import __version__
from ppwork.what_if import what_if

if TYPE_CHECKING:
    from ppwork import claims
else:

    def __getattr__(name: str) -> object:
        """Import the catalogue of claims on first use: who launches a plan does not wait for it."""
        if name == "claims":
            return import_module("ppwork.claims")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401  IPython's shell, which is not imported for a type
    """Give a notebook the cell magic ``%%ranks`` (IPython calls this at ``%load_ext ppwork``)."""
    from ppwork.magic import ranks

    shell.register_magic_function(ranks, "cell")


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
    "check",
    "claims",
    "diagnose",
    "doctor",
    "launch",
    "sequence_chart",
    "show",
    "topology",
    "what_if",
]
