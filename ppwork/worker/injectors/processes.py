"""Injectors of what happens to the process of a rank (F13, F14, F20)."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from ppwork.faults.catalogue import AT_CHUNK
from ppwork.protocol.envelope import Ids
from ppwork.protocol.header import Header
from ppwork.runtime.links import HEAD_TAG
from ppwork.runtime.messages import MessageReader
from ppwork.runtime.plane import PPControlPlane
from ppwork.stage import NOT_YET
from ppwork.worker.injectors.injector import Around, AtStep, CaseInjector, put

IDLE_S = 0.5
"""Seconds for which a run has been idle when an idle rank is killed."""


class Kill(AtStep):
    """F13: the process ends by SIGKILL, at a named moment."""

    _committed: Ids | None = None

    def happen(self, ids: Ids | None) -> None:
        """End this process, in stage code."""
        self.die(ids)

    def due(self, chunk_index: int) -> bool:
        """Only the ``mid-compute`` cases happen in stage code."""
        return self.case.endswith("mid-compute") and super().due(chunk_index)

    def before_join(self, plan: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Let a receiving rank die between the frame of a chunk and its tensors."""
        if self.case in ("leader-mid-send", "follower-mid-broadcast"):
            begin = MessageReader.begin

            def begun(reader: MessageReader) -> Header:
                header = begin(reader)
                if header.ids.chunk_index == AT_CHUNK:
                    self.die(header.ids)
                return header

            put(MessageReader, "begin", begun)
        return plan

    def plane(self, plane: PPControlPlane) -> None:
        """Let a sending rank die between the frame of a chunk and its tensors."""
        super().plane(plane)
        if self.case == "stage0-mid-send":
            self._after_frame(plane.links["down_pg"], frame=lambda _, tag: tag == HEAD_TAG)
        elif self.case == "leader-mid-broadcast":
            self._after_frame(
                plane.links["mesh_pg"], frame=lambda part, *_: part.numel() == self._plan.frame_bytes
            )

    def _after_frame(self, link: Any, frame: Callable[..., bool]) -> None:  # noqa: ANN401  a sending end
        start = link.start

        def started(*args: Any) -> Any:  # noqa: ANN401  a Work
            work = start(*args)
            if self._committed is not None and frame(*args):
                self.die(self._committed)
            return work

        put(link, "start", started)

    def hook(self, point: str, ids: Ids) -> None:
        """Note that the chunk passes its commitment point."""
        if ids.chunk_index == AT_CHUNK and point in ("envelope.send", "mesh.broadcast"):
            self._committed = ids


class IdleKill(CaseInjector):
    """F13 on an idle run: rank 0's source pauses for ever, then one rank is killed. Built on every rank."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Pause the source; on the rank that will die, start the timer once the last chunk has been seen."""
        if hasattr(stage, "encode"):
            return Around(stage, encode=lambda index: self._encode(stage, index))
        self._seen = 0

        def step(tensors: Any, step_index: int, num_steps: int, **more: Any) -> Any:  # noqa: ANN401  the stage's
            result = stage.step(tensors, step_index, num_steps, **more)
            self._seen += int(step_index == num_steps - 1)
            if self._seen == AT_CHUNK:
                self._die_later()
            return result

        return Around(stage, step=step)

    def _encode(self, stage: Any, chunk_index: int) -> Any:  # noqa: ANN401  the stage's
        if chunk_index < AT_CHUNK:
            return stage.encode(chunk_index)
        self._die_later()
        time.sleep(0.005)
        return NOT_YET

    def _die_later(self) -> None:
        if self._done or not self.on_this_rank:
            return
        self._done = True
        threading.Timer(IDLE_S, self.die).start()


class Stop(AtStep):
    """F14: the process is stopped, loops, or holds the interpreter for ever."""

    def happen(self, ids: Ids | None) -> None:
        """Never come back."""
        self.injected(ids)
        if self.case.endswith("-stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.case.endswith("-loop"):
            while True:
                pass
        else:
            ctypes.PyDLL(None).sleep(3600)


class DiskFull(AtStep):
    """F20: no file of this rank may grow any more."""

    def happen(self, ids: Ids | None) -> None:
        """Record it, while that can still be written, and then fill the disk for this process."""
        self.injected(ids)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
