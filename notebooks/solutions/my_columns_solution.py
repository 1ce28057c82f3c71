import torch
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 2.0]])
weight = torch.arange(16.0).view(4, 4)
bias = torch.tensor([1.0, 2.0, 3.0, 4.0])

mine = slice(2 * rank, 2 * rank + 2)
part = F.linear(x, weight[mine], bias[mine])
parts = [torch.empty_like(part) for _ in range(2)]
dist.all_gather(parts, part)
y = torch.cat(parts, dim=1)

print("y", y.tolist())
dist.destroy_process_group()
# A cell wrote this file, and the next one with its name replaces it: 8e22a1a3e79f2f6d
