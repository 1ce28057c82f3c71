"""Rank 1 is killed as the out-of-memory killer does it, in mid-run."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
