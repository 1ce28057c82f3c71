"""All claims by id, in the order of the themes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.claims import (
    checkpoints,
    collectives,
    debug_tools,
    debugging,
    elastic,
    failure_and_timeouts,
    groups_of_ranks,
    handles,
    meshes,
    messages,
    nccl_ranks,
    objects,
    pipelines,
    point_to_point,
    records,
    sharded,
    starting_up,
    stores,
    versions_and_names,
)
from ppwork.errors import PlanError

if TYPE_CHECKING:
    from ppwork.claims.claim import Claim

GROUPS_OF_CLAIMS = (
    point_to_point,
    handles,
    messages,
    groups_of_ranks,
    collectives,
    failure_and_timeouts,
    debugging,
    debug_tools,
    records,
    objects,
    starting_up,
    stores,
    versions_and_names,
    meshes,
    elastic,
    pipelines,
    sharded,
    checkpoints,
    nccl_ranks,
)

CLAIMS: dict[str, Claim] = {claim.id: claim for group in GROUPS_OF_CLAIMS for claim in group.CLAIMS}
"""Every claim, by id."""


def claim_of(claim_id: str) -> Claim:
    """Return a claim by its id.

    Raises:
        PlanError: There is none of this id.
    """
    if claim_id.upper() not in CLAIMS:
        raise PlanError(f"There is no claim {claim_id!r}.", check_first=f"one of {', '.join(CLAIMS)}")
    return CLAIMS[claim_id.upper()]
