"""``ppwork diagnose`` on runs of ours: who was first, who waited for whom, and in what."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from toy_runs import toy
from typer.testing import CliRunner

import ppwork as pp
from ppwork.cli.main import app
from ppwork.diagnosis.run_ends import BY_VERIFY, NOT_COMPARED, UNCHECKED
from ppwork.diagnosis.runs import diagnose
from ppwork.records.flight import read_flight
from ppwork.records.pulse import read_pulse

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.multiproc


def diagnosed(run_dir: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["diagnose", str(run_dir), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_stage_that_raises_is_shown_by_file_line_and_source_first_of_all(tmp_path):
    plan = toy(verify=False, timeout_s=30.0, stage1="toy_stages:RaisesOn", options={"group_rank": 1})
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    text = str(run.failure)
    lines = text.splitlines()
    assert "toy_stages.py:" in lines[0]
    assert lines[0].endswith(", in step")
    assert lines[1] == """    raise ZeroDivisionError("the stage's own bug")"""
    assert lines[2].startswith("Rank 2 (follower) failed first: StageError")
    spoke = [int(line.split()[2]) for line in lines if line.startswith("  then rank")]
    assert spoke == [1, 0]
    assert "(last: generate, call 2, chunk 2)" in text
    assert lines[-2].startswith("  where: rank=2 role=follower call_id=2 chunk_index=2")
    assert lines[-1].startswith("  check first: ")
    # The same later, from the folder alone, as text and as JSON.
    assert diagnosed(run.run_dir).strip() == text
    found = json.loads(diagnosed(run.run_dir, "--json"))
    assert found["cause"]["rank"] == 2
    assert found["cause"]["source"] in lines[0]
    assert {record["rank"] for record in found["others"]} == set(spoke)
    # The leader was in a sum of tp_pg that the follower never came to.
    leader, follower = (read_flight(run.run_dir, rank).at()["tp_pg"].number for rank in (1, 2))
    assert leader == follower + 1
    assert "flight recorder" not in text  # the rank's own error says why it did not come


def test_a_run_past_its_limit_says_who_waits_for_whom_and_shows_the_line_that_holds_it_up(
    tmp_path, monkeypatch
):
    mark = tmp_path / "it spins"

    def monotonic() -> float:
        """The launcher's clock: its limit passes once the follower loops and the leader waits for it."""
        leader = read_pulse(tmp_path / "run", 1) if mark.exists() else None
        waits = (
            leader is not None and leader.ids.get("chunk_index") == 2 and leader.doing.startswith("generate")
        )
        return time.monotonic() + (1e6 if waits else 0.0)

    monkeypatch.setattr("ppwork.launcher.torchrun.time", SimpleNamespace(monotonic=monotonic))
    options = {"group_rank": 1, "mark": str(mark)}
    plan = toy(verify=False, timeout_s=120.0, stage1="stuck_stages:Spins", options=options)
    run = pp.launch(plan, out=tmp_path / "run", check=False, limit_s=1e5)
    assert run.exit_code == 124
    found = diagnose(run.run_dir)
    assert found.cause.error_type == "PastLimit"
    assert found.cause.where["rank"] == 2
    assert "stuck_stages.py:" in found.text.splitlines()[0]
    assert "2 of 6 chunks had been emitted" in found.text
    assert {wait.rank: wait.waits_for for wait in found.waits}[0] == (1,)
    assert "rank 0 waits for rank 1: result of call 2 on up_pg" in found.text
    assert "step of call 2" in found.check_first
    assert str(found) == str(run.failure)


def test_a_run_that_did_not_fail_is_not_explained_away(tmp_path):
    run = pp.launch(toy(verify=False), out=tmp_path / "run")
    open_question = f"  not known: {NOT_COMPARED}{BY_VERIFY}"
    assert diagnosed(run.run_dir) == (
        f"Nothing failed: the run emitted 6 chunks{UNCHECKED}.\n{open_question}\n"
    )
