"""A program with streams of its own, to be recorded: ``ppwork trace own_streams.py``, two ranks on one card.

Each function is one case of what the host sees otherwise than the device does. A kernel of some ten
milliseconds stands before each call, so the host is far ahead of it.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ppwork.runtime.nccl import sharing_a_gpu

CYCLES = 100_000_000
"""Of the clock of a card: some ten milliseconds of a kernel that only waits."""


def behind_a_kernel(x: torch.Tensor) -> None:
    """The host comes back at once; the stream comes to the sum after the kernel."""
    torch.cuda._sleep(CYCLES)
    dist.all_reduce(x)


def on_a_stream_of_its_own(x: torch.Tensor) -> None:
    """The sum belongs to the stream that is current, and has a row of its own."""
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        torch.cuda._sleep(CYCLES)
        dist.all_reduce(x)
    torch.cuda.current_stream().wait_stream(own)


def with_a_handle(x: torch.Tensor) -> None:
    """The call ends on the stream that waits for its handle."""
    torch.cuda._sleep(CYCLES)
    handle = dist.all_reduce(x, async_op=True)
    torch.cuda._sleep(CYCLES)
    handle.wait()


def in_a_graph(x: torch.Tensor) -> None:
    """A sum that is captured runs at the replay, which no call shows; recording must not end the capture."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    before = x.clone()
    graph.replay()
    torch.cuda.synchronize()
    if not torch.equal(x, 2 * before):
        raise ValueError(f"the graph's sum of two equal ranks gave {x[0]} for {before[0]}")


def at_the_end(x: torch.Tensor) -> None:
    """The program ends while the device still works: what it has not come to is not told."""
    dist.all_reduce(x)
    torch.cuda._sleep(10 * CYCLES)


def main() -> None:
    """Run all of them; the first sum makes NCCL's connections."""
    os.environ.update(sharing_a_gpu(int(os.environ["RANK"])))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    for case in (behind_a_kernel, on_a_stream_of_its_own, with_a_handle, in_a_graph, at_the_end):
        case(x)


if __name__ == "__main__":
    main()
