"""Where hosts are: the commands that start nodes, the ranks that each gets, and what is refused."""

from __future__ import annotations

import shlex
import sys

import pytest

import ppwork as pp
from ppwork.errors import PlanError
from ppwork.launcher.nodes.places import places_of


def test_ssh_asks_nobody_and_knows_no_stranger():
    (first, nodes), (second, _) = pp.Hosts("gpu-a", "me@gpu-b", python="/opt/my env/python").commands()
    assert nodes == (0,)
    assert "BatchMode=yes" in first
    assert "StrictHostKeyChecking=yes" in first
    assert first[-3:-1] == ["--", "gpu-a"]
    assert shlex.split(second[-1]) == ["/opt/my env/python", "-P", "-m", "ppwork", "node", "1"]


def test_any_command_is_put_before_the_node_and_srun_leads_to_all():
    ours = [sys.executable, "-P", "-m", "ppwork", "node"]
    kubectl = pp.Command("kubectl exec -i {host} -- ", hosts=["p-0", "p-1"])
    assert kubectl.commands()[1] == (["kubectl", "exec", "-i", "p-1", "--", *ours, "1"], (1,))
    assert pp.Command("", hosts=["a"]).commands() == [([*ours, "0"], (0,))]
    ((srun, nodes),) = pp.Slurm(2, partition="gpu", time="0:10:00").commands()
    asked = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--partition=gpu", "--time=0:10:00"]
    assert (srun, nodes) == (["srun", *asked, *ours, "slurm"], (0, 1))


@pytest.mark.parametrize(
    ("hosts", "ranks", "world_size", "placed"),
    [
        (1, None, 4, (4,)),
        (2, None, 4, (1, 3)),
        (3, None, 6, (1, 3, 2)),
        (2, (2, 2), 4, (2, 2)),
        (2, (1, 2), 4, "rank 0 counts"),
        (4, None, 3, "fewer hosts"),
    ],
)
def test_rank_0_is_on_the_first_host_and_the_mesh_on_the_others(hosts, ranks, world_size, placed):
    places = pp.Command("", [f"h{number}" for number in range(hosts)], ranks=ranks)
    if isinstance(placed, tuple):
        assert places.placed(world_size) == placed
    else:
        with pytest.raises(PlanError, match=placed):
            places.placed(world_size)


@pytest.mark.parametrize(
    ("made", "arguments", "ranks"),
    [
        (pp.Hosts, [], None),
        (pp.Hosts, ["-oProxyCommand=x"], None),
        (pp.Hosts, ["a b"], None),
        (pp.Hosts, ["a;b"], None),
        (pp.Hosts, ["a"], (1, 2)),
        (pp.Hosts, ["a", "b"], (0, 3)),
        (places_of, ["gpu-a,gpu-b"], ""),
        (places_of, ["ssh:"], ""),
        (places_of, ["slurm:two"], ""),
        (places_of, ["ssh:a,b"], "1,x"),
    ],
)
def test_what_is_no_host_or_fits_none_is_refused(made, arguments, ranks):
    with pytest.raises(PlanError):
        made(*arguments, ranks=ranks)


def test_the_command_line_names_them():
    assert places_of("ssh:a,b", "1,2") == pp.Hosts("a", "b", ranks=(1, 2))
    assert places_of("slurm:2") == pp.Slurm(2)
    assert places_of("local:2").same_host
