"""A program of one's own over hosts: what its ranks print, call and fail with is that of the whole job."""

from __future__ import annotations

import pytest

import ppwork as pp
from ppwork.launcher.nodes.places import places_of
from ppwork.pictures.programs import program

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(120)]

RING = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
print(rank, "of", world, "local", os.environ["LOCAL_RANK"], "sum", total.item(), sys.argv[1], flush=True)
if rank == 2:
    raise ValueError("rank 2 has had enough")
dist.destroy_process_group()
"""
"""Rank 2 is rank 1 of its host."""


def test_ranks_of_two_nodes_print_call_and_fail_under_their_own_numbers(tmp_path):
    (path := tmp_path / "ring.py").write_text(RING)
    on = places_of("local:2", "1,2")
    run = pp.launch_script(path, nproc=3, arguments=("word",), on=on, out=tmp_path / "run", check=False)
    assert [run.printed(rank) for rank in range(3)] == [
        f"{rank} of 3 local {local} sum 3.0 word\n" for rank, local in ((0, 0), (1, 0), (2, 1))
    ]
    assert "all_reduce" in str(program(run).table)
    assert run.failure.where["rank"] == 2
    assert "rank 2 has had enough" in run.failure.what
    assert pp.diagnose(run.run_dir).cause.rank == 2
