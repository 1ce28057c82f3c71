"""A group whose transfers are copies: the link of two ranks that are threads of one process.

On the CPU a send and a receive with the same tag meet, in either order, and the second of them copies. On
CUDA, as with NCCL, they do not meet on the host: the sender's stream copies into a buffer between the two,
and the receiver's stream waits for that copy and copies out of the buffer. Each uses the stream of its link.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict, deque

import torch
import torch.distributed as dist

LATE = "Timed out waiting {:g} s for the other end of a copy"
"""Begins as gloo's own text does, so that ``backend_errors`` turns it into an error that names the peer."""


class Half:
    """One end of a transfer, in place of torch's ``Work``.

    Args:
        tensor: The source or the target of the copy.
        timeout_s: Bound on ``wait``, in seconds.
    """

    def __init__(self, tensor: torch.Tensor, timeout_s: float) -> None:
        self.tensor = tensor
        self.done = threading.Event()
        self._timeout_s = timeout_s

    def wait(self) -> None:
        """Wait until the tensor has been copied; on CUDA the stream waits instead.

        Raises:
            RuntimeError: The other end did not come in time; ``links`` names the peer, as for gloo.
        """
        if not self.done.wait(self._timeout_s):
            raise RuntimeError(LATE.format(self._timeout_s))


class CopyGroup(dist.ProcessGroup):
    """One direction of a link; both its ranks use the same object, each from its own threads.

    Args:
        timeout_s: Bound on every wait, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__(0, 2)  # type: ignore[call-arg]
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], deque[Half]] = defaultdict(deque)
        self._between: queue.SimpleQueue[tuple[torch.Tensor, torch.cuda.Event]] = queue.SimpleQueue()

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Half:  # type: ignore[override]  # noqa: ARG002
        """Begin to send one tensor; ``dist.isend`` calls this."""
        half = Half(tensors[0], self._timeout_s)
        if not half.tensor.is_cuda:
            return self._meet(half, "send", "receive", tag)
        buffer, copied = half.tensor.clone(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self._between.put((buffer, copied))
        half.done.set()
        return half

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Half:  # type: ignore[override]  # noqa: ARG002
        """Begin to receive one tensor; ``dist.irecv`` calls this.

        Raises:
            RuntimeError: On CUDA, as ``Half.wait``.

        Blocks:
            On CUDA until the sender has issued its half, which it is about to do: its frame has come.
        """
        half = Half(tensors[0], self._timeout_s)
        if not half.tensor.is_cuda:
            return self._meet(half, "receive", "send", tag)
        try:
            buffer, copied = self._between.get(timeout=self._timeout_s)
        except queue.Empty:
            raise RuntimeError(LATE.format(self._timeout_s)) from None
        stream = torch.cuda.current_stream(half.tensor.device)
        stream.wait_event(copied)
        half.tensor.copy_(buffer)
        buffer.record_stream(stream)  # the allocator may reuse it once this stream has read it
        half.done.set()
        return half

    def _meet(self, half: Half, mine: str, theirs: str, tag: int) -> Half:
        with self._lock:
            if not self._waiting[theirs, tag]:
                self._waiting[mine, tag].append(half)
                return half
            other = self._waiting[theirs, tag].popleft()
        source, into = (half, other) if mine == "send" else (other, half)
        into.tensor.copy_(source.tensor)
        other.done.set()
        half.done.set()
        return half
