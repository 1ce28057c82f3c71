"""All claims by id, in the order of the themes."""

from __future__ import annotations

from ppwork.claims.claim import Claim
from ppwork.claims.themes import (
    builds,
    checkpoints,
    collectives,
    debug,
    debug_tools,
    elastic,
    failure,
    groups,
    handles,
    launching,
    meshes,
    messages,
    names,
    nccl_ranks,
    objects,
    p2p,
    pipelines,
    records,
    sharded,
    startup,
    stores,
)
from ppwork.errors import PlanError

THEMES = (
    p2p,
    handles,
    messages,
    groups,
    collectives,
    failure,
    debug,
    debug_tools,
    records,
    objects,
    startup,
    stores,
    launching,
    names,
    builds,
    meshes,
    elastic,
    pipelines,
    sharded,
    checkpoints,
    nccl_ranks,
)

CLAIMS: dict[str, Claim] = {claim.id: claim for theme in THEMES for claim in theme.CLAIMS}
"""Every claim, by id."""


def claim_of(claim_id: str) -> Claim:
    """Return a claim by its id.

    Raises:
        PlanError: There is none of this id.
    """
    if claim_id.upper() not in CLAIMS:
        raise PlanError(f"There is no claim {claim_id!r}.", check_first=f"one of {', '.join(CLAIMS)}")
    return CLAIMS[claim_id.upper()]
