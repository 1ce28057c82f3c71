"""A helper thread with a group of its own, beside the main thread."""

import threading

import torch
import torch.distributed as dist

group = dist.new_group([0, 1])


def help_out() -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(10), group=group)


helper = threading.Thread(target=help_out)
helper.start()
for _ in range(5):
    dist.all_reduce(torch.ones(10))
helper.join()
