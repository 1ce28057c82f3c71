"""``--on``: hosts are named, called, and refused before a run has used its folder."""

from __future__ import annotations

import json
import shlex

import pytest
from spoken_nodes import speaking
from typer.testing import CliRunner

import ppwork as pp
from ppwork.cli.main import app
from ppwork.errors import PlanError, UnavailableError
from ppwork.process import HOST_LOST

PLAN = pp.synthetic(
    pp.Plan(mesh_size=3, chunks=2, backend="gloo"), encode_ms=1, decode_ms=1, stage1_ms=1, payload_mb=0.1
)


def said(*arguments) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_torchrun_prints_a_static_command_for_each_host(tmp_path):
    PLAN.save(tmp_path)
    lines = said("torchrun", tmp_path, "--on", "ssh:me@gpu-a,gpu-b", "--interface", "ib0").splitlines()
    assert lines[1].startswith("export GLOO_SOCKET_IFNAME=ib0 ")
    commands = [line for line in lines if line.startswith("torchrun")]
    assert [line.split(" -m ")[0] for line in commands] == [
        f"torchrun --nnodes 2 --node-rank {node} --nproc-per-node {count} --master-addr gpu-a "
        "--master-port 29400 --max-restarts 0"
        for node, count in ((0, 1), (1, 3))
    ]
    with pytest.raises(PlanError, match="not known"):
        said("torchrun", tmp_path, "--on", "slurm:2")


def test_torchrun_prints_what_a_shell_takes_as_it_stands_from_any_folder(tmp_path, monkeypatch):
    """Two torchruns of this machine meet on its loopback; the folder is whole, an interface is quoted."""
    (folder := tmp_path / "a run").mkdir()
    PLAN.save(folder)
    monkeypatch.chdir(tmp_path)
    lines = said("torchrun", "a run", "--on", "local:2").splitlines()
    assert lines[1].startswith("export GLOO_SOCKET_IFNAME=lo ")
    commands = [shlex.split(line) for line in lines if line.startswith("torchrun")]
    assert [(words[words.index("--master-addr") + 1], words[-1]) for words in commands] == [
        ("127.0.0.1", str(folder))
    ] * 2
    lines = said("torchrun", folder, "--on", "local:2", "--interface", "$(touch x)").splitlines()
    assert "GLOO_SOCKET_IFNAME='$(touch x)' " in lines[1]


@pytest.mark.processes
def test_doctor_calls_real_nodes_and_shows_what_they_say():
    """No rank: two nodes of this machine, which know each other by a secret."""
    facts = json.loads(said("doctor", "--on", "local:2", "--json"))
    assert facts["versions"]["ppwork"] == pp.__version__
    assert [host["network"] for host in facts["hosts"]] == ["127.0.0.1 (lo)"] * 2
    assert [host["host"] for host in facts["hosts"]] == ["node0", "node1"]


def test_ranks_without_hosts_and_plans_of_one_process_are_refused():
    with pytest.raises(PlanError, match="--ranks says"):
        said("run", "--ranks", "1,2")
    for plan in (pp.Plan(mesh_size=1, one_process=True), pp.Plan(mesh_size=1, share_gpu=True)):
        with pytest.raises(PlanError, match="over hosts"):
            pp.launch(plan, on=pp.Hosts("a"))


@pytest.mark.processes
def test_a_host_that_is_not_ready_leaves_the_folder_for_the_next_try(tmp_path):
    python = speaking(tmp_path, 'up_to_start(missing=("/clip.mp4",))')
    with pytest.raises(UnavailableError, match=r"has no /clip\.mp4"):
        pp.launch(PLAN, on=pp.Command("", hosts=["a", "b"], python=python), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    python = speaking(tmp_path, "up_to_start(); sys.exit(9)")
    places = pp.Command("", hosts=["a", "b"], python=python)
    run = pp.launch(PLAN, on=places, out=tmp_path / "run", check=False)
    assert run.exit_code == HOST_LOST
    assert "lost its node (exit code 9)" in run.failure.headline
    assert pp.diagnose(run.run_dir).cause.error_type == "HostLost"
