"""A training step through two stages by the schedule that takes forward and backward in turn."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
stage = PipelineStage(torch.nn.Linear(16, 16), rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
for _ in range(2):
    if rank == 0:
        schedule.step(torch.ones(8, 16))
    else:
        schedule.step(target=torch.zeros(8, 16))
