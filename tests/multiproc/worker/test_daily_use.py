"""What an adopter does on the first day: a source without a number, logs, figures, outputs, tolerance."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
from daily_stages import Forgets
from toy_runs import toy

import ppwork as pp
from ppwork.lab import stages_cell
from ppwork.pictures.run_table import rows_of
from ppwork.records.run import FAILED_AT_END, log_file

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(240)]  # a launch, its reference, a cold start

OPTIONS = {"source": {"ends": 5}, "scales": [1.0, 2.0]}


@pytest.fixture(scope="module")
def run(tmp_path_factory, request):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(request.config.rootpath / "tests" / "support")
        plan = toy(
            chunks=None,
            in_flight_depth=2,
            options=OPTIONS,
            stage0="daily_stages:Words",
            stage1="daily_stages:Doubled",
            keep_outputs=True,
        )
        yield pp.launch(plan, out=str(tmp_path_factory.mktemp("daily") / "run"))


def test_a_source_without_a_number_of_chunks_ends_by_itself_and_equals_one_process(run):
    assert run.plan.chunks is None
    assert (run.summary["chunks"], run.summary["verified_chunks"], run.summary["max_abs_diff"]) == (5, 5, 0.0)


def test_what_a_stage_logs_stands_once_in_its_ranks_log_with_rank_and_time(run):
    lines = log_file(run.run_dir, 0).read_text().splitlines()
    assert len([line for line in lines if "read chunk" in line]) == 5
    (first,) = [line for line in lines if "read chunk 0" in line]
    found = re.fullmatch(r"\+(\d+)ms r0 INFO adopter.stages \| read chunk 0", first)
    assert found is not None
    assert int(found[1]) < 600_000  # since this rank began, whatever it was forked from
    unnamed = [line for line in lines if "said without a name" in line]
    assert len(unnamed) == 5
    assert all(re.match(r"\+\d+ms r0 WARNING root \| ", line) for line in unnamed)
    assert len([line for line in lines if "joined as stage0" in line]) == 1


def test_metrics_and_figures_have_keys_of_their_own_and_stand_in_the_table(run):
    assert run.summary["figures"] == {"words": 3, "period_ms": "fast"}
    assert run.summary["metrics"] == {"tokens_per_s": 12.0}
    assert isinstance(run.summary["period_ms"], float)
    rows = dict(rows_of(run))
    assert rows["figures"] == "words 3, period_ms fast"
    assert rows["metrics"] == "tokens_per_s 12"
    assert rows["verified"] == "max_abs_diff 0 to one process"


def test_outputs_are_there_and_two_runs_are_compared(run, tmp_path):
    assert {index: output.tolist() for index, output in run.outputs.items()} == {
        index: [2.0 + 2.0 * (index % 2)] * 3 for index in range(5)
    }
    again = pp.launch(run.plan.replace(options={**OPTIONS, "scales": [1.0, 2.5]}), out=tmp_path / "again")
    compared = run.compare(str(again.run_dir))
    assert compared.differences == {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0, 4: 0.0}
    assert "first is chunk 1" in compared.finding
    assert np.array_equal(pp.open(str(again.run_dir)).outputs[1], np.full(3, 5.0))
    assert run.timeline(again).finding == run.timeline(str(again.run_dir)).finding


def test_a_run_without_any_chunk_fails_and_says_what_ended_its_stream(run, tmp_path):
    """So ends an ``encode`` without its ``return``, and a run that did nothing was called well."""
    options = {**OPTIONS, "source": {"ends": 0}}
    empty = pp.launch(run.plan.replace(options=options, verify=False), out=tmp_path / "empty", check=False)
    said = "encode returned None for chunk 0, which ends the stream: a forgotten `return`?"
    assert (empty.exit_code, empty.summary["chunks"]) == (0, 0)  # of torchrun: no rank failed
    assert empty.failure.what.startswith(f"{FAILED_AT_END}.\nNo rank failed, and no chunk came: {said}")
    assert dict(rows_of(empty))["ended"] == said
    assert pp.diagnose(empty).text.startswith(empty.failure.what)
    assert said in log_file(empty.run_dir, 0).read_text()
    assert "ended" not in dict(rows_of(run))


def test_a_source_that_forgets_to_return_a_later_chunk_is_warned_of_by_line(run, tmp_path):
    """It was called well: of ten chunks four came, as no `return` is a `None`, and that is the end."""
    options = {**OPTIONS, "source": {"ends": 3}, "scalse": 1}
    plan = run.plan.replace(options=options, verify=False, stage0="daily_stages:Forgets")
    short = pp.launch(plan, out=tmp_path / "short")
    line = inspect.getsourcelines(Forgets.encode)[1] + 3
    said = (
        "encode returned None for chunk 3, which ends the stream: a forgotten `return`? "
        f"Below daily_stages.py:{line} there is none; an end that is meant is a `return None`"
    )
    assert short.summary["chunks"] == 3
    assert (short.summary["stream_ended"], dict(rows_of(short))["ended"]) == (said, said)
    assert dict(rows_of(short))["options"] == "no stage asked for 'scalse'"
    assert dict(rows_of(short))["verified"].startswith("no: `verify` compares")  # a wrong share ends well
    silent = "none: decode returned None for each of 3 chunks: a forgotten `return`?"
    assert dict(rows_of(short))["outputs"] == silent
    assert not {"options", "outputs"} & {*dict(rows_of(run))}
    assert said in pp.diagnose(short).text
    assert pp.diagnose(short).is_odd
    assert not pp.diagnose(run).is_odd
    assert said in log_file(short.run_dir, 0).read_text()


def test_a_cut_that_reaches_a_generator_without_reset_cache_is_told(run, tmp_path):
    """Its results may be wrong, and one process computes the same wrong ones: so it fails, at its end.

    It has two threads a rank, too: a run with other threads than the warm launcher's starts cold.
    """
    plan = run.plan.replace(hard_cuts=(1, 3), keep_outputs=False, threads_per_rank=2)
    cut = pp.launch(plan, out=tmp_path / "cut", check=False)
    said = f"{FAILED_AT_END}.\nAt the cut of chunks 1 and 3 nothing was reset"
    assert cut.failure.what.startswith(said)
    assert "write an empty `reset_cache`" in cut.failure.check_first
    assert "threads 2" in log_file(cut.run_dir, 2).read_text()
    assert cut.summary["cuts_without_reset"] == [1, 3]
    text = "at chunks 1 and 3 nothing was reset: the generator has no `reset_cache`"
    assert dict(rows_of(cut))["cuts"] == text
    assert "At the cut of chunks 1 and 3 nothing was reset" in pp.diagnose(cut).text
    for rank in run.plan.topology.mesh_ranks:
        lines = log_file(cut.run_dir, rank).read_text().splitlines()
        (line,) = [line for line in lines if "nothing was reset" in line]
        assert "WARNING" in line
        assert line.endswith("chunk 1 came with a cut, and Doubled has no reset_cache: nothing was reset")
    assert "cuts_without_reset" not in run.summary


def test_a_write_into_a_received_tensor_by_one_mesh_rank_is_told(run, tmp_path):
    """That rank alone computes with other values from there on; torch counts the write."""
    plan = run.plan.replace(stage1="daily_stages:Normalises", keep_outputs=False, verify=False, chunks=3)
    odd = pp.launch(plan, out=tmp_path / "odd")
    assert odd.summary["writes_differ"] == [0, 1, 2]
    said = "in chunks 0 to 2: rank 1 into none, rank 2 into 'x'"
    assert dict(rows_of(odd))["writes"].endswith(said)
    assert said in pp.diagnose(odd).text
    assert pp.diagnose(odd).is_odd
    assert "writes_differ" not in run.summary


CELL = """
import torch

from ppwork.stage import Emission


class Source:
    def __init__(self, context):
        pass

    def encode(self, chunk_index):
        return {"x": torch.full((2,), float(chunk_index))} if chunk_index < 3 else None

    def decode(self, chunk_index, tensors):
        return Emission(tensors["x"])


class Block:
    def __init__(self, context):
        self.tp = context.tp

    def step(self, tensors, step_index, num_steps):
        return {"x": self.tp.all_reduce(tensors["x"] + 1)}
"""


def test_stages_of_a_cell_run_on_real_ranks_and_so_does_the_cell_when_it_was_changed(tmp_path, monkeypatch):
    given = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages_cell, "give", lambda name, value: given.update({name: value}))
    for plus, name in ((1.0, "one"), (5.0, "five")):
        stages_cell.stages("cell_stages.py", CELL.replace("+ 1", f"+ {plus}"))
        run = pp.launch(toy(chunks=None, keep_outputs=True, verify=False, **given["stages"]), out=name)
        assert [output[0] for output in run.outputs.values()] == [2 * (k + plus) for k in range(3)]


def test_a_difference_names_its_first_chunk_dtype_and_the_option_and_passes_with_it(tmp_path):
    plan = toy(
        chunks=3,
        options={"source": {"ends": 9}, "scales": [0.0, 1.0]},  # chunk 0 is all zeros
        stage0="daily_stages:Words",
        stage1="daily_stages:Rounded",
    )
    failed = pp.launch(plan, out=tmp_path / "strict", check=False).failure
    assert "output (bfloat16) differed" in failed.what
    assert "first in chunk 1" in failed.what
    assert "--tolerance" in failed.check_first
    words = ["run", "--stage0", plan.stage0, "--stage1", plan.stage1, "--chunks", "3", "--timeout-s", "20"]
    options = ["--verify", "--tolerance", "0.1", "-o", 'source={"ends": 9}', "-o", "scales=[0.0, 1.0]"]
    done = subprocess.run(
        [sys.executable, "-m", "ppwork", *words, *options, "--out", str(tmp_path / "loose")],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "max_abs_diff" in done.stdout
    assert "tokens_per_s" in done.stdout
