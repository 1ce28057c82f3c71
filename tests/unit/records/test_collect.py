"""The folders of several hosts as one: nothing is overwritten, mixed up, or taken from outside of them."""

from __future__ import annotations

import pytest

from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.records.collect import collect, home_of, torchrun_logs
from ppwork.records.run import TORCHRUN_LOG

PLAN = Plan(mesh_size=2, chunks=8)


@pytest.fixture
def hosts(tmp_path):
    """Two folders with a plan each, rank 0 in the first, ranks 1 and 2 in the second."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, ranks in zip(folders, [(0,), (1, 2)], strict=True):
        folder.mkdir()
        PLAN.save(folder)
        for rank in ranks:
            (folder / f"spans-rank{rank}.jsonl").write_text(f"of {rank}")
    return folders


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_rank_is_in_the_folder_that_comes_out_with_what_each_torchrun_printed(tmp_path, hosts):
    (hosts[0] / "torchrun.log").write_text("first")
    (hosts[1] / "torchrun.log").write_text("second")
    console = tmp_path / "third.log"
    console.write_text("third")
    out = collect(hosts, tmp_path / "out" / "run", [console])
    spans = [f"spans-rank{rank}.jsonl" for rank in range(3)]
    logs = ["torchrun-1.log", "torchrun-2.log", "torchrun.log"]
    assert names(out) == ["plan.json", *spans, *logs]
    assert [(out / name).read_text() for name in spans] == ["of 0", "of 1", "of 2"]
    assert [(out / name).read_text() for name in logs] == ["second", "third", "first"]
    assert Plan.load(out) == PLAN


def test_what_each_torchrun_printed_stays_in_the_order_of_the_hosts(tmp_path, hosts):
    """By their names alone ``torchrun-1.log`` comes before ``torchrun.log``, and ``-10`` before ``-2``."""
    of_hosts = {TORCHRUN_LOG: "0", **{f"torchrun-{number}.log": str(number) for number in range(1, 12)}}
    for name, text in of_hosts.items():
        (hosts[0] / name).write_text(text)
    (hosts[0] / "torchrun-old.log").write_text("of nobody")
    assert [path.name for path in torchrun_logs(hosts[0])] == [*of_hosts, "torchrun-old.log"]
    out = collect(hosts, tmp_path / "out")
    assert {name: (out / name).read_text() for name in of_hosts} == of_hosts


def test_a_folder_without_a_plan_comes_along_with_one_that_has_it(tmp_path, hosts):
    (hosts[1] / "plan.json").unlink()
    assert "spans-rank2.jsonl" in names(collect(hosts, tmp_path / "out"))
    (hosts[0] / "plan.json").unlink()
    with pytest.raises(PlanError, match=r"plan\.json"):
        collect(hosts, tmp_path / "other")


def test_runs_are_not_mixed(tmp_path, hosts):
    (hosts[0] / "spans-rank2.jsonl").write_text("of a run before")
    with pytest.raises(PlanError, match="differ"):
        collect(hosts, tmp_path / "out")
    PLAN.replace(seed=7).save(hosts[1])
    with pytest.raises(PlanError, match="not of one run: their plans differ"):
        collect(hosts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path, hosts):
    with pytest.raises(PlanError, match="is not empty"):
        collect(hosts, hosts[0])
    assert names(hosts[0]) == ["plan.json", "spans-rank0.jsonl"]
    with pytest.raises(PlanError, match="cannot be copied"):
        collect([*hosts, tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(PlanError, match=r"nowhere\.log cannot be copied"):
        collect(hosts, tmp_path / "out", [tmp_path / "nowhere.log"])
    with pytest.raises(PlanError, match="None of the paths is a folder"):
        collect([], tmp_path / "out", [hosts[0] / "plan.json"])
    assert not (tmp_path / "out").exists()


def test_links_and_folders_stay_behind(tmp_path, hosts):
    """A folder may come from anybody: a link in it would bring a file of ours along."""
    (tmp_path / "secret").write_text("mine")
    (hosts[1] / "summary.json").symlink_to(tmp_path / "secret")
    (hosts[1] / "inner").mkdir()
    assert not {"summary.json", "inner"}.intersection(names(collect(hosts, tmp_path / "out")))


def test_home_of_a_rank_is_where_it_wrote_and_else_the_first(hosts):
    assert [home_of(hosts, rank).name for rank in range(4)] == ["a", "b", "b", "a"]
