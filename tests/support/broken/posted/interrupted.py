import datetime
import os
import signal
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
if dist.get_rank() == 1:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    total = 0
    while True:
        total += sum(range(1000))
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
