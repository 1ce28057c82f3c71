"""Two steps of DistributedDataParallel: the sums of its gradients are in the backward."""

import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(3, 16)).sum().backward()
    optimizer.step()
