"""Inference through two stages of torch's pipelining, four micro-batches, by its GPipe schedule."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
layer = torch.nn.Linear(16, 16).eval()
schedule = ScheduleGPipe(PipelineStage(layer, rank, size, torch.device("cpu")), 4)
with torch.no_grad():
    for _ in range(2):
        schedule.step(*([torch.ones(8, 16)] if rank == 0 else []))
