"""What every rank must have in common before anything is sent, and how a difference is said.

Rule R5: whatever changes the sequence of collectives is in the plan or in the envelope. The environment can
change it too, so the variables that do are compared as well. Pure: the exchange itself is in ``groups``.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import ParityError, named_ranks
from ppwork.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ppwork.plan import Plan

WIRE_KEYS = (
    "SCOPE_DIST_TIMEOUT_S",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_GLOO_LAZY_INIT",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_USE_COMM_NONBLOCKING",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
)
"""They change who calls what and when: DETAIL adds collectives, others order connections or launches."""
SUM_KEYS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_CTA_POLICY")
"""They choose how NCCL sums, which all ranks of a group must choose alike."""
NUMBER_KEYS = (
    "OMP_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""They change how a rank rounds, so that replicas of one tensor drift apart."""
ENVIRONMENT_KEYS = (*WIRE_KEYS, *SUM_KEYS, *NUMBER_KEYS)
"""Variables that are compared at start-up; unset is a value too. Stages add their own: ``loaded_facts``."""
MOST_SAID = 6
"""Differing keys that an error spells out; of a whole model that differs, the first few say enough."""


def facts_of(plan: Plan, environment: Mapping[str, str], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Collect one rank's facts, flat: ``plan.mesh_size``, ``env.OMP_NUM_THREADS``, ``version.torch``."""
    facts: dict[str, Any] = {"plan digest": plan.digest}
    facts.update({f"plan.{key}": value for key, value in plan.to_dict().items()})
    facts.update({f"env.{key}": environment.get(key) for key in ENVIRONMENT_KEYS})
    facts["version.ppwork"] = __version__
    facts["version.python"] = ".".join(platform.python_version_tuple()[:2])
    facts.update(more)
    return facts


def loaded_facts(
    environment: Mapping[str, str], names: Iterable[str], weights: Mapping[str, str]
) -> dict[str, Any]:
    """Collect what a mesh rank knows only once its stage is there.

    Args:
        environment: Of this process.
        names: Variables on which the stage's collectives depend (its ``parity_environment``).
        weights: Digest by name of each tensor that must be the same on all mesh ranks.
    """
    return {
        **{f"env.{name}": environment.get(name) for name in names},
        **{f"weight.{name}": digest for name, digest in weights.items()},
    }


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
        ParityError: At least one key differs; names the keys, their values and their ranks. Every rank
            computes the same text from the same facts.
    """
    differing = _differing(dict(enumerate(facts_by_rank)))
    # The digest differs whenever a field does; it is the news only when nothing else explains it.
    named = [pair for pair in differing if pair[0] != "plan digest"] or differing
    if named:
        raise ParityError(
            f"The ranks were started differently: {_said(named)}.",
            where={"group": "world_pg"},
            check_first=f"set {named[0][0]} to one value on every rank; nothing has been computed",
        )


def check_loaded(facts_by_rank: Mapping[int, Mapping[str, Any]]) -> None:
    """Compare the ``loaded_facts`` of the mesh ranks.

    Args:
        facts_by_rank: Global rank to its facts; mesh ranks only.

    Raises:
        ParityError: As ``check_parity``.
    """
    named = _differing(facts_by_rank)
    if named:
        raise ParityError(
            f"The stages of the mesh were loaded differently: {_said(named)}.",
            where={"group": "tp_pg"},
            check_first="do these ranks read the same files, in one environment? nothing has been computed",
        )


def _differing(facts_by_rank: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
    differing = []
    for key in sorted({key for facts in facts_by_rank.values() for key in facts}):
        ranks_by_value: dict[str, list[int]] = {}
        for rank, facts in facts_by_rank.items():
            value = (
                msgspec.json.encode(facts[key], order="deterministic").decode()
                if key in facts
                else "(absent)"
            )
            ranks_by_value.setdefault(value, []).append(rank)
        if len(ranks_by_value) > 1:
            said = "; ".join(f"{value} on {named_ranks(ranks)}" for value, ranks in ranks_by_value.items())
            differing.append((key, said))
    return differing


def _said(named: Sequence[tuple[str, str]]) -> str:
    spelt = ", and ".join(f"{key} was {said}" for key, said in named[:MOST_SAID])
    more = len(named) - MOST_SAID
    return f"{spelt}, and {more} more keys differed" if more > 0 else spelt
