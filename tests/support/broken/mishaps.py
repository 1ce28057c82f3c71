"""Ways in which jobs of ``torch.distributed`` go wrong: ``mishaps.py NAME`` under torchrun, three ranks, gloo.

Each function is the loop that somebody wrote; its docstring says the truth, which the logs may hide.
"""

import asyncio
import atexit
import contextlib
import ctypes
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

BOUND = timedelta(seconds=5)
RANK = int(os.environ["RANK"])


def join(**options):
    dist.init_process_group("gloo", **{"timeout": BOUND, **options})


def total(size=4, **options):
    tensor = torch.ones(size)
    dist.all_reduce(tensor, **options)
    return tensor


def bcast_src():
    """Rank 1 broadcasts from another root."""
    join()
    total()
    for _ in range(3):
        dist.broadcast(torch.ones(4), src=1 if RANK == 1 else 0)
    dist.barrier()


def cascade():
    """Rank 1 fails, and tidies up for a while; rank 2 then misses its file."""
    join()
    dist.barrier()
    if RANK == 1:
        atexit.register(time.sleep, 3)
        raise RuntimeError("disk quota exceeded while writing part 1")
    if RANK == 2:
        time.sleep(1)
        with open("/ckpt/part1") as file:
            file.read()
    total()


def conn_reset():
    """Rank 1's data server closed the connection."""
    join()
    total()
    if RANK == 1:
        raise ConnectionResetError(104, "Connection reset by peer")
    total()


def ddp_model():
    model = torch.nn.Linear(8, 2)
    return torch.nn.parallel.DistributedDataParallel(model)


def ddp_uneven():
    """Rank 2 has one batch fewer."""
    join()
    model = ddp_model()
    for _ in range(2 if RANK == 2 else 3):
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
    dist.barrier()


def ddp_differs():
    """Rank 2's model has another shape."""
    join()
    model = torch.nn.Linear(8, 3 if RANK == 2 else 2)
    torch.nn.parallel.DistributedDataParallel(model)


def dtypes():
    """Rank 1 sums doubles."""
    join()
    dist.all_reduce(torch.ones(1000, dtype=torch.float64 if RANK == 1 else torch.float32))
    dist.barrier()


def exc_group():
    """Rank 1's task raises in a TaskGroup."""
    join()

    async def load(shard):
        await asyncio.sleep(0)
        if shard == 0:
            raise ValueError(f"shard {shard} is corrupt")

    async def load_all():
        async with asyncio.TaskGroup() as tasks:
            for shard in range(2):
                tasks.create_task(load(shard))

    if RANK == 1:
        asyncio.run(load_all())
    total()


def exit_text():
    """Rank 1 leaves with a sentence."""
    join()
    if RANK == 1:
        sys.exit("no licence for this host")
    total()


def finally_barrier():
    """Rank 1 raises, and its ``finally`` waits for the others."""
    join()
    try:
        if RANK == 1:
            raise ValueError("label 17 is out of range")
        total()
    finally:
        dist.barrier()


def fork_after_init():
    """Rank 1 forks after the start, and the child sums in its place."""
    join()
    total()
    if RANK == 1:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            time.sleep(60)
        total()
        os._exit(0)
    total()
    dist.barrier()


def harmless_hang():
    """All ranks miss an optional module; rank 1 then sleeps."""
    join()
    log_missing_module()
    total()
    if RANK == 1:
        time.sleep(60)
    total()


def log_missing_module():
    try:
        import flash_attn_that_is_not_here  # noqa: F401
    except ImportError:
        logging.exception("flash attention is not available")


def harmless_kill():
    """Rank 2 misses an optional module; rank 1 is killed."""
    join()
    if RANK == 2:
        log_missing_module()
    total()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    total()


def isend_exit():
    """Rank 0 leaves before its isend is through."""
    join()
    if RANK == 0:
        dist.isend(torch.ones(1 << 22), 1)
        os._exit(3)
    if RANK == 1:
        dist.recv(torch.ones(1 << 22), 0)
    dist.barrier()


def late():
    """Rank 2 loads for longer than the bound."""
    join()
    total()
    if RANK == 2:
        time.sleep(60)
    dist.barrier()


def lock_order():
    """Ranks 0 and 1 use two groups in two orders."""
    join()
    first, second = dist.new_group(timeout=BOUND), dist.new_group(timeout=BOUND)
    for group in (first, second) if RANK else (second, first):
        total(group=group)
    dist.barrier()


def newgroup_differs():
    """Rank 0 makes another group than the others."""
    join()
    total()
    group = dist.new_group([0, 1] if RANK == 0 else [1, 2], timeout=BOUND)
    if RANK == 1:
        total(group=group)
    dist.barrier()


def oom_rlimit():
    """Rank 1 runs out of memory."""
    join()
    total()
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        bytearray(8 << 30)
    total()


def own_hook():
    """Rank 1 raises under rich's traceback."""
    from rich.traceback import install

    join()
    install(width=100)
    if RANK == 1:
        raise ValueError("vocab has 50257 entries, model 50304")
    total()


def port_in_use():
    """Another program has rank 0's port."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    with socket.create_server(("127.0.0.1", 29777)) if RANK == 0 else contextlib.nullcontext():
        join(init_method="tcp://127.0.0.1:29777", rank=RANK, world_size=3)


def no_master():
    """Rank 0 never opens its port: it still loads."""
    if RANK == 0:
        time.sleep(60)
    join(init_method="tcp://127.0.0.1:29778", rank=RANK, world_size=3)


def read_timeout():
    """Rank 1's download timed out."""
    join()
    total()
    if RANK == 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=0.5) as client:
                client.recv(1)
    total()


def retry_then_abort():
    """Rank 1 gives up after three tries, with exit code 7."""
    join()
    total()
    if RANK == 1:
        for attempt in range(3):
            try:
                raise OSError(f"bucket does not answer (try {attempt})")
            except OSError:
                logging.exception("will try again")
        print("giving up", flush=True)
        os._exit(7)
    total()


def same_rank():
    """Rank 2 joins as rank 1."""
    join(rank=1 if RANK == 2 else RANK, world_size=3)
    dist.barrier()


def save_barrier():
    """Only rank 0 comes to the barrier of the checkpoint."""
    join()
    total()
    if RANK == 0:
        dist.barrier()
    total()
    total()


def segfault():
    """Rank 1 reads a null pointer."""
    join()
    total()
    if RANK == 1:
        ctypes.string_at(0)
    total()


def sums_of_some():
    """Rank 2 makes a small sum more, in the group of ranks 1 and 2; rank 0 is in none."""
    join()
    some = dist.new_group([1, 2])
    if RANK == 0:
        dist.recv(torch.zeros(1), src=1)
        return
    for step in range(4):
        if RANK == 2 and step == 2:
            dist.all_reduce(torch.zeros(3), group=some)
        dist.all_reduce(torch.zeros(96), group=some)
    dist.send(torch.zeros(1), dst=0)


def splits():
    """Rank 1's splits do not fit the others'."""
    join()
    total()
    sizes = [2, 1, 1] if RANK == 1 else [1, 1, 1]
    dist.all_to_all_single(torch.ones(3), torch.ones(sum(sizes)), [1, 1, 1], sizes)
    dist.barrier()


def swallowed():
    """Rank 1 catches its own error and skips the sum."""
    join()
    for step in range(3):
        try:
            if RANK == 1 and step == 1:
                raise ValueError("bad batch")
            total()
        except ValueError:
            pass
    dist.barrier()


def tags():
    """Rank 0 sends with tag 1, rank 1 receives with tag 2."""
    join()
    if RANK == 0:
        dist.send(torch.ones(4), 1, tag=1)
    if RANK == 1:
        dist.recv(torch.ones(4), 0, tag=2)
    dist.barrier()


def wrong_src():
    """Rank 1 receives from 2, and rank 0 sent to it."""
    join()
    if RANK == 0:
        dist.send(torch.ones(4), 1)
    if RANK == 1:
        dist.recv(torch.ones(4), 2)
    dist.barrier()


def thread_dies():
    """Rank 1's prefetch thread raises, and its main thread waits for it."""
    join()
    total()
    if RANK == 1:
        ready = threading.Event()

        def prefetch():
            raise KeyError("image_0017")

        threading.Thread(target=prefetch).start()
        ready.wait(60)
    total()


def unpicklable():
    """Rank 1 broadcasts what cannot be pickled."""
    join()
    total()
    objects = [lambda: 0] if RANK == 1 else [None]
    dist.broadcast_object_list(objects, src=1)


def world_size():
    """Four ranks are wanted and three started."""
    join(rank=RANK, world_size=4)


def wrong_master():
    """Rank 2 looks for the others at another port."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    os.environ["MASTER_PORT"] = "29780" if RANK == 2 else "29779"
    join(init_method="env://", rank=RANK, world_size=3)


def restarts():
    """Rank 1 has no space left, in the first attempt."""
    join()
    total()
    if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise OSError(28, "No space left on device")
    if RANK == 0:
        time.sleep(60)
    total()


def tqdm_bar():
    """Rank 1 raises under a progress bar."""
    from tqdm import tqdm

    join()
    for step in tqdm(range(10)):
        total()
        time.sleep(0.2)
        if RANK == 1 and step == 4:
            raise ValueError("NaN in batch 4")


def loguru_like():
    """Rank 1 raises, and its logger shows it in its own way."""
    join()
    if RANK == 1:
        print(
            "2026-11-20 10:00:00.123 | ERROR    | __main__:<module>:12 - An error has been caught in function "
            "'<module>', process 'MainProcess' (7), thread 'MainThread' (140):\n"
            "Traceback (most recent call last):\n\n"
            '  File "/srv/me/train.py", line 20, in <module>\n    main()\n    └ <function main at 0x7f>\n\n'
            '> File "/srv/me/train.py", line 12, in main\n    load(shard)\n    │    └ 3\n    └ <function load>\n\n'
            '  File "/srv/me/train.py", line 7, in load\n    raise ValueError(f"shard {shard} is empty")\n\n'
            "ValueError: shard 3 is empty",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)
    total()


class Shards(torch.utils.data.Dataset):
    def __init__(self, dies):
        self.dies = dies

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if RANK == 1 and index == 2:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("image 2 is truncated")
        return torch.ones(4)


def loader_raises(*, dies=False):
    """Rank 1's DataLoader worker raises."""
    join()
    for _ in torch.utils.data.DataLoader(Shards(dies), num_workers=1):
        total()


def loader_killed():
    """Rank 1's DataLoader worker is killed."""
    loader_raises(dies=True)


def terminate_what():
    """Rank 1 ends in C++."""
    join()
    total()
    if RANK == 1:
        text = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  map::at\n"
        sys.stderr.write(text)
        sys.stderr.flush()
        os.abort()
    total()


def destroy_early():
    """Rank 2 destroys its group one step early."""
    join()
    for step in range(3):
        if RANK == 2 and step == 2:
            dist.destroy_process_group()
            time.sleep(60)
        total()


def caught_peer_error():
    """Rank 2 raises; the others wrap what they see of it."""
    join()
    total()
    if RANK == 2:
        raise ValueError("learning rate is negative")
    try:
        total()
    except RuntimeError as error:
        raise RuntimeError(f"training step failed on rank {RANK}") from None if RANK == 0 else error


def import_error():
    """Rank 1 lacks a module."""
    if RANK == 1:
        import tokenizer_that_is_not_here  # noqa: F401
    join()


def syntax():
    """Rank 1 reads a configuration that is no Python."""
    join()
    if RANK == 1:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/settings.py"
            with open(path, "w") as file:
                file.write("lr = = 3\n")
            with open(path) as file:
                compile(file.read(), path, "exec")
    total()


def child_raises():
    """Rank 1's spawned child raises."""
    join()
    if RANK == 1:
        child = multiprocessing.get_context("fork").Process(target=int, args=("three",))
        child.start()
        child.join()
        raise RuntimeError(f"preprocessing ended with {child.exitcode}")
    total()


def all_raise():
    """Every rank has the same bad setting."""
    join()
    raise ValueError("hidden size 100 is not divisible by 3")


def notify_key():
    """Rank 2 never makes the second group."""
    join()
    if RANK == 2:
        time.sleep(60)
    total(group=dist.new_group(timeout=BOUND))


def asserts():
    """Rank 0 alone asserts."""
    join()
    total()
    assert RANK != 0, f"loss is {float('nan')}"
    total()


def fsdp_uneven():
    """Rank 0 has one batch fewer under FSDP."""
    from torch.distributed.fsdp import fully_shard

    join()
    mesh = dist.init_device_mesh("cpu", (3,))
    model = fully_shard(torch.nn.Linear(9, 3), mesh=mesh)
    for _ in range(1 if RANK == 0 else 2):
        model(torch.ones(3, 9)).sum().backward()
    dist.barrier()


globals()[sys.argv[1]]()
