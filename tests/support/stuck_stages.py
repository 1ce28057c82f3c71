"""A stage that never comes back, on one rank: what a run past its limit must tell."""

from __future__ import annotations

import time
from pathlib import Path

from toy_stages import Scaler


class Spins(Scaler):
    """Loops for ever at chunk 2 on one mesh rank and says so; the others wait for it in a sum."""

    def step(self, tensors, step_index, num_steps):
        while self.seen >= 2 and self.tp.group_rank == self.plan.options["group_rank"]:
            Path(self.plan.options["mark"]).touch()
            time.sleep(0.01)
        return super().step(tensors, step_index, num_steps)
