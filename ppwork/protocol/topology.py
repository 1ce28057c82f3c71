"""The topology: the role of each rank and the ranks of each group, computed from the mesh size alone.

Arithmetic only: no process, no torch. ``groups`` creates the live process groups from the topology.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The part that a rank plays."""

    STAGE0 = "stage0"
    """Rank 0: source, encode, decode, control. Outside the mesh."""
    LEADER = "leader"
    """Rank 1: the mesh rank that talks to rank 0."""
    FOLLOWER = "follower"
    """The other mesh ranks."""


STAGE0_RANK = 0
LEADER_RANK = 1
LEADER_GROUP_RANK = 0

GROUP_ORDER = ("mesh_pg", "tp_pg", "down_pg", "up_pg")
"""The groups besides ``world_pg``, in the one order in which every rank creates them (rule R6)."""


def other_end(rank: int) -> int:
    """Return the peer of rank 0 or of the leader on ``down_pg`` and ``up_pg``."""
    return LEADER_RANK if rank == STAGE0_RANK else STAGE0_RANK


@dataclass(frozen=True)
class Topology:
    """Rank 0 in front of a mesh of ``mesh_size`` ranks.

    >>> Topology(2).role(2)
    <Role.FOLLOWER: 'follower'>
    >>> Topology(2).ranks("down_pg")
    (0, 1)
    """

    mesh_size: int

    @property
    def world_size(self) -> int:
        """Rank 0 and the mesh."""
        return self.mesh_size + 1

    @property
    def mesh_ranks(self) -> tuple[int, ...]:
        """Global ranks of the mesh, leader first."""
        return tuple(range(LEADER_RANK, self.world_size))

    def role(self, rank: int) -> Role:
        """Return the role of a global rank.

        Raises:
            ValueError: ``rank`` is not in ``0 .. world_size - 1``.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in a world of {self.world_size}")
        if rank == STAGE0_RANK:
            return Role.STAGE0
        return Role.LEADER if rank == LEADER_RANK else Role.FOLLOWER

    def ranks(self, group: str) -> tuple[int, ...]:
        """Return the global ranks of a group, in group-rank order.

        Raises:
            KeyError: ``group`` is neither ``world_pg`` nor in ``GROUP_ORDER``.
        """
        return {
            "world_pg": tuple(range(self.world_size)),
            "mesh_pg": self.mesh_ranks,
            "tp_pg": self.mesh_ranks,
            "down_pg": (STAGE0_RANK, LEADER_RANK),
            "up_pg": (STAGE0_RANK, LEADER_RANK),
        }[group]

    def links(self, rank: int) -> tuple[str, ...]:
        """Return the groups on which a rank sends or receives messages, in the order of a chunk's life.

        >>> Topology(2).links(0), Topology(2).links(2)
        (('down_pg', 'up_pg'), ('mesh_pg',))
        """
        return tuple(name for name in ("down_pg", "mesh_pg", "up_pg") if rank in self.ranks(name))

    def __str__(self) -> str:
        roles = "  ".join(f"rank {r}: {self.role(r)}" for r in range(self.world_size))
        groups = "  ".join(f"{g}: {list(self.ranks(g))}" for g in ("world_pg", *GROUP_ORDER))
        return f"{roles}\n{groups}"
