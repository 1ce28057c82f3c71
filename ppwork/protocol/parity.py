"""Parity: the facts that all ranks must share before anything is sent, and the words for a difference.

Rule R5: whatever changes the sequence of collectives is in the plan or in the envelope. Some environment
variables change this sequence, too, so they are compared as well. No I/O here: ``groups`` does the exchange.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ppwork.errors import ParityError, named_ranks, ranks_by_value
from ppwork.protocol.plan import PipelinePlan
from ppwork.version import __version__

WIRE_KEYS = (
    "SCOPE_DIST_TIMEOUT_S",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS",
    "TORCH_GLOO_LAZY_INIT",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_NCCL_USE_COMM_NONBLOCKING",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "NCCL_RUNTIME_CONNECT",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
)
"""Variables that change a rank's calls or their order: DETAIL adds collectives, others order launches."""
SUM_KEYS = (
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CTA_POLICY",
    "NCCL_CUMEM_ENABLE",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
)
"""Variables that choose how NCCL connects and sums; all ranks of a group must choose alike."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
NUMBER_KEYS = (
    THREADS_VARIABLE,
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Variables that change how a rank rounds; if they differ, replicas of one tensor drift apart."""
ENVIRONMENT_KEYS = (*WIRE_KEYS, *SUM_KEYS, *NUMBER_KEYS)
"""Variables that are compared at start-up; unset is a value too. Stages add their own (``digests``)."""
MOST_SPELT_OUT = 6
"""Most differing keys that an error spells out; if a whole model differs, the first few say enough."""


def facts_of(plan: PipelinePlan, environment: Mapping[str, str], **others: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON type
    """Collect one rank's facts, flat: ``plan.mesh_size``, ``env.OMP_NUM_THREADS``, ``version.torch``."""
    facts: dict[str, Any] = {"plan digest": plan.digest}
    facts.update({f"plan.{key}": value for key, value in plan.to_dict().items()})
    facts.update({f"env.{key}": environment.get(key) for key in ENVIRONMENT_KEYS})
    facts["version.ppwork"] = __version__
    facts["version.python"] = ".".join(platform.python_version_tuple()[:2])
    facts.update(others)
    return facts


def encode_facts(facts: Any) -> bytes:  # noqa: ANN401  any JSON type
    """Encode facts, or one fact, for the exchange: the bytes are equal exactly if the facts are."""
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
            raises it, with the same text.
    """
    differing = differing_keys(dict(enumerate(facts_by_rank)))
    # The digest differs whenever a field does; it is worth naming only when no other key differs.
    named = [pair for pair in differing if pair[0] != "plan digest"] or differing
    if named:
        check_first = f"set {named[0][0]} to one value on every rank; nothing has been computed"
        if named[0][0] == f"env.{THREADS_VARIABLE}":
            check_first = (
                f"export {THREADS_VARIABLE}=1 on every host: torchrun does so where it has several ranks"
            )
        raise ParityError(
            f"The ranks were started differently: {spelt_out(named)}.",
            where={"group": "world_pg"},
            check_first=check_first,
        )


def differing_keys(facts_by_rank: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each key whose value is not the same on all ranks, with its values and their ranks."""
    differing = []
    for key in sorted({key for facts in facts_by_rank.values() for key in facts}):
        values = {
            rank: encode_facts(facts[key]).decode() if key in facts else "(absent)"
            for rank, facts in facts_by_rank.items()
        }
        groups = ranks_by_value(values)
        if len(groups) > 1:
            sides = "; ".join(f"{value} on {named_ranks(ranks)}" for value, ranks in groups.items())
            differing.append((key, sides))
    return differing


def spelt_out(differing: Sequence[tuple[str, str]]) -> str:
    """Return the first ``MOST_SPELT_OUT`` differing keys in words."""
    spelt = ", and ".join(f"{key} was {sides}" for key, sides in differing[:MOST_SPELT_OUT])
    rest = len(differing) - MOST_SPELT_OUT
    return f"{spelt}, and {rest} more keys differed" if rest > 0 else spelt
