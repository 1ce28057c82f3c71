"""A claim's rank on NCCL has the runtime's knobs and its eager connections; torch's answers are made up."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from ppwork.claims import rank as claim_rank
from ppwork.claims.claim import Program
from ppwork.claims.jobs import ClaimJob
from ppwork.runtime import nccl


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Runs a rank of a program that makes its group; returns its environment and the group's options."""
    seen = {}
    program = ModuleType("of_a_test")

    def joins(world):
        seen["environment"] = dict(os.environ)
        world.init()

    program.joins = joins
    monkeypatch.setitem(sys.modules, f"{claim_rank.PROGRAMS}of_a_test", program)
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k not in nccl.KNOBS})
    monkeypatch.setattr(claim_rank.faulthandler, "register", lambda signal, *, file, **more: file.close())
    monkeypatch.setattr(dist, "init_process_group", lambda **options: seen.update({"options": options}))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def start(backend, *, devices, environment=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        program = Program("of_a_test:joins", timeout_s=0.0, environment=environment or {})
        job = ClaimJob(program, str(tmp_path), backend)
        assert claim_rank.run_rank(job, 1) == 0
        return seen["environment"], seen["options"]

    return start


def test_on_nccl_knobs_are_turned_and_the_device_is_bound(started):
    environment, options = started("nccl", devices=2)
    assert {name: environment[name] for name in nccl.KNOBS} == {k: v for k, (v, _) in nccl.KNOBS.items()}
    assert "NCCL_HOSTID" not in environment
    assert options["device_id"] == torch.device("cuda", 1)


def test_what_a_program_asks_for_stays(started):
    asked = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
    environment, _ = started("nccl", devices=1, environment=asked)
    assert environment["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "250"
    assert environment["NCCL_HOSTID"] == "ppwork-1"


def test_on_gloo_nothing_of_nccl_is_set(started):
    environment, options = started("gloo", devices=0)
    assert not set(nccl.KNOBS) & set(environment)
    assert "device_id" not in options
