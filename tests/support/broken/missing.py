"""Rank 2 takes a branch without the broadcast and stays there; the others wait until their timeout."""

import faulthandler
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group(timeout=timedelta(seconds=float(sys.argv[1])))
if len(sys.argv) > 2:  # whoever ends it may ask where it is
    stack = (Path(sys.argv[2]) / str(dist.get_rank())).open("w")  # left open: the handler writes to it
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
sys.stdout.write("joined\n")
sys.stdout.flush()
weights = torch.zeros(4)
if dist.get_rank() != 2:
    dist.broadcast(weights, src=2, group=group)
else:
    time.sleep(120)
dist.destroy_process_group()
