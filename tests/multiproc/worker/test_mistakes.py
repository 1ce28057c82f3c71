"""The mistakes that one makes first with a model of one's own: each is named, on the rank that made it."""

from __future__ import annotations

import re

import pytest
import torch
from checkout import SUPPORT
from toy_runs import toy

import ppwork as pp
from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc

# The ranks that make the mistake, what each says, and what to check first. Where both mesh ranks make it,
# torchrun ends the second when the first has left, so that one record may be all there is.
MISTAKES = {
    "OneBuffer": (
        {0},
        "The tensor 'large' of chunk 3 was written to before its result had come",
        "the `return` of OneBuffer.encode, ",
    ),
    "OneOutput": (
        {1},
        "'large' of the result of chunk 3 was written to before rank 0 had it",
        "the `return` of OneOutput.step, ",
    ),
    "dtensor_stages:GivesDTensor": (
        {1},
        "The tensor 'x' was a DTensor, which has no memory of its own",
        ".full_tensor()",
    ),
    "MakesMesh": ({1, 2}, "Stage code was about to make a process group", "context.tp.device_mesh"),
    "SumsInConstructor": ({1, 2}, "Stage code called all_reduce on the default group", "context.tp.group"),
    "SumsOnWorld": ({1, 2}, "Stage code called all_reduce on the default group", "context.tp.group"),
    "Barrier": (
        {0},
        "Stage code called barrier on the default group (world_pg); inside stage 0 none may be used",
        "stage 0 is one rank",
    ),
    "OneRankSums": (
        {1, 2},
        "Ranks 1 and 2 differ in chunk 0: rank 1 ended it after 1 collective (the last at toy_stages.py:",
        "one rank",
    ),
}


@pytest.mark.parametrize("stage", MISTAKES)
def test_the_mistake_is_named_on_its_rank_long_before_the_time_out(tmp_path, stage):
    ranks, what, check_first = MISTAKES[stage]
    which = "stage0" if ranks == {0} else "stage1"
    path = stage if ":" in stage else f"mistaken_stages:{stage}"
    plan = toy(verify=False, timeout_s=60.0, in_flight_depth=3, **{which: path})
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    assert run.failure is not None
    assert what in run.failure.what
    if stage == "OneRankSums":  # which the dispatcher alone has seen
        assert re.search(
            r"\n  rank 1, last at toy_stages\.py:\d+: .*self\.tp\.all_reduce\(", run.failure.what
        )
        assert re.search(r"\n  rank 2 at mistaken_stages\.py:\d+: functional\.all_reduce\(", run.failure.what)
    assert check_first in run.failure.check_first
    causes = [record for record in read_records(run.run_dir, 3) if not record.symptom]
    assert run.failure.where["rank"] in {record.where["rank"] for record in causes} <= ranks
    assert {record.error_type for record in causes} == {"LocalProtocolError"}


def test_a_chunk_that_comes_with_another_dtype_than_those_before_it_is_told(tmp_path):
    """torch's own words are only about the product."""
    stages = {"stage0": "mistaken_stages:LaterDouble", "stage1": "mistaken_stages:Weights"}
    failure = pp.launch(
        toy(verify=False, timeout_s=60.0, **stages), out=tmp_path / "run", check=False
    ).failure
    assert "The stage's step raised RuntimeError: " in failure.what
    assert failure.where["chunk_index"] == 3
    came = "this chunk came with 'small' float64[4]; those before it with 'small' float32[4]; "
    assert failure.check_first.startswith(came)


def test_a_crash_below_python_names_the_line_that_called_it(tmp_path):
    plan = toy(verify=False, timeout_s=60.0, stage1="mistaken_stages:Crashes")
    failure = pp.launch(plan, out=tmp_path / "run", check=False).failure
    source = (SUPPORT / "mistaken_stages.py").read_text().splitlines()
    (line,) = (number for number, text in enumerate(source, 1) if text.endswith("# CRASH"))
    assert failure.what.splitlines()[0].endswith(f"mistaken_stages.py:{line}, in step")
    assert "Rank 2 was killed by SIGSEGV and left no record: Fatal Python error" in failure.what


def test_stage_code_runs_without_autograd_unless_its_class_says_otherwise(tmp_path):
    for stage, grad in {"KeepsGraph": 0.0, "WantsGraph": 1.0}.items():
        plan = toy(chunks=1, verify=False, stage0="mistaken_stages:Shown", stage1=f"mistaken_stages:{stage}")
        assert pp.launch(plan, out=tmp_path / stage).summary["figures"]["outputs"] == [[grad] * 4]


def test_a_model_split_by_dtensor_over_the_contexts_mesh_equals_the_whole_one(tmp_path):
    """At depth 2, and the single-process reference computes the same."""
    plan = toy(chunks=4, in_flight_depth=2, stage0="mistaken_stages:Shown", stage1="dtensor_stages:Sharded")
    run = pp.launch(plan, out=tmp_path / "run")
    torch.manual_seed(1)
    block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    with torch.no_grad():
        whole = [(block(torch.full((4,), float(k))) + 28.0).tolist() for k in range(4)]
    for mine, theirs in zip(run.summary["figures"]["outputs"], whole, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert run.summary["verified_chunks"] == 4
