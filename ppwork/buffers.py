"""Host memory that payloads land in: owned, used again, and never while anybody still looks at it.

A fresh buffer of some megabytes costs a page fault for every 4 KB of it, on the lane, for every chunk. These
buffers are touched once. A buffer comes back when the last tensor that shares its memory is gone, whoever
keeps it: a generator that holds on to its input (a rolling cache) holds the buffer, and the pool makes
another. So what is in flight never aliases what computes (rule R8), and nothing is copied for it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BufferPool:
    """Buffers of the size that was asked for last; another size lets the old ones go.

    Args:
        keep: Most free buffers kept for the next message.
    """

    def __init__(self, keep: int) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=keep)
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> torch.Tensor:
        """Return ``[nbytes]`` uint8 on the CPU, its content undefined; nobody else sees this memory."""
        with self._lock:
            base = self._free.pop() if self._free and self._free[-1].nbytes == nbytes else None
            if base is None:
                self._free.clear()
        if base is None:
            base = np.empty(nbytes, dtype=np.uint8)
        # torch keeps this view, not the base, as long as any tensor shares the memory.
        lent = base.view()
        weakref.finalize(lent, partial(self._free.append, base)).atexit = False
        return torch.from_numpy(lent)
