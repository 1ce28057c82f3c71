"""Inference with the batch scattered, a ragged exchange between experts, and the answers gathered."""

import torch
import torch.distributed as dist

rank, size = dist.get_rank(), dist.get_world_size()
mine = torch.empty(4, 3)
dist.scatter(mine, list(torch.arange(24.0).reshape(2, 4, 3)) if rank == 0 else None, src=0)
wanted = [1, 3] if rank == 0 else [2, 2]
counts = torch.empty(size, dtype=torch.int64)
dist.all_to_all_single(counts, torch.tensor(wanted))
arrived = torch.empty(int(counts.sum()), 3)
dist.all_to_all_single(arrived, mine, counts.tolist(), wanted)
back = torch.empty_like(mine)
dist.all_to_all_single(back, arrived * 2, wanted, counts.tolist())
answers = [torch.empty(4, 3) for _ in range(size)] if rank == 0 else None
dist.gather(back, answers, dst=0)
