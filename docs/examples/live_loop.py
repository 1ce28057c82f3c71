"""A live source in a loop of your own: rank 0 sends what has come, decodes meanwhile, and ends in order.

A thread puts numbers into a queue, as a server does with its requests; ``None`` ends the stream::

    torchrun --standalone --nproc-per-node 3 live_loop.py runs/live
"""

import queue
import sys
import threading
import time

import torch

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join

DEPTH = 2


def requests(inbox: queue.Queue[float | None]) -> None:
    """Put what comes into the queue; in a thread of its own."""
    for number in range(8):
        time.sleep(0.02)
        inbox.put(float(number))
    inbox.put(None)


def drive(plane: Stage0Plane, inbox: queue.Queue[float | None]) -> None:
    """Rank 0: an answer if one is here, else a request if there is room, else a sign of life."""
    waiting, is_open, beat_s = 0, True, time.monotonic()
    while is_open or waiting:
        if plane.results_ready:
            result, _ = plane.receive_result()
            print("answer", result.tensors["x"].item(), flush=True)  # your decode
            plane.release_result()
            waiting -= 1
        elif is_open and waiting < DEPTH and not inbox.empty():
            request = inbox.get()
            if is_open := request is not None:
                plane.send({"x": torch.tensor([request])})
                waiting += 1
        elif time.monotonic() > beat_s:
            plane.heartbeat()  # nothing has come: the mesh hears that rank 0 lives
            beat_s = time.monotonic() + 1
        else:
            time.sleep(0.002)
    plane.shutdown()


def serve(plane: MeshPlane) -> None:
    """The mesh: double what comes."""
    for chunk in plane.chunks():
        plane.reply({"x": chunk.tensors["x"] * 2})


if __name__ == "__main__":
    with join(Plan(mesh_size=2, in_flight_depth=DEPTH), run_dir=sys.argv[1]) as plane:
        if isinstance(plane, Stage0Plane):
            inbox: queue.Queue[float | None] = queue.Queue()
            threading.Thread(target=requests, args=(inbox,), daemon=True).start()
            drive(plane, inbox)
        elif isinstance(plane, MeshPlane):
            serve(plane)
