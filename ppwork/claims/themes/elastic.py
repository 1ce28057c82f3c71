"""Claims about a second start: ranks that torchrun starts again, and groups that were ended."""

from __future__ import annotations

from ppwork.claims.claim import NOTES, Claim, ClaimFinding, Program, Seen, holds

UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def _empty_store(seen: Seen) -> ClaimFinding:
    shared, unshared = seen["agent's store"][0].notes, seen["a store of its own"][0].notes
    if (shared["plain_0"], shared["prefixed_0"]) != (1, 1):
        raise ValueError(f"the first attempt was not the first: {shared}")
    text = (
        "A rank that counts itself in the store of `env://`, fails, and is started again by torchrun's "
        f"agent, counted {shared['plain_1']} then, and {shared['prefixed_1']} behind a prefix with the "
        f"number of the attempt; with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 it counted {unshared['plain_1']}."
    )
    return holds(text, when=shared["plain_1"] == 1)


def _ended(seen: Seen) -> ClaimFinding:
    notes = seen["ended"][0].notes
    parts = []
    for name in ("shutdown", "abort"):
        if f"{name}_returned" not in notes:
            parts.append(f"`{name}` raised {notes[f'{name}_error']!r}")
        elif f"{name}_total" in notes:
            parts.append(f"after `{name}` an all-reduce in the group still gave {notes[f'{name}_total']:g}")
        else:
            parts.append(f"after `{name}` an all-reduce in the group raised {notes[f'{name}_error']!r}")
    text = f"On a group of two: {'; '.join(parts)}."
    alive = any(f"{name}_total" in notes or f"{name}_returned" not in notes for name in ("shutdown", "abort"))
    return holds(text, when=not alive)


CLAIMS = (
    Claim(
        id="A10",
        statement="A rank that torchrun starts again finds a new store, so its keys need no prefix.",
        source="source of torch.distributed.rendezvous: a new TCPStore for every retry",
        programs={
            "agent's store": Program("elastic:restarted", ranks=1, timeout_s=0, limit_s=60.0),
            "a store of its own": Program(
                "elastic:restarted", ranks=1, timeout_s=0, limit_s=60.0, environment=UNSHARED
            ),
        },
        judge=_empty_store,
        advice="Put TORCHELASTIC_RESTART_COUNT into the prefix of every key: an old `ready` lets a rank "
        "through, and an old address sends it to a dead peer. Or do not restart ranks, but the run.",
        theme="Start-up and stores",
    ),
    Claim(
        id="R22",
        statement="`shutdown` and `abort` are there for a group of any backend, and end it.",
        source=f"{NOTES}, `abort` and `shutdown` in `Backend` and `ProcessGroup`, #148798",
        programs={"ended": Program("elastic:shut_down")},
        judge=_ended,
        advice="Count on neither to stop a rank that waits in gloo: the timeout of its group does, or the "
        "end of its peer.",
        theme="Failure and timeouts",
    ),
)
