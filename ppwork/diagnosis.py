"""Why a run of ours failed: which rank was first, what it said, and where the others were. No torch here.

Causes come before symptoms and earlier ones before later ones. A rank that left no record speaks through
what is left of it: its exit code, its log, its pulse, its last commitment points, and what its peers say.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ppwork.errors import named_ranks
from ppwork.exit_codes import PAST_LIMIT, TORCHRUN_STOPPED
from ppwork.failure import FailureRecord, first_cause
from ppwork.findings import Diagnosis, Wait, source_lines
from ppwork.flight import differences
from ppwork.remains import Remains
from ppwork.silent import silent_causes
from ppwork.stacks import frames_of
from ppwork.timeline import Instant
from ppwork.torchrun_logs import death, without_noise
from ppwork.waits import roots, waits_of

if TYPE_CHECKING:
    from pathlib import Path

HANGS = ("PeerTimeoutError", "PeerFrozenError", "StuckError", "PastLimit", "NoRecord")
"""Failures after which it matters who waited for whom."""


def diagnose(run_dir: Path, exit_code: int | None = None) -> Diagnosis:
    """Say why a run failed; from its folder alone, so also later and elsewhere.

    Args:
        run_dir: The run's folder.
        exit_code: torchrun's, if known; ``launch`` knows it.

    Raises:
        PlanError: The folder is not one of a run.
    """
    left = Remains.read(run_dir)
    if exit_code is None and left.past_limit:
        exit_code = PAST_LIMIT
    waits = waits_of(left.topology, left.before_the_first_record())
    records = [*left.records, *silent_causes(left)]
    cause = first_cause(records)
    if cause is None or cause.symptom:
        cause = _blamed(left, waits, cause, exit_code) or cause
    if cause is None:
        return _without_cause(left, exit_code)
    return _explained(left, cause, waits)


def _explained(left: Remains, cause: FailureRecord, waits: tuple[Wait, ...]) -> Diagnosis:
    others = tuple(sorted((r for r in left.records if r.rank != cause.rank), key=lambda record: record.at_ns))
    hang = any(record.error_type in HANGS for record in (cause, *others))
    waits = _for_the_cause(waits, cause, left) if hang else ()
    unread = tuple(f"what {name} says: it does not read" for name in left.unreadable)
    missing = [r for r in left.topology.mesh_ranks if r not in left.flights] if left.flights else []
    unknown = [f"which collective rank {rank} was at: it left no flight record" for rank in missing]
    return Diagnosis(
        left.run_dir,
        cause,
        lines=users_lines(cause) if not cause.symptom else (),
        log=left.log_of(cause.rank) if cause.rank >= 0 else str(left.torchrun_log),
        others=others,
        places=_places(left, cause, others, waits),
        waits=waits,
        flight=tuple(str(one) for one in differences(left.flights)),
        unknown=(*unread, *(unknown if hang else ())),
        headline=_headline(left, cause),
    )


def _for_the_cause(waits: tuple[Wait, ...], cause: FailureRecord, left: Remains) -> tuple[Wait, ...]:
    """Let mesh ranks that compute the same chunk as the cause wait for it: a sum needs all of them."""
    rank: int = cause.where.get("rank", -1)
    call = next((wait.call for wait in waits if wait.rank == rank and rank in left.topology.mesh_ranks), "")
    return tuple(
        wait._replace(waits_for=(rank,))
        if call.startswith("generate") and wait.call == call and wait.rank != rank
        else wait
        for wait in waits
    )


def users_lines(record: FailureRecord) -> tuple[str, ...]:
    """Return the line of the user's own code that a record points at, with its source if it is there."""
    frames = [frame for frame in frames_of(record.traceback) if frame.at == record.source]
    return source_lines(frames[-1]) if frames else tuple(filter(None, [record.source]))


def _headline(left: Remains, cause: FailureRecord) -> str:
    if cause.rank < 0:
        return cause.what
    role = left.topology.role(cause.rank)
    if cause.symptom:
        return (
            f"Every record is a symptom; rank {cause.rank} ({role}) was the first: "
            f"{cause.error_type}: {cause.what}"
        )
    return f"Rank {cause.rank} ({role}) failed first: {cause.error_type}: {cause.what}"


def _places(
    left: Remains, cause: FailureRecord, others: tuple[FailureRecord, ...], waits: tuple[Wait, ...]
) -> dict[int, str]:
    """Return one line for each other rank, by time: what it said, and where it was last.

    A rank that said nothing and of which it is known for whom it waited needs none.
    """
    waiting = {wait.rank for wait in waits if wait.waits_for}
    lines: dict[int, str] = {}
    for record in others:
        after = f" after {(record.at_ns - cause.at_ns) / 1e9:.3f} s" if record.at_ns > cause.at_ns > 0 else ""
        said = f"{record.error_type}: {_first_line(record)}"
        lines[record.rank] = f"then rank {record.rank}{after}: {said}{_last(left, record.rank)}"
    for rank in range(left.topology.world_size):
        if rank not in (cause.rank, *lines, *waiting):
            lines[rank] = f"rank {rank} {left.end_of(rank)}{_last(left, rank)}"
    return lines


def _first_line(record: FailureRecord) -> str:
    return without_noise(record.what.partition("\n")[0])


def _last(left: Remains, rank: int) -> str:
    last = left.last_point(rank)
    return f" (last: {last})" if last else ""


def _blamed(
    left: Remains, waits: tuple[Wait, ...], symptom: FailureRecord | None, exit_code: int | None
) -> FailureRecord | None:
    """Return a record for whom the symptoms point to, or who held up a run that passed its limit."""
    if exit_code is not None and (exit_code in (PAST_LIMIT, TORCHRUN_STOPPED) or exit_code < 0):
        return _stopped(left, waits, exit_code)
    if symptom is None:
        return None
    rank = _pointed_at(left, waits)
    if rank is None:
        return None
    said = f"rank {symptom.rank} said first: {symptom.error_type}: {_first_line(symptom)}"
    return FailureRecord(
        rank=rank,
        error_type="NoRecord",
        what=f"Rank {rank} {left.end_of(rank)} and left no record; {said}",
        where={"rank": rank, **left.ids_of(rank)},
        check_first="the end of its log: what did it do after its last commitment point?",
        symptom=False,
        at_ns=left.last_sign_ns(rank),
        traceback="",
    )


def _pointed_at(left: Remains, waits: tuple[Wait, ...]) -> int | None:
    """Return the rank without a record that the others' errors lead to, or else the one they waited for."""
    spoke = {record.rank: record for record in left.records}
    for record in sorted(left.records, key=lambda one: one.at_ns):
        seen: list[int] = []
        peer = record.rank
        while peer in spoke and peer not in seen:
            seen.append(peer)
            peer = spoke[peer].where.get("peer", -1)
        if peer not in spoke and peer in range(left.topology.world_size):
            return peer
    silent = [rank for rank in range(left.topology.world_size) if rank not in spoke]
    awaited = [rank for rank in roots(waits) if rank in silent]
    return next(iter(awaited), silent[0] if len(silent) == 1 else None)


def _stopped(left: Remains, waits: tuple[Wait, ...], exit_code: int) -> FailureRecord:
    """Return what is said of a run that the launcher ended: how far it was, and who held it up."""
    if exit_code == TORCHRUN_STOPPED:
        what, check = "torchrun was stopped (SIGSTOP) and the run was ended.", "who sends SIGSTOP to it?"
        return _nobody("TorchrunStopped", what, check)
    if exit_code < 0:
        what = f"torchrun {death(exit_code)}, and its ranks with it."
        return _nobody("TorchrunKilled", what, "who killed it? the kernel's log, if it was out of memory")
    held = roots(waits)
    emits = [e.at_ns for e in left.entries.get(0, []) if isinstance(e, Instant) and e.name == "emit"]
    of = f" of {left.plan.chunks}" if left.plan.chunks else ""
    since = (left.stopped_ns - max(emits)) / 1e9 if emits and left.stopped_ns > max(emits) else None
    last = f", the last one {since:.1f} s before" if since is not None else ""
    what = f"The run passed its limit and was stopped; {len(emits)}{of} chunks had been emitted{last}."
    if since is not None and len(emits) > 1 and since < 5 * _longest_gap_s(emits):
        return _nobody("PastLimit", what, "a larger limit_s: the run was still going on")
    if not held:
        return _nobody("PastLimit", what, "the logs of the ranks: none had begun its first chunk")
    # All mesh ranks of a chunk are in ``generate``; whose stack is not in a collective holds up the others.
    busy = sorted({*held, *(wait.rank for wait in waits if wait.call.startswith("generate"))})
    stacks = {rank: stack for rank in busy if (stack := left.stack_of(rank)) is not None}
    outside = [rank for rank, stack in stacks.items() if not stack.call] or held
    if outside is held and len(busy) > 1:
        return _nobody(
            "PastLimit", what, f"{named_ranks(tuple(busy))}: which of them goes on, and where? see their logs"
        )
    rank = outside[0]
    call = next((wait.call for wait in waits if wait.rank == rank), "nothing that it wrote down")
    users = stacks[rank].users if rank in stacks else None
    record = _nobody("PastLimit", what, f"rank {rank}: it was in {call}; its log has its stacks, if it could")
    where = {"rank": rank, **left.ids_of(rank)}
    return replace(record, where=where, source=users.at if users is not None else "")


def _longest_gap_s(moments: list[int]) -> float:
    return max(b - a for a, b in pairwise(moments)) / 1e9


def _nobody(error_type: str, what: str, check_first: str) -> FailureRecord:
    return FailureRecord(
        rank=-1, error_type=error_type, what=what, where={}, check_first=check_first, symptom=False,
        at_ns=time.monotonic_ns(), traceback="",
    )  # fmt: skip


def _without_cause(left: Remains, exit_code: int | None) -> Diagnosis:
    """Say what can be said when no rank left a word: all went well, it still runs, or nothing began."""
    if exit_code == 0 or (exit_code is None and left.summary is not None):
        allowed = left.plan.tolerance if left.plan.mesh_size > 1 else 0.0
        worst = (left.summary or {}).get("max_abs_diff", 0.0)
        if worst is None or worst > allowed:
            what = f"No rank failed; the output differed from the single-process reference by {worst}."
            check = "do the stages use anything but their context and inputs?"
            return Diagnosis(left.run_dir, _nobody("OutputDiffers", what, check), headline=what)
        chunks = (left.summary or {}).get("chunks")
        return Diagnosis(left.run_dir, headline=f"Nothing failed: the run emitted {chunks} chunks.")
    if exit_code is None and not left.torchrun_text.strip():
        what = "No rank left a record and there is no summary: the run goes on, or its launcher was killed."
        return Diagnosis(
            left.run_dir, _nobody("NotEnded", what, "`ppwork ps` lists runs that go on"), headline=what
        )
    ended = "torchrun failed" if exit_code is None else f"torchrun ended with code {exit_code}"
    last = "\n".join(left.torchrun_text.strip().splitlines()[-5:])
    what = f"{ended} and no rank left a record.\n{last}"
    return Diagnosis(
        left.run_dir, _nobody("TorchrunFailed", what, str(left.torchrun_log)), headline=what,
    )  # fmt: skip
