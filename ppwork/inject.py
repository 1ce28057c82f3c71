"""How a fault of the catalogue gets into a rank: the worker installs the injector that the plan names.

The runtime knows no fault. It calls a hook at each commitment point and is handed a stage; an injector is
that hook, that stage, and what happens before the groups exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppwork.control_plane import PPControlPlane
    from ppwork.envelope import Ids
    from ppwork.plan import Plan
    from ppwork.timeline import Recorder


class Injector:
    """Injects nothing; each fault overrides what it needs.

    Args:
        plan: The run's plan; its ``fault`` names the case.
        rank: This rank.
        recorder: Gets the instant ``fault.injected`` at the moment of the injection.
    """

    def __init__(self, plan: Plan, rank: int, recorder: Recorder) -> None:
        self._plan, self._rank, self._recorder = plan, rank, recorder

    def before_join(self, plan: Plan) -> Plan:
        """Return the plan that this rank shall hold; may change the environment, too."""
        return plan

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  the user's class
        """Return the stage that this rank shall run, once it is built."""
        return stage

    def hook(self, point: str, ids: Ids) -> None:
        """Called just before each commitment point of this rank."""

    def plane(self, plane: PPControlPlane) -> None:
        """Called with this rank's control plane, before its loop starts."""


def injector_of(plan: Plan, rank: int, recorder: Recorder) -> Injector:
    """Return the injector of the plan's fault for this rank."""
    return Injector(plan, rank, recorder)
