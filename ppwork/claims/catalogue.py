"""All claims by id, in the order of the themes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

from ppwork.claims.claim import Claim
from ppwork.errors import PlanError

THEMES = {
    "Point-to-point": "p2p handles messages",
    "Groups": "groups meshes",
    "Collectives": "collectives",
    "Failure and timeouts": "failure",
    "Debugging": "debug debug_tools records",
    "Objects and pickle": "objects",
    "Start-up and stores": "startup stores launching",
    "Versions and names": "names builds",
    "Above torch.distributed": "pipelines sharded checkpoints",
    "": "elastic nccl_ranks",
}
"""The files in ``themes`` with the claims of each; those of the last are of several, and say of which."""


def _claims() -> Iterator[Claim]:
    for theme, files in THEMES.items():
        for file in files.split():
            for claim in import_module(f"ppwork.claims.themes.{file}").CLAIMS:
                yield replace(claim, theme=claim.theme or theme)


CLAIMS = {claim.id: claim for claim in _claims()}
"""Every claim, by id."""


def claim_of(claim_id: str) -> Claim:
    """Return a claim by its id.

    Raises:
        PlanError: There is none of this id.
    """
    if claim_id.upper() not in CLAIMS:
        raise PlanError(f"There is no claim {claim_id!r}.", check_first=f"one of {', '.join(CLAIMS)}")
    return CLAIMS[claim_id.upper()]
