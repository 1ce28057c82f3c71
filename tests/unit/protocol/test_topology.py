"""Who is who, by arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppwork.protocol.topology import GROUP_ORDER, LEADER_RANK, STAGE0_RANK, Role, Topology, other_end


@given(st.integers(1, 64))
def test_topology_has_one_stage0_one_leader_and_followers(mesh_size):
    topology = Topology(mesh_size)
    roles = [topology.role(rank) for rank in range(topology.world_size)]
    assert roles == [Role.STAGE0, Role.LEADER] + [Role.FOLLOWER] * (mesh_size - 1)
    assert topology.world_size == mesh_size + 1


@given(st.integers(1, 64))
def test_stage0_is_in_the_links_and_never_in_the_mesh(mesh_size):
    """Stage 0 is outside the mesh; the links are 2-rank groups."""
    topology = Topology(mesh_size)
    assert topology.ranks("world_pg") == tuple(range(mesh_size + 1))
    for group in ("mesh_pg", "tp_pg"):
        assert topology.ranks(group) == topology.mesh_ranks == tuple(range(1, mesh_size + 1))
    for group in ("down_pg", "up_pg"):
        assert topology.ranks(group) == (STAGE0_RANK, LEADER_RANK)
        assert tuple(map(other_end, topology.ranks(group))) == topology.ranks(group)[::-1]


def test_group_order_names_every_group_once():
    """R6: all groups, in one order."""
    assert len(set(GROUP_ORDER)) == len(GROUP_ORDER) == 4
    assert all(Topology(3).ranks(group) for group in GROUP_ORDER)


@pytest.mark.parametrize("rank", [-1, 3])
def test_role_refuses_a_rank_outside_the_world(rank):
    with pytest.raises(ValueError, match=f"rank {rank} is not in a world of 3"):
        Topology(2).role(rank)


def test_ranks_refuses_an_unknown_group():
    with pytest.raises(KeyError, match="ep_pg"):
        Topology(2).ranks("ep_pg")


def test_topology_prints_every_rank_and_group():
    text = str(Topology(2))
    assert "rank 0: stage0  rank 1: leader  rank 2: follower" in text
    assert "world_pg: [0, 1, 2]" in text
    assert all(f"{group}: " in text for group in GROUP_ORDER)
