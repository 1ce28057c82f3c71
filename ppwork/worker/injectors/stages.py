"""Injectors of failures inside the stages and the mesh (F05, F08, F11, F12, F15, F22)."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

from ppwork.errors import LocalProtocolError
from ppwork.faults.facts import REFUSED_CALLER
from ppwork.faults.fault import LANE
from ppwork.protocol.envelope import Ids, PPAction
from ppwork.runtime.groups import TPGroup
from ppwork.runtime.mesh import MeshPlane
from ppwork.runtime.plane import PPControlPlane
from ppwork.runtime.stage0 import Stage0Plane
from ppwork.worker.injectors.injector import Around, AtStep, CaseInjector, put


class ExtraSum(AtStep):
    """F05: one more all_reduce, of another shape or like the next one."""

    def happen(self, ids: Ids | None) -> None:
        """Arm the next sum; the stage itself makes the call, on whatever object it was given."""
        all_reduce = TPGroup.all_reduce

        def one_more(tp: TPGroup, tensor: torch.Tensor) -> torch.Tensor:
            put(TPGroup, "all_reduce", all_reduce)
            self.injected(ids)
            like = torch.zeros_like(tensor)
            tp.all_reduce(like if self.case == "same-shape" else torch.cat([like.flatten()] * 2))
            return tp.all_reduce(tensor)

        put(TPGroup, "all_reduce", one_more)


class WrongGroup(AtStep):
    """F08."""

    def happen(self, ids: Ids | None) -> None:
        """Make the classic call."""
        self.injected(ids)
        tensor = torch.ones(1)
        if self.case == "default-group":
            dist.all_reduce(tensor)
        else:
            dist.all_reduce(tensor, group=self._plane.groups["mesh_pg"])


class PerturbedInput(CaseInjector):
    """F11, input."""

    def plane(self, plane: PPControlPlane) -> None:
        """Change one element of a chunk between its receive and the generator."""
        assert isinstance(plane, MeshPlane), "the catalogue puts it on the mesh"  # noqa: S101
        receive = plane.receive

        def received() -> Any:  # noqa: ANN401  the envelope
            envelope = receive()
            if envelope.action is PPAction.INFER and self.due(envelope.ids.chunk_index):
                self.injected(envelope.ids)
                next(iter(envelope.tensors.values())).view(-1)[0] += 1
            return envelope

        put(plane, "receive", received)


class PerturbedWeights(CaseInjector):
    """F11, weights."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Change one element of the first replicated tensor, once the stage is loaded."""
        self.injected()
        with torch.no_grad():
            next(iter(stage.replicated().values())).view(-1)[0] += 1
        return stage


class OtherCalls(AtStep):
    """F12: how stage code can falsify the count that the runtime keeps."""

    def _step(self, tensors: Any, step_index: int, num_steps: int, **more: Any) -> Any:  # noqa: ANN401  the stage's
        if step_index == 0 and self.due(self._ids.chunk_index):
            self.injected(self._ids)
            if self.case == "fewer":
                return tensors
            self._own.step(tensors, step_index, num_steps, **more)
        return self._own.step(tensors, step_index, num_steps, **more)


class StageRaises(CaseInjector):
    """F15: the stage gets no tensors, so its own code raises, on its own line."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Empty the tensors that ``decode``, or the generator, is given."""
        self._seen = -1
        if hasattr(stage, "decode"):

            def decode(chunk_index: int, tensors: Any, **more: Any) -> Any:  # noqa: ANN401  the stage's
                return stage.decode(chunk_index, self._given(chunk_index, tensors), **more)

            return Around(stage, decode=decode)

        def step(tensors: Any, step_index: int, num_steps: int, **more: Any) -> Any:  # noqa: ANN401  the stage's
            self._seen += int(step_index == 0)
            return stage.step(self._given(self._seen, tensors), step_index, num_steps, **more)

        return Around(stage, step=step)

    def _given(self, chunk_index: int, tensors: Any) -> Any:  # noqa: ANN401  the stage's
        if not self.due(chunk_index):
            return tensors
        self.injected()
        if self.case == "out-of-memory":
            torch.empty(1 << 50, device="cuda")
        return {}


class SecondCaller(CaseInjector):
    """F22."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Let another thread send while rank 0 encodes: a heartbeat, which no other rule would refuse."""

        def encode(chunk_index: int) -> Any:  # noqa: ANN401  the stage's
            tensors = stage.encode(chunk_index)
            if self.due(chunk_index):
                caller = threading.Thread(target=self._call, name="second-caller")
                caller.start()
                caller.join()
            return tensors

        return Around(stage, encode=encode)

    def plane(self, plane: PPControlPlane) -> None:
        """Keep the plane for the call."""
        assert isinstance(plane, Stage0Plane), "the catalogue puts it on rank 0"  # noqa: S101
        self._plane = plane

    def _call(self) -> None:
        self.injected()
        try:
            self._plane.heartbeat()
        except LocalProtocolError:
            self._recorder.instant(REFUSED_CALLER, lane=LANE)
