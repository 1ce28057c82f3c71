"""A sensor whose reading thread dies, so that its queue stays empty, and nothing raises in the rank."""

from __future__ import annotations

import queue
import threading
import time

import torch

from ppwork.stage import NOT_YET

GONE = "the sensor is gone"


class Sensor:
    """Has two chunks; asked for more it says NOT_YET for ``patience_s``, and then ends the stream."""

    def __init__(self, context):
        self.patience_s = context.plan.options["patience_s"]
        self.read, self.last_s = queue.SimpleQueue(), None
        threading.Thread(target=self._fill, name="reader", daemon=True).start()

    def _fill(self):
        for k in range(2):
            self.read.put(torch.full((3,), float(k)))
        raise OSError(GONE)  # DIES

    def encode(self, chunk_index):
        try:
            chunk = {"x": self.read.get(timeout=0.005)}
        except queue.Empty:
            self.last_s = self.last_s or time.monotonic()
            return None if time.monotonic() - self.last_s > self.patience_s else NOT_YET
        else:
            return chunk

    def decode(self, chunk_index, tensors):
        return None


class Same:
    """Gives back what it gets."""

    def __init__(self, context):
        pass

    def step(self, tensors, step_index, num_steps):
        return {"x": tensors["x"].clone()}
