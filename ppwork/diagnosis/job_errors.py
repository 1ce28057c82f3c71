"""Exceptions in the logs of a torchrun job: the rank's own or about a peer, and whom they name.

1. *Is it about a peer?* Then it is a symptom, and only says where the rank was. The backend's texts count in
   errors of the backend: ``timed out`` of a download is the rank's own. An error that was raised while the
   rank's own one was handled (``finally: barrier()``) does not hide it.
2. *Whom does it name?* The store's key has the number of the rank that is missing; ppwork's errors say
   ``peer=``; gloo has host and port only, so the rank that was missing is read from where the others were.
"""

from __future__ import annotations

import re

from ppwork.diagnosis.stacks import Stack
from ppwork.errors import PeerFrozenError, PeerLostError, PeerTimeoutError, TerminalNotice
from ppwork.protocol.backend_errors import LOST_TEXTS, TIMEOUT_TEXTS, without_noise
from ppwork.records.failure import is_users

_OURS = tuple(error.__name__ for error in (TerminalNotice, PeerLostError, PeerTimeoutError, PeerFrozenError))
_BACKENDS = re.compile(
    r"^(?:RuntimeError|TimeoutError|Error|error|DistributedError|Dist\w*Error|c10.*Error|std::.*|gloo::.*)$"
)
_BY_BACKEND = re.compile(
    r"\.(?:cc|cpp):\d+\]|monitoredBarrier|Detected mismatch between collectives|Watchdog caught|NCCL"
    r"|ncclUniqueId|pair closure|store based barrier|wait timeout after \d+ms|waiting for clients"
    r"|client socket has timed out"
)
"""Words that nobody but the backend writes."""
PEERS = re.compile(
    "|".join(
        [
            *map(re.escape, (*LOST_TEXTS, *TIMEOUT_TEXTS)), "Detected mismatch between collectives",
            "monitoredBarrier", "Watchdog caught", "wait timeout after", "ncclUniqueId", "connectFullMesh",
            "ncclRemoteError", "failed to recv, got 0 bytes", "waiting for clients", "store based barrier",
            "NCCL operations have failed or timed out", "closed by remote peer", "Socket recv failed",
        ]
    ),
    re.IGNORECASE,
)  # fmt: skip
_KEY = re.compile(r"wait timeout after \d+ms, keys: \S*?(?<!\d)(\d+)(?:\s|,|$)")
_UNIQUE_ID = re.compile(r"ncclUniqueId from \[(\d+)\]")
_WHERE, _ADVICE = re.compile(r"\n  where: (.*)"), re.compile(r"\n  check first: (.*)")
_PEER = re.compile(r"^\s*where: .*\bpeer=(\d+)", re.MULTILINE)
_KNOWN = {
    "Duplicate GPU detected": "torch.cuda.set_device with its LOCAL_RANK, on each rank before its first call",
    "environment variable RANK expected": "start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT for each process",
    "clients joined": "did as many processes start as world_size says, each with a rank of its own?",
    "Default process group has not been initialized": "a destroy_process_group before that line, or a branch "
    "that leads past init_process_group",
}
"""Texts of torch whose first check is known."""
_TORCHRUN = ("/torch/distributed/run.py", "/torch/distributed/elastic/", "/torch/distributed/launcher/",
             "/torch/distributed/launch.py")  # fmt: skip
AGENTS = ("ChildFailedError", "SignalException")
_COMMAND = re.compile(r"^Command '\[.*--local[-_]rank=\d", re.DOTALL)
"""``torch.distributed.launch`` raises ``CalledProcessError`` when a rank has ended."""
_ELSEWHERE = re.compile(r"root cause|stack ?trace|background process|child process", re.IGNORECASE)
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error|^\(RANK (\d+)\)$")
_OF_RANK = re.compile(r"which did not receive grad for rank (\d+):")
"""Words by which an exception says of which rank it speaks: its own."""


def own(error: Stack) -> Stack | None:
    """Return the part of an exception that is the rank's own: all of it, what it began with, or nothing.

    What begins with a peer is a symptom, whatever it was wrapped into.
    """
    first = error.chain[0]
    if _is_about_peer(first):
        return None
    if about_peer(error) is None:
        return error
    return first if first.users is not None and first.frames[-1] == first.users else None


def wrapped(error: Stack) -> tuple[str, str]:
    """Return what tells that two ranks raised the same, one of them ``from None``: type and line."""
    return error.error, error.users.at if error.users is not None else ""


def about_peer(error: Stack) -> Stack | None:
    """Return the first part of an exception that speaks of a peer."""
    return next((part for part in error.chain if _is_about_peer(part)), None)


def _is_about_peer(error: Stack) -> bool:
    if error.error in _OURS:
        return True
    if not _BACKENDS.match(error.error) or not PEERS.search(error.message):
        return False
    file = error.frames[-1].file if error.frames else "/torch/"
    by_torch = "/torch/" in file and "/torch/utils/" not in file
    return by_torch or _BY_BACKEND.search(error.message) is not None


def peer_in(error: Stack) -> int | None:
    """Return the rank that an error about a peer names."""
    for part in error.chain:
        for names in (_PEER, _KEY, _UNIQUE_ID):
            if _is_about_peer(part) and (named := names.search(part.message)) is not None:
                return int(named[1])
    return None


def says(error: Stack, texts: tuple[str, ...]) -> bool:
    """Say whether an exception, or one that it came from, has one of these texts."""
    return any(text in cause.message for cause in error.chain for text in texts)


def is_torchruns(error: Stack) -> bool:
    """Say whether an exception is torchrun's own: no call of the program stands below torchrun's last one.

    ``@record`` is a call of torchrun around the program's.
    """
    if error.error in AGENTS or error.error.startswith("Rendezvous") or _COMMAND.search(error.message):
        return True
    by_torchrun = [any(part in frame.file for part in _TORCHRUN) for frame in error.frames]
    last = max((number for number, own_call in enumerate(by_torchrun) if own_call), default=-1)
    return last >= 0 and not any(is_users(frame.file) for frame in error.frames[last + 1 :])


def said_of(error: Stack) -> str:
    """Return type and text of an exception, without gloo's source position, and without any advice."""
    text = without_noise(_WHERE.sub(r" (\1)", _ADVICE.sub("", error.message)))
    return f"{error.error}: {text}" if text else error.error


def advice_of(error: Stack) -> str:
    """Return what is to be checked first of an exception that says so, as ours, or is known; else nothing."""
    if (advice := _ADVICE.search(error.message)) is not None:
        return advice[1]
    return next((advice for text, advice in _KNOWN.items() if says(error, (text,))), "")


def speaks_for_itself(error: Stack) -> bool:
    """Say whether an exception is a cause: own, not a thread's, and none that only points at another."""
    return own(error) is not None and not error.aside and not _ELSEWHERE.search(error.message)


def rank_of(error: Stack) -> int | None:
    """Return the rank that an exception names as its own, or that torch names at its head."""
    named = _SPAWNED.search(error.above) or _OF_RANK.search(error.message)
    return int(named[named.lastindex or 1]) if named is not None else None
