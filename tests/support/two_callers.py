"""A prototype whose rank 0 has a second caller of the transport: ``two_callers.py PLAN OUT``."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

from ppwork.errors import LocalProtocolError
from ppwork.plan import Plan
from ppwork.protocol.envelope import PPAction, PPResult
from ppwork.runtime import LeaderPlane, PPControlPlane, Stage0Plane

CHUNKS = 4


def drive(plane: Stage0Plane, out: str) -> None:
    refused, results = [], []

    def intrude() -> None:
        for call in (lambda: plane.send({"x": torch.zeros(3)}), plane.heartbeat, plane.receive_result):
            try:
                call()
            except LocalProtocolError as error:
                refused.append([error.what, error.where])

    for k in range(CHUNKS):
        plane.send({"x": torch.full((3,), float(k))})
        second = threading.Thread(target=intrude, name="second")
        second.start()
        second.join()
        result, good = plane.receive_result()
        results.append([result.ids.call_id, good, *result.tensors["x"].tolist()])
    plane.shutdown()
    (Path(out) / "seen").write_text(json.dumps([refused, results]))


def serve(plane: LeaderPlane) -> None:
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        ids = plane.computed(observed_calls=1)
        plane.send_result(PPResult(PPAction.INFER, ids, 1, tensors={"x": envelope.tensors["x"] * 2}))
    plane.acknowledge()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with PPControlPlane.join(Plan.from_json(sys.argv[1].encode())) as plane:
        drive(plane, sys.argv[2]) if isinstance(plane, Stage0Plane) else serve(plane)
