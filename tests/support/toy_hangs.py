"""A stage that stops making progress on one mesh rank at chunk 2, in the way that an option says."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from toy_stages import Scaler

from ppwork.records.run import log_file
from ppwork.worker.watchdog import TICK_S


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
        """Come to an end, but not before the watchdog has warned of it and looked once more."""
        log = log_file(Path(os.environ["TOY_BEGAN"]).with_name("run"), int(os.environ["RANK"]))
        while "slow: generate" not in log.read_text():
            time.sleep(0.01)  # the interval of asking; its bound is the watchdog's
        time.sleep(2 * TICK_S)
