"""Training with data parallelism by hand: weights from rank 0, and each gradient summed and divided."""

import torch
import torch.distributed as dist

torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
for weight in model.parameters():
    dist.broadcast(weight.data, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 6)).square().mean()
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
        weight.grad /= dist.get_world_size()
    optimizer.step()
    shown = loss.detach().clone()
    dist.reduce(shown, dst=0, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
