"""Backend errors of a peer that is gone, turned into errors that name the peer.

gloo raises a bare ``RuntimeError`` that names a host and port at most, so its texts are matched here and
nowhere else. NCCL raises ``DistBackendError``, which is a ``RuntimeError`` as well. Errors that no peer
caused stay as they are: a CUDA error is this rank's own, and so is an NCCL system error, except a socket's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ppwork.errors import PeerLostError, PeerTimeoutError, PPWorkError, message_of

LOST_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "No route to host",
    "Broken pipe",
    "Socket closed",
    "remote process exited",
    "Pair is not connected",
    "ncclRemoteError",
    "NCCL communicator was aborted",
)
TIMEOUT_TEXTS = (
    "Timed out waiting",
    "timed out",
    "before timing out",
    "Timeout waiting for key",
    "Wait timeout",
    "wait timeout",
    "Application timeout caused pair closure",
)
"""The last one is gloo's for whatever else a rank had pending when its own wait passed the bound."""
SILENT_PEER_CHECK = (
    "`ppwork diagnose RUN` (`join(plan, run_dir=RUN)` keeps one): who waited for whom? A pause of rank 0 "
    "above timeout_s needs `NOT_YET` from encode, or `plane.heartbeat()`"
)
"""``check_first`` of every error that reports an expired bound."""


_NOISE = re.compile(
    r"\[/\S+\.cc:\d+\] | This is typically caused by.*$| \[(?:127\.[\d.]{5,11}|::1)\]:\d+",
    re.MULTILINE,
)


def without_noise(text: str) -> str:
    """Return a gloo message without its source position, its advice, and a port of this host."""
    return _NOISE.sub("", text)


def is_backends(error: RuntimeError) -> bool:
    """Say whether a backend raised this error: a data loader can report "timed out", too."""
    return type(error).__module__.startswith("torch.") or any(
        name in message_of(error) for name in ("gloo", "NCCL", "nccl")
    )


def as_peer_error(error: RuntimeError, what: str, **where: Any) -> PPWorkError | None:  # noqa: ANN401
    """Translate a backend's error, or return ``None`` if it is not about a peer."""
    text = without_noise(message_of(error))
    if "CUDA error" in text:  # "the launch timed out and was terminated"
        return None
    headline, _, below = text.partition("Last error:\n")  # below: NCCL's own words
    said = "; ".join(part.splitlines()[0] for part in (headline, below) if part) or type(error).__name__
    if any(phrase in text for phrase in LOST_TEXTS):
        return PeerLostError(
            f"The connection broke during {what}: {said}",
            where=where,
            check_first="the peer's log: it probably failed first, and this is only the symptom",
        )
    if any(phrase in text for phrase in TIMEOUT_TEXTS):
        return PeerTimeoutError(
            f"The peer stayed silent during {what}: {said}", where=where, check_first=SILENT_PEER_CHECK
        )
    return None


@contextmanager
def naming_peers(what: str, **where: Any) -> Iterator[None]:  # noqa: ANN401
    """Run a backend call; turn its error about a lost or silent peer into one of ours.

    Raises:
        PeerLostError: The peer's connection closed (this rank).
        PeerTimeoutError: The backend's bound passed (this rank).
    """
    try:
        yield
    except RuntimeError as error:
        raise_named(error, what, **where)


def raise_named(error: RuntimeError, what: str, **where: Any) -> NoReturn:  # noqa: ANN401
    """Raise the error that ``naming_peers`` raises; for hot paths, where a context manager costs too much."""
    translated = as_peer_error(error, what, **where)
    if translated is None:
        raise error
    raise translated from error
