"""Ranks of one's own that join once for each folder, in one process: ``joins_twice.py FOLDER FOLDER``."""

import os
import sys

import torch

from ppwork.ranks import Plan, PPWorkError, Stage0Plane, join

TIMEOUT_S = 90
"""What a rank would wait for that is not told: far above a cold start on a busy machine."""

torch.set_num_threads(1)
plan = Plan(mesh_size=1, backend="gloo", timeout_s=TIMEOUT_S)
for folder in sys.argv[1:]:
    said = "joined and left"
    try:
        with join(plan, run_dir=folder) as plane:
            if isinstance(plane, Stage0Plane):
                plane.shutdown()
            else:
                list(plane.chunks())
    except PPWorkError as error:
        said = f"{type(error).__name__}: {error.what}"
    sys.stdout.write(f"[{os.environ['RANK']}] {said}\n")  # in one write
