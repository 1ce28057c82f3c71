"""The plan of a run whose stages only take time: they show a pipeline without a model."""

from __future__ import annotations

from ppwork.errors import PlanError
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, Plan
from ppwork.protocol.plan import DAY_S

SYNTHETIC_CHUNKS = 32


def synthetic(
    plan: Plan,
    *,
    encode_ms: float,
    decode_ms: float,
    stage1_ms: float,
    payload_mb: float,
    jitter: float = 0.0,
) -> Plan:
    """Return the plan with stages that compute nothing and only take the given times.

    Args:
        plan: The plan with the other fields; if it sets no ``chunks``, there are ``SYNTHETIC_CHUNKS``.
        encode_ms: Milliseconds of rank 0 for a chunk, before the chunk leaves.
        decode_ms: Milliseconds of rank 0 for a chunk, after the result has arrived.
        stage1_ms: Milliseconds of the mesh for a chunk.
        payload_mb: MiB of a chunk, each way.
        jitter: Relative spread of the times, 0 to 1.

    Raises:
        PlanError: A time, the size or the spread is negative or too large.
    """
    options = {
        "encode_ms": encode_ms,
        "decode_ms": decode_ms,
        "stage1_ms": stage1_ms,
        "payload_mb": payload_mb,
        "jitter": jitter,
    }
    most = {"payload_mb": plan.max_message_bytes / (1 << 20), "jitter": 1.0}
    for name, value in options.items():
        if not 0 <= value <= most.get(name, 1000.0 * DAY_S):
            raise PlanError(
                f"The synthetic stages have {name} = {value}; they take times in ms, a size in MiB and a "
                f"spread, none of them negative. The most is {most.get(name, 1000.0 * DAY_S):g}.",
                check_first=f"{name}, such as {'0.2' if name == 'jitter' else '20.0'}",
            )
    return plan.replace(
        chunks=plan.chunks or SYNTHETIC_CHUNKS,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={**plan.options, **options},
    )
