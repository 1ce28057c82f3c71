"""What every rank must have in common before anything is sent, and how a difference is said.

Rule R5: whatever changes the sequence of collectives is in the plan or in the envelope. The environment can
change it too, so the variables that do are compared as well. Pure: the exchange itself is in ``groups``.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import ParityError
from ppwork.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ppwork.plan import Plan

ENVIRONMENT_KEYS = (
    "OMP_NUM_THREADS",
    "SCOPE_DIST_TIMEOUT_S",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_GLOO_LAZY_INIT",
    "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_ALGO",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "NCCL_PROTO",
)
"""Variables that change behaviour on the wire or the numbers; unset is a value too."""


def facts_of(plan: Plan, environment: Mapping[str, str], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Collect one rank's facts, flat: ``plan.mesh_size``, ``env.OMP_NUM_THREADS``, ``version.torch``."""
    facts: dict[str, Any] = {"plan digest": plan.digest}
    facts.update({f"plan.{key}": value for key, value in plan.to_dict().items()})
    facts.update({f"env.{key}": environment.get(key) for key in ENVIRONMENT_KEYS})
    facts["version.ppwork"] = __version__
    facts["version.python"] = ".".join(platform.python_version_tuple()[:2])
    facts.update(more)
    return facts


def encode_facts(facts: Mapping[str, Any]) -> bytes:
    """Return the facts as they are exchanged."""
    return msgspec.json.encode(facts, order="deterministic")


def decode_facts(raw: bytes) -> dict[str, Any]:
    """Read another rank's facts."""
    return msgspec.json.decode(raw, type=dict[str, Any])


def check_parity(facts_by_rank: Sequence[Mapping[str, Any]]) -> None:
    """Compare the facts of all ranks.

    Args:
        facts_by_rank: Index is the rank.

    Raises:
        ParityError: At least one key differs; names every such key, its values and their ranks. Every rank
            computes the same text from the same facts.
    """
    keys = sorted({key for facts in facts_by_rank for key in facts})
    differing = []
    for key in keys:
        ranks_by_value: dict[str, list[int]] = {}
        for rank, facts in enumerate(facts_by_rank):
            value = (
                msgspec.json.encode(facts[key], order="deterministic").decode()
                if key in facts
                else "(absent)"
            )
            ranks_by_value.setdefault(value, []).append(rank)
        if len(ranks_by_value) > 1:
            said = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in ranks_by_value.items())
            differing.append((key, said))
    # The digest differs whenever a field does; it is the news only when nothing else explains it.
    named = [pair for pair in differing if pair[0] != "plan digest"] or differing
    if named:
        raise ParityError(
            "The ranks were started differently: "
            + ", and ".join(f"{key} was {said}" for key, said in named)
            + ".",
            where={"group": "world_pg"},
            check_first=f"set {named[0][0]} to one value on every rank; nothing has been computed",
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
