"""The first thing that passes over each edge: so that no chunk pays for a connection, and no stranger passes.

gloo lets anybody in who reaches a rank's port and guesses a small number; who comes before the peer takes its
place. So each edge is begun with a token that only the ranks of this run can make, from a secret in the run's
store. Our launcher's store is a file that no other user can read; torchrun's own is open to all who reach it.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ppwork.errors import RemoteProtocolError
from ppwork.peers import naming_peers
from ppwork.topology import LEADER_GROUP_RANK, LEADER_RANK, Role

if TYPE_CHECKING:
    from ppwork.groups import Groups

TOKEN_BYTES = 64


def new_secret() -> bytes:
    """Return a secret for one run, as text."""
    return secrets.token_hex(32).encode()


def token(secret: bytes, group: str, rank: int) -> bytes:
    """Return the ``TOKEN_BYTES`` that a rank proves itself by in this group."""
    # One for each edge: who is shown a token cannot use it on another.
    return hashlib.blake2b(f"{group} {rank}".encode(), key=secret, digest_size=TOKEN_BYTES).digest()


def warm_up(groups: Groups, secret: bytes) -> None:
    """Use every edge once, in one order everywhere.

    Args:
        groups: All of them, new.
        secret: The run's, which the tokens are made of.

    Raises:
        RemoteProtocolError: What came was not made by a rank of this run (the rank that it came to).
        PeerLostError, PeerTimeoutError: A peer is gone or silent (its peers).

    Collective:
        ``down_pg``, ``up_pg`` (ranks 0 and 1), then ``mesh_pg``, ``tp_pg`` (the mesh).
    """
    devices = [torch.device("cpu")] + ([groups.device] if groups.device.type == "cuda" else [])
    for device in devices:

        def of(name: str, rank: int, device: torch.device = device) -> torch.Tensor:
            return torch.tensor(list(token(secret, name, rank)), dtype=torch.uint8, device=device)

        for name, sender in (("down_pg", 0), ("up_pg", LEADER_RANK)):
            if groups.rank not in groups.topology.ranks(name):
                continue
            with naming_peers("warm-up", rank=groups.rank, group=name, peer=1 - groups.rank):
                if groups.rank == sender:
                    dist.send(of(name, sender), group=groups[name], group_dst=1 - groups.rank)
                else:
                    came = torch.zeros_like(of(name, sender))
                    dist.recv(came, group=groups[name], group_src=1 - groups.rank)
                    _prove(groups, name, came, of(name, sender), peer=sender)
        if groups.role is not Role.STAGE0 and groups.topology.mesh_size > 1:
            with naming_peers("warm-up", rank=groups.rank, group="mesh_pg"):
                came = of("mesh_pg", groups.rank)  # the leader's own is the one that goes round
                dist.broadcast(came, group=groups["mesh_pg"], group_src=LEADER_GROUP_RANK)
                _prove(groups, "mesh_pg", came, of("mesh_pg", LEADER_RANK), peer=LEADER_RANK)
            with naming_peers("warm-up", rank=groups.rank, group="tp_pg"):
                came = of("tp_pg", groups.rank).float()
                dist.all_reduce(came, group=groups["tp_pg"])
                every = [of("tp_pg", rank).float() for rank in groups.topology.mesh_ranks]
                _prove(groups, "tp_pg", came, torch.stack(every).sum(0))
    if groups.device.type == "cuda":
        torch.cuda.synchronize(groups.device)


def _prove(groups: Groups, name: str, came: torch.Tensor, due: torch.Tensor, peer: int | None = None) -> None:
    if not torch.equal(came, due):
        raise RemoteProtocolError(
            f"What came over {name} at start-up was not made by a rank of this run.",
            where={"rank": groups.rank, "role": str(groups.role), "group": name, "peer": peer},
            check_first="does another program on this host connect to the ports of the ranks?",
        )
