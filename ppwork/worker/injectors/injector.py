"""The injectors' base: a hook, a stage and a start that differ from those of a run without a fault.

The runtime knows no fault. It calls a hook at each commitment point and is given a stage; an injector
provides both, and acts before the groups exist.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from ppwork.faults.catalogue import AT_CHUNK, fault_of
from ppwork.faults.fault import LANE
from ppwork.plan import Plan
from ppwork.protocol.envelope import Ids
from ppwork.records.spans import INJECTED, Recorder
from ppwork.runtime.mesh import MeshPlane
from ppwork.runtime.plane import PPControlPlane


class Injector:
    """Injects nothing; each fault overrides the methods it needs, and the plan's ``fault`` names its case.

    The recorder gets the instant ``fault.injected`` at the moment of the injection.
    """

    def __init__(self, plan: Plan, rank: int, recorder: Recorder) -> None:
        self._plan, self._rank, self._recorder = plan, rank, recorder

    def before_join(self, plan: Plan) -> Plan:
        """Return the plan that this rank will hold; may change the environment, too."""
        return plan

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Return the stage that this rank will run, given the stage that was built."""
        return stage

    def hook(self, point: str, ids: Ids) -> None:
        """Called just before each commitment point of this rank."""

    def plane(self, plane: PPControlPlane) -> None:
        """Called with this rank's control plane, before its loop starts."""


class CaseInjector(Injector):
    """Injects one case.

    Attributes:
        case: The case's name.
        on_this_rank: Whether the fault happens on this rank.
    """

    on_this_rank = True

    def __init__(self, plan: Plan, rank: int, recorder: Recorder) -> None:
        super().__init__(plan, rank, recorder)
        self.case = fault_of(plan.fault)[1].name
        self._done = False

    def injected(self, ids: Ids | None = None, **figures: float) -> None:
        """Record that the fault happens now; call this just before: it may be this rank's last act."""
        self._done = True
        self._recorder.instant(INJECTED, lane=LANE, figures=figures, ids=ids.where() if ids else None)

    def die(self, ids: Ids | None = None) -> NoReturn:
        """End this process now."""
        self.injected(ids)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL came back")

    def due(self, chunk_index: int) -> bool:
        """Say whether the fault comes with this chunk: once, at the agreed chunk."""
        return not self._done and chunk_index == AT_CHUNK


class Around:
    """A stage with some of its methods replaced, by name; everything else is the stage's own.

    A replacement is called with the keywords for which the stage's own method has parameters, and passes them
    on.
    """

    def __init__(self, stage: Any, **methods: Callable[..., Any]) -> None:  # noqa: ANN401  the user's class
        self._stage = stage
        for name, method in methods.items():
            self.__dict__[name] = _with_parameters_of(getattr(stage, name), method)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the stage has
        return getattr(self._stage, name)


def _with_parameters_of(own: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def replaced(*args: Any, **more: Any) -> Any:  # noqa: ANN401  the stage's
        return method(*args, **more)

    return replaced


class AtStep(CaseInjector):
    """Something happens in the stage at the agreed chunk, on either side of the pipeline."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Put ``happen`` before ``encode``, or before the first step of a chunk."""
        self._own = stage
        if hasattr(stage, "encode"):
            return Around(stage, encode=self._encode)
        return Around(stage, step=self._step)

    def plane(self, plane: PPControlPlane) -> None:
        """Remember the plane and, on the mesh, the chunk that it returned last."""
        self._plane = plane
        if isinstance(plane, MeshPlane):
            receive = plane.receive

            def received() -> Any:  # noqa: ANN401  the envelope
                envelope = receive()
                self._ids = envelope.ids
                return envelope

            put(plane, "receive", received)

    def happen(self, ids: Ids | None) -> None:
        """Cause the fault; called in stage code, on the main thread."""
        raise NotImplementedError

    def _encode(self, chunk_index: int) -> Any:  # noqa: ANN401  the stage's
        if self.due(chunk_index):
            self.happen(None)
        return self._own.encode(chunk_index)

    def _step(self, tensors: Any, step_index: int, num_steps: int, **more: Any) -> Any:  # noqa: ANN401  the stage's
        if step_index == 0 and self.due(self._ids.chunk_index):
            self.happen(self._ids)
        return self._own.step(tensors, step_index, num_steps, **more)


def put(owner: object, name: str, method: Callable[..., Any]) -> None:
    """Replace one object's method by a function: faults need this, and nothing else may do it."""
    setattr(owner, name, method)
