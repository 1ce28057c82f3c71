"""Programs that are not as a recorder or a launcher would like them: ``bad.py NAME FOLDER``, two ranks.

Each function is one way; every process of it writes its pid into the folder, so that a test can say whether
it is left.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANK = int(os.environ["RANK"])
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def note(folder, pid=None):
    (Path(folder) / f"pid{pid or os.getpid()}").touch()


def join():
    dist.init_process_group("gloo")


def total():
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor


def exits_before(folder):
    sys.exit(0)


def one_exits_before(folder):
    """Rank 1 has nothing to do, and leaves before the start."""
    if RANK == 1:
        sys.exit(0)
    join()


def exits_at_once(folder):
    join()
    total()
    os._exit(0)


def one_exits_at_once(folder):
    """Rank 1 leaves by os._exit in mid-program."""
    join()
    total()
    if RANK == 1:
        os._exit(0)
    total()


def prints_lines(folder):
    for _ in range(1000):
        print("\n".join(["y" * 99] * 1000))
    print("the last line")


def prints_one_line(folder):
    sys.stdout.write("z" * 100_000_000)


def prints_for_ever(folder):
    while True:
        print("y" * 10_000)


def patches(folder):
    """Puts a function of its own in place of send, which does not come to torch's own."""
    join()
    dist.send = lambda tensor, dst: dist.distributed_c10d._get_default_group().send([tensor], dst, 0).wait()
    if RANK == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    dist.destroy_process_group()


def forks(folder):
    """A child of rank 1 goes on with the program, and the rank does not wait for it."""
    join()
    total()
    if RANK == 1 and os.fork() == 0:
        note(folder)
        signal.pause()
    total()
    dist.destroy_process_group()


def threads(folder):
    join()
    group = dist.new_group([0, 1])
    helper = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2), group=group))
    helper.start()
    total()
    helper.join()
    dist.destroy_process_group()


def inner_rank(rank, folder, port):
    note(folder)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=3)
    total()
    dist.destroy_process_group()


def spawns(folder):
    """Rank 0 starts three ranks of its own; rank 1 does nothing."""
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
        del store
        mp.spawn(inner_rank, (folder, port), nprocs=3)


def reads(folder):
    join()
    if RANK == 0:
        input("how many? ")
    total()


def changes_folder(folder):
    """Goes elsewhere, takes its own file away, and fails there."""
    join()
    total()
    os.chdir("/")
    dist.barrier()
    if RANK == 0:
        Path(__file__).unlink()
    dist.barrier()
    if RANK == 1:
        raise ValueError("no such thing")
    total()


def hooks(folder):
    """Shows no exception."""
    sys.excepthook = lambda *about: None
    join()
    total()
    if RANK == 1:
        raise ValueError("said to nobody")
    total()


def redirects(folder):
    """Takes its output away, and closes what is left of it."""
    join()
    sys.stdout.close()
    sys.stdout = sys.stderr = None
    os.close(1)
    os.close(2)
    total()
    dist.destroy_process_group()


def ignores_signals(folder):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    join()
    if RANK == 0:
        dist.recv(torch.ones(1), 1)
    while True:
        time.sleep(1)


def leaves_children(folder):
    """Children that are daemons: of multiprocessing, of a session of their own, without its environment."""
    join()
    if RANK == 0:
        helper = mp.get_context("fork").Process(target=signal.pause, daemon=True)
        helper.start()
        note(folder, helper.pid)
        for environment in (None, {}):
            child = subprocess.Popen(SLEEPER, start_new_session=True, env=environment)
            note(folder, child.pid)
        child.returncode = 0  # nobody waits for it
    total()
    if RANK == 1:
        raise ValueError("after the children")
    total()


def closes_all(folder):
    """Closes every file that it did not open itself, as daemons do, and opens one of its own."""
    join()
    total()
    if RANK == 0:
        os.closerange(3, 30)
        with open(Path(folder) / "own.txt", "w") as own:
            own.write("mine")
    os._exit(0)


if __name__ == "__main__":
    note(sys.argv[2])
    globals()[sys.argv[1]](sys.argv[2])
