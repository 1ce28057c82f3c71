"""How a run ended of which no rank says why: well, past its limit, stopped, or without a word."""

from __future__ import annotations

import signal
from dataclasses import replace as replace_fields
from itertools import pairwise

from msgspec.structs import replace

from ppwork.diagnosis.findings import NO_RECORD, NOBODY, Diagnosis, Wait
from ppwork.diagnosis.inferred import record_of
from ppwork.diagnosis.report import death
from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.diagnosis.run_notes import is_told, noted, ranks_apart, unread, unreleased, useless_cuts
from ppwork.diagnosis.uneven_collectives import ledger_difference
from ppwork.diagnosis.waits import roots
from ppwork.errors import listed, named_chunks, named_ranks
from ppwork.process import TORCHRUN_HUNG, TORCHRUN_STOPPED
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import FailureRecord
from ppwork.records.pulse import nothing_to_encode
from ppwork.records.run import RETURNED_DIFFERS, SUMMARY_FILE, by_how_much, stream_ended
from ppwork.records.spans import Instant

UNCHECKED = "; their numbers were not checked against one process"
NOT_COMPARED = "whether each mesh rank had its own share of the weights, and the cache that it should have: "
BY_VERIFY = "`ppwork run --verify` compares with one process"
BY_LOOP = "`plane.compare` compares what all hold alike, and `ppwork verify` the shares, by a mesh of one"


def without_cause(evidence: RunEvidence, exit_code: int | None) -> Diagnosis:
    """Say what can be said when no rank left a word: all went well, it still runs, or nothing began."""
    summary = evidence.summary or {}
    if evidence.end is not None and evidence.end.what:
        cause = record_of(evidence, NOBODY, "LaunchFailed", evidence.end.what, evidence.end.check_first)
    elif summary and exit_code is None and evidence.plan.verify and "max_abs_diff" not in summary:
        what = f"The run emitted {summary.get('chunks')} chunks; they were not compared with one process."
        check = "`ppwork ps`: does its launcher still go on? if not, who ended it?"
        cause = record_of(evidence, NOBODY, "NotVerified", what, check)
    elif exit_code == 0 and not any((folder / SUMMARY_FILE).exists() for folder in evidence.folders):
        cause = _without_summary(evidence)
    elif exit_code == 0 or (exit_code is None and evidence.summary is not None):
        worst = summary.get("max_abs_diff", 0.0)
        if not isinstance(worst, float | int | None):
            question = f"whether the output was right: max_abs_diff in {SUMMARY_FILE} is no number"
            return replace_fields(_ended_well(evidence), unknown=(question,), is_odd=True)
        is_equal = worst is not None and worst <= evidence.plan.allowed_difference
        apart = summary.get(RETURNED_DIFFERS)
        if is_equal and not apart:
            return _ended_well(evidence)
        what = f"No rank failed; the output differed from the single-process reference {by_how_much(worst)}."
        if is_equal:
            what = "No rank failed, and the outputs are equal to those of one process; of what the mesh "
            what += f"returned, {apart}."
        check = "do the stages use anything but their context and inputs?"
        cause = record_of(evidence, NOBODY, "OutputDiffers", what, check)
    elif exit_code is None and not evidence.torchrun_text.strip() and evidence.all_gone:
        return _without_a_word(evidence)
    elif exit_code is None and not evidence.torchrun_text.strip():
        what = "No rank left a record and there is no summary: the run goes on, or its launcher was killed."
        check = "does it go on? `ppwork diagnose`, without a path, looks into its ranks (pip install py-spy)"
        check += "; `ppwork ps` says what each of them does"
        cause = record_of(evidence, NOBODY, "NotEnded", what, check)
    else:
        ending = "torchrun failed" if exit_code is None else f"torchrun ended with code {exit_code}"
        last_lines = "\n".join(evidence.torchrun_text.strip().splitlines()[-5:])
        what = f"{ending} and no rank left a record.\n{last_lines}"
        cause = record_of(evidence, NOBODY, "TorchrunFailed", what, str(evidence.torchrun_log))
    seen = tuple(line for line in noted(evidence) if not is_told(line, cause, evidence))
    return Diagnosis(evidence.run_dir, cause, headline=cause.what, seen=seen, unknown=unread(evidence))


def _without_summary(evidence: RunEvidence) -> FailureRecord:
    """Return the record of a rank 0 that ended without a word behind its last chunk: no peer missed it."""
    pulse = evidence.pulses.get(STAGE0_RANK)
    if pulse is None or pulse.exit_code is not None:
        what, check = f"Rank 0 left no summary in {evidence.run_dir}, and no rank failed.", "was it removed?"
        check = f"{evidence.torchrun_log}: did any rank run?" if pulse is None else check
        return record_of(evidence, NOBODY, "NoSummary", what, check)
    at = f"in {pulse.doing}" if pulse.doing else "behind its last chunk"
    emitted = sum(entry.name == "emit" for entry in evidence.entries.get(STAGE0_RANK, []))
    what = f"Rank 0 ended {at}, after {emitted} chunks, with exit code 0 and without a summary."
    check = "what ends a process without an exception there? os._exit, or C++; the end of its log"
    return record_of(evidence, STAGE0_RANK, NO_RECORD, what, check)


def _ended_well(evidence: RunEvidence) -> Diagnosis:
    # A loop of one's own emits nothing that is counted.
    count, planned = (evidence.summary or {}).get("chunks"), evidence.plan.chunks or 0
    of = f" of {planned}" if isinstance(count, int) and count < planned else ""
    ended = f"the run emitted {count}{of} chunks" if count else "the run ended well"
    dropped = (evidence.summary or {}).get("dropped_chunks") or ()
    is_short = isinstance(count, int) and count + len(dropped) < planned
    if dropped:
        ended += f"; a flush made {named_chunks(dropped)} stale"
    left = {e.chunk_index for e in evidence.entries.get(STAGE0_RANK, []) if e.name == "envelope.send"}
    if of and evidence.of_loop and len(left - {-1}) == count:  # of a stage's stream there is more to say
        ended += "; its loop sent no more"
    # In a chunk that failed, a rank that raised has noted no writes.
    fine = "No rank failed, and" if is_short else "Nothing failed:"
    is_alone = evidence.topology.mesh_size == 1 or "max_abs_diff" in (evidence.summary or {})
    unchecked = "" if is_alone or is_short or not count else UNCHECKED
    headline, seen = f"{fine} {ended}{unchecked}.", (*noted(evidence), *ranks_apart(evidence))
    asked = stream_ended(evidence.entries.get(STAGE0_RANK, []))
    is_empty = bool(count == 0 and asked)
    if is_empty:  # who asks for chunks has not ended well without any
        headline, seen = f"No rank failed, and no chunk came: {asked}", tuple(s for s in seen if s != asked)
    if evidence.odd_results or useless_cuts(evidence):  # results may be wrong: that stands above a good end
        headline, seen = seen[0], (f"No rank failed: {ended}.", *seen[1:])
    return Diagnosis(
        evidence.run_dir,
        headline=headline,
        seen=seen,
        unknown=(
            *unreleased(evidence),
            *(() if is_alone else (NOT_COMPARED + (BY_LOOP if evidence.of_loop else BY_VERIFY),)),
        ),
        is_odd=bool(seen or is_short or is_empty),
    )


def _without_a_word(evidence: RunEvidence) -> Diagnosis:
    """Say what is known of ranks that are gone and left no record, in a job of somebody else's launcher."""
    silent = [rank for rank, pulse in evidence.pulses.items() if pulse.exit_code is None]
    missing = [rank for rank in range(evidence.topology.world_size) if rank not in evidence.pulses]
    terminated = [rank for rank in silent if evidence.signal_of(rank) == signal.SIGTERM]
    others = [rank for rank in silent or evidence.pulses if rank not in terminated]
    check = "the console of torchrun: which rank does its report name first? With `torchrun --log-dir LOGS "
    check += "--redirects 3`, `ppwork diagnose LOGS` reads it"
    if not others:
        what = f"{named_ranks(terminated).capitalize()} got SIGTERM, and no rank had failed before: torchrun "
        what += "was ended from outside, and ended them."
        check = "who ended it? a batch system's limit of time, a `kill` by hand, a closed terminal"
    elif terminated:
        what = f"{named_ranks(others).capitalize()} left without a record and without stacks, as after "
        what += f"SIGKILL or os._exit; {named_ranks(terminated)} got SIGTERM, which torchrun sends when a "
        what += "rank is gone."
    elif not missing and not any(map(evidence.signal_of, evidence.pulses)):
        what = (
            "The ranks are gone, all without a record and without stacks: as when their torchrun is killed "
        )
        what += "(SIGKILL), because they end with it."
        check = "who killed torchrun? the kernel's log, if memory was short; a batch system; its own console"
    else:
        what = f"The ranks are gone; {named_ranks(others)} left without a record: "
        what += "killed, ended by torchrun, or aborted by the backend."
    what += f" {named_ranks(missing).capitalize()} never joined." if missing else ""
    places = {rank: f"rank {rank}{last_told(evidence, rank) or ' had not begun'}" for rank in evidence.pulses}
    stacks = {rank: stack.users.at for rank in silent if (stack := evidence.stack_of(rank)) and stack.users}
    places |= {rank: f"{places[rank]}, at {at}" for rank, at in stacks.items()}
    cause = ledger_difference(evidence) or record_of(evidence, NOBODY, "RanksGone", what, check)
    seen, unknown = noted(evidence), unread(evidence)
    return Diagnosis(evidence.run_dir, cause, headline=cause.what, seen=seen, places=places, unknown=unknown)


def stopped(evidence: RunEvidence, waits: tuple[Wait, ...], exit_code: int) -> FailureRecord:
    """Return the record of a run that the launcher ended: how far it was, and which rank held it up."""
    if exit_code == TORCHRUN_STOPPED:
        what, check = "torchrun was stopped (SIGSTOP) and the run was ended.", "who sends SIGSTOP to it?"
        return record_of(evidence, NOBODY, "TorchrunStopped", what, check)
    if exit_code == TORCHRUN_HUNG:
        what = "All ranks had ended, and torchrun did not leave: the run was ended without it."
        check = "was its store removed? it is in XDG_RUNTIME_DIR or TMPDIR, beside the list of runs"
        return record_of(evidence, NOBODY, "TorchrunHung", what, check)
    if exit_code < 0:
        what = f"torchrun {death(exit_code)}, and its ranks with it."
        check = "who killed it? the kernel's log, if it was out of memory"
        return record_of(evidence, NOBODY, "TorchrunKilled", what, check)
    emits = [e.at_ns for e in evidence.entries.get(0, []) if isinstance(e, Instant) and e.name == "emit"]
    idle_s = (evidence.stopped_ns - max(emits)) / 1e9 if emits and evidence.stopped_ns > max(emits) else None
    total = f" of {evidence.plan.chunks}" if evidence.plan.chunks else ""
    ago = f", the last one {idle_s:.1f} s before" if idle_s is not None else ""
    what = f"The run passed its limit and was stopped; {len(emits)}{total} chunks had been emitted{ago}."
    longest_gap_s = max((b - a for a, b in pairwise(emits)), default=0) / 1e9
    if (unfed := _unfed(evidence, what)) is not None:
        return unfed
    if idle_s is not None and idle_s < 5 * longest_gap_s:
        return record_of(evidence, NOBODY, "PastLimit", what, "a larger limit_s: the run was still going on")
    blocking_ranks = roots(waits)
    if not blocking_ranks:
        check = (
            f"the logs of the ranks: {'who of them goes on?' if waits else 'none had begun its first chunk'}"
        )
        return record_of(evidence, NOBODY, "PastLimit", what, check)
    # All mesh ranks of a chunk are in ``generate``; whose stack is not in a collective holds up the others.
    computing = [wait.rank for wait in waits if wait.call.startswith("generate")]
    suspects = tuple(sorted({*blocking_ranks, *computing}))
    stacks = {rank: stack for rank in suspects if (stack := evidence.stack_of(rank)) is not None}
    outside = [rank for rank, stack in stacks.items() if not stack.call]
    if not outside and len(suspects) > 1:
        check = f"{named_ranks(suspects)}: which of them goes on, and where? see their logs"
        return record_of(evidence, NOBODY, "PastLimit", what, check)
    rank = outside[0] if outside else blocking_ranks[0]
    call = next((wait.call for wait in waits if wait.rank == rank), "nothing that it wrote down")
    check = f"rank {rank}: it was in {evidence.in_their_words(call)}; its log has its stacks, if it could"
    record = record_of(evidence, rank, "PastLimit", what, check, stacks.get(rank))
    return replace(record, rank=NOBODY, at_ns=0)  # it held the others up, and has not failed


def _unfed(evidence: RunEvidence, what: str) -> FailureRecord | None:
    """Return the record of a run whose source had nothing to encode at its end: a thread of it had died."""
    died = evidence.dead_threads(STAGE0_RANK)
    paused_s = evidence.paused_source_s
    if not died or not paused_s:
        return None
    threads = listed(died)
    what = f"Rank 0 had {nothing_to_encode(paused_s)}: its {threads}, and encode said NOT_YET. {what}"
    check = "should the run end with that thread? catch its error there, and let encode raise it"
    record = record_of(evidence, NOBODY, "PastLimit", what, check)
    return replace(record, source=died[-1].source)


def last_told(evidence: RunEvidence, rank: int) -> str:
    """Return a rank's newest step in brackets, to stand behind what is said of the rank."""
    point = evidence.last_point(rank)
    return f" (last: {point})" if point else ""
