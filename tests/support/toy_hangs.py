"""A stage that stops making progress on one mesh rank at chunk 2, in the way that an option says."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from toy_stages import Scaler


class Hangs(Scaler):
    """Stage 1; the other mesh ranks wait for the sum of this one."""

    chunks = -1

    def step(self, tensors, step_index, num_steps):
        self.chunks += 1
        if self.chunks == 2 and self.tp.group_rank == self.plan.options["group_rank"]:
            Path(os.environ["TOY_BEGAN"]).touch()
            getattr(self, self.plan.options["how"])()
        return super().step(tensors, step_index, num_steps)

    def loop(self):
        while True: pass  # fmt: skip  # noqa: E701  one line, so that its number is known

    def keep_the_lock(self):
        ctypes.PyDLL(None).sleep(3600)

    def slow(self):
        time.sleep(0.7 * self.plan.stall_s)
