"""Diagnosis of a run of ours: the rank that failed first, its words, where the others were. No torch here.

The order of evidence, from the surest to the weakest:

1. Records that ranks wrote when they failed. A cause comes before a symptom (an error about a peer), and an
   earlier record before a later one; all times are on rank 0's clock.
2. Over several hosts, what our launcher saw of a host or of the network between two, if that ended the run.
   The ranks of other hosts were ended by it and are not asked how.
3. Inferred records, of ranks that wrote none or only a symptom. A stop (SIGSTOP) comes first: the bounds of
   a stopped rank are clocks on the wall and fire when it goes on. Then its log: gloo's abort, NCCL's, the
   stacks of faulthandler, a traceback; then its exit code. Codes that torchrun or the launcher caused say
   nothing. These records stand beside the written ones, at the last sign of life of their rank; but a rank
   that was seen stopped only after a death stands behind that death.
4. Only where no record is a cause: all ranks are gone and our launcher left no word. It was killed, and not
   even symptoms count.
5. Only symptoms, and a mesh rank stood in a collective of a chunk that another one had ended, or each in one
   of another kind: they made different ones, and none is to blame for that. Or all of them stood in one that
   rank 0 did not make (``uneven_collectives``), or rank 0 in one that none of them made, or mesh ranks in one
   before their first chunk, or behind their last one, when others had left well (``outside_calls``).
6. How the run ended. If its limit had passed, the ranks that others waited for and that waited for nobody
   held it up; of mesh ranks in ``generate`` it is the one whose stack is outside of any collective.
7. Only symptoms: each names its peer, so from symptom to symptom they lead to a rank without a record; else
   it is the one that the others waited for, or the only one without a record. Of a run over several hosts it
   may be a host or the network, and no rank (``hosts``).
8. Else the first symptom is the answer, and the sentence says that it is none but a symptom.
9. No record at all: the run went well, still runs, or never began; torchrun's last lines are shown.
10. A KeyboardInterrupt is no rank's failure: the run was interrupted.

``docs/diagnosis-rules.md`` has each rule with its function. Who waited for whom is read from the time
before the first record, because an error ends the spans that it goes through; it is shown for hangs only.
What does not read is named as not known, and never raised.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace as replace_fields
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from ppwork.diagnosis.branches import early_ends
from ppwork.diagnosis.findings import NOBODY, Diagnosis, Wait, source_lines
from ppwork.diagnosis.flights import differences
from ppwork.diagnosis.hosts import cause_of_hosts, open_questions
from ppwork.diagnosis.inferred import inferred_records, record_of, tells_of_a_freeze
from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.outside_calls import (
    after_the_end,
    alone,
    before_the_first_chunk,
    unanswered,
    with_own_call,
)
from ppwork.diagnosis.recorded_calls import with_calls
from ppwork.diagnosis.report import death
from ppwork.diagnosis.run_evidence import ENDED_WELL, RunEvidence
from ppwork.diagnosis.stacks import HEAD, IN_THREAD, Frame, callers_of, frames_of, line_of, tracebacks
from ppwork.diagnosis.uneven_collectives import (
    MISMATCH,
    beside,
    ledger_difference,
    on_the_carrier,
    stood_apart,
    uneven,
    widened,
)
from ppwork.diagnosis.waits import roots, waits_of
from ppwork.errors import (
    PeerTimeoutError,
    PlanError,
    StuckError,
    TerminalNotice,
    listed,
    named_chunks,
    named_ranks,
)
from ppwork.plan import Plan
from ppwork.process import PAST_LIMIT, STOPPED, TORCHRUN_HUNG, TORCHRUN_STOPPED
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK, without_noise
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import FailureRecord, first_cause
from ppwork.records.files import read_json
from ppwork.records.folder import REFUSED_FILE
from ppwork.records.notes import (
    came_with_a_cut,
    told_of_metadata,
    told_of_results,
    told_of_writes,
    why_not_reset,
)
from ppwork.records.pulse import nothing_to_encode
from ppwork.records.run import (
    FAILED_AT_END,
    NOTHING_RESET,
    ODD_RESULTS,
    RETURNED_DIFFERS,
    SUMMARY_FILE,
    TORCHRUN_LOG,
    UNRELEASED,
    WRONG,
    FinishedProgram,
    by_how_much,
    chunks_noted,
    stream_ended,
)
from ppwork.records.spans import HANDLE_LET_GO, Instant

NOT_COMPARED = "whether each mesh rank had its own share of the weights, and the cache that it should have: "
BY_VERIFY = "`ppwork run --verify` compares with one process"
BY_LOOP = "`plane.compare` compares what all hold alike, and a run with a mesh of one the shares"
UNANSWERED = "The loop went on after chunk "
"""What a mesh rank says whose loop has left out an answer; the line that it names is the loop's."""
MOST_ENDS = 3
"""Lines of a loop that are named as those where a turn may end early."""
HANGS = ("PeerTimeoutError", "PeerFrozenError", "StuckError", "PastLimit")
"""Failures after which it matters who waited for whom, and that all ranks were still before."""


def diagnose(
    run: FinishedProgram | Path | str | Sequence[Path | str], exit_code: int | None = None
) -> Diagnosis:
    """Say why a run or a job failed; from what it left on disk alone, so also later and elsewhere.

    Args:
        run: What ``pp.launch`` or ``pp.launch_script`` returns; a run's folder; torchrun's ``--log-dir``; the
            log of a console. Or several paths: what one run or job left on several hosts.
        exit_code: Of a run, torchrun's; ``None`` takes it from what the launcher wrote down.

    Raises:
        PlanError: A path is none of these, or cannot be read; several are not of one run.
    """
    if isinstance(run, FinishedProgram):
        run = run.run_dir
    paths = [Path(path) for path in ([run] if isinstance(run, Path | str) else run)]
    try:
        gone = {path: "is not there" for path in paths if not path.exists()}
        empty = {
            path: "is empty"
            for path in paths
            if path.is_dir() and all(each.name == REFUSED_FILE for each in path.iterdir())
        }
        left = [path for path in paths if path not in gone and path not in empty]
        is_run = any((path / Plan.FILE_NAME).exists() for path in left)
    except OSError as error:  # of another user, or too long
        raise PlanError(
            f"{error.filename} cannot be read: {error.strerror}.",
            check_first="the path, and whose file it is",
        ) from error
    if not left and paths[0] in empty and (refused := read_json(paths[0] / REFUSED_FILE, FailureRecord)):
        what = f"No run began in {paths[0]}: its start was refused. {refused.what}"
        return Diagnosis(paths[0], replace(refused, what=what), headline=what)
    if not left and paths[0] in empty:
        what = f"No run began in {paths[0]}: its start was refused, or not all ranks have joined yet."
        check = "what the ranks said on the console (`ppwork diagnose CONSOLE.log` reads it): the folder has "
        check += "nothing of a run until all have joined"
        evidence = RunEvidence((paths[0],), Plan())  # of no rank
        return Diagnosis(paths[0], record_of(evidence, NOBODY, "NotBegun", what, check), headline=what)
    if not left:
        raise PlanError(f"{paths[0]} cannot be read: it is not there.", check_first="the path")
    if is_run:
        found = _diagnose_run(left, exit_code)
    else:
        folder = next((path for path in left if path.is_dir()), left[0])
        found = with_calls(diagnose_job(read_job(*left)), folder)
    unread = tuple(f"{path} {why}, and was not read" for path, why in (gone | empty).items())
    return replace_fields(found, seen=(*found.seen, *unread)) if unread else found


def _diagnose_run(paths: Sequence[Path], exit_code: int | None) -> Diagnosis:
    """Say why a run of ours failed, from its folders and consoles."""
    consoles = [path for path in paths if path.is_file()]
    evidence = RunEvidence.read(*(path for path in paths if path.is_dir()), consoles=consoles)
    if exit_code is None and evidence.end is not None:
        exit_code = evidence.end.exit_code
    if exit_code is None and evidence.past_limit:
        exit_code = PAST_LIMIT
    waits = with_own_call(evidence, waits_of(evidence.topology, evidence.before_the_first_record()))
    inferred = inferred_records(evidence)
    cause = first_cause([*evidence.records, *inferred], evidence.apart)
    statements = [*evidence.records, *(record for record in inferred if record.rank in evidence.nccl_ends)]
    # What somebody asked for comes first: a host that is lost is then how it was done.
    asked = _ended_by_somebody(evidence) or _lost_host(evidence)
    written = first_cause(evidence.records, evidence.apart)
    if asked is not None and (written is None or written.symptom):
        cause = asked
    elif cause is None or cause.symptom:
        cause = (
            _without_launcher(evidence, exit_code)
            or unanswered(evidence)
            or beside(evidence)
            or alone(evidence, waits)
            or before_the_first_chunk(evidence)
            or after_the_end(evidence)
            or on_the_carrier(evidence)
            or stood_apart(evidence)
            or uneven(evidence)
            or _inferred_cause(evidence, statements, waits, cause, exit_code)
            or cause
        )
    if cause is None:
        return _without_cause(evidence, exit_code)
    if cause.error_type == KeyboardInterrupt.__name__ and not _was_raised(cause):
        cause = _interrupted(evidence, cause)
    # Who noticed saw those that had come by then, and the ledgers have who came later.
    if cause.between and (all_of_them := ledger_difference(evidence)) is not None:
        cause = widened(cause, all_of_them)
    return _explained(evidence, statements, cause, waits)


def _ended_by_somebody(evidence: RunEvidence) -> FailureRecord | None:
    """Return the record of a run that somebody asked to end: what its ranks say then is of that."""
    if (end := evidence.end) is None or end.exit_code != STOPPED or not end.what:
        return None
    return record_of(evidence, NOBODY, "Stopped", end.what.partition("\n")[0], end.check_first)


def _lost_host(evidence: RunEvidence) -> FailureRecord | None:
    if evidence.hosts is None or (end := evidence.hosts.end) is None:
        return None
    return record_of(evidence, NOBODY, end.error_type, end.what, end.check_first)


def _without_launcher(evidence: RunEvidence, exit_code: int | None) -> FailureRecord | None:
    """Return the record of a run that was left alone: its launcher writes a last word unless it is killed."""
    ours = any((folder / TORCHRUN_LOG).exists() for folder in evidence.folders)
    if not ours or exit_code is not None or evidence.summary is not None or not evidence.all_gone:
        return None
    what = "The launcher is gone without a record, and its ranks ended with it: killed hard?"
    check = "who sent SIGKILL? the kernel's log, if it was out of memory; a batch system, a `kill -9` by hand"
    return record_of(evidence, NOBODY, "LauncherGone", what, check)


def _who_was_silent(evidence: RunEvidence, waits: tuple[Wait, ...]) -> str:
    if awaited := roots(waits):
        words = f"the log of {named_ranks(awaited)}"
        if not any(map(evidence.log_of, awaited)):  # somebody else's torchrun keeps it, if anybody does
            left = [path.name for rank in awaited for path in evidence.last_words_of(rank)]
            words = " and ".join(left) or f"what {named_ranks(awaited)} printed"
        return f"{words}: the others waited for it, and it waited for nobody"
    if _has_sent_nothing(evidence):
        words = " and ".join(path.name for path in evidence.last_words_of(STAGE0_RANK))
        return f"{words or 'the stack of rank 0'}: where it stood; its first `send` may take timeout_s"
    return "the last line with `envelope.send` in spans-rank0.jsonl: which chunk was the last to leave?"


def _has_sent_nothing(evidence: RunEvidence) -> bool:
    """Say whether rank 0 had begun, by what it wrote down, and no envelope had left it."""
    entries = evidence.entries.get(STAGE0_RANK, [])
    return STAGE0_RANK in evidence.pulses and not any(entry.name == "envelope.send" for entry in entries)


def _interrupted(evidence: RunEvidence, cause: FailureRecord) -> FailureRecord:
    """Return the record of a run whose ranks had a Ctrl-C: none of them failed."""
    ranks = [r.rank for r in evidence.records if r.error_type == cause.error_type]
    what = (
        f"The run was interrupted: {named_ranks(ranks)} got SIGINT, which torchrun passes on from a Ctrl-C."
    )
    check = f"who sent it, if nobody pressed Ctrl-C{'; to this rank alone?' if len(ranks) == 1 else ''}"
    record = record_of(evidence, NOBODY, "Interrupted", what, check)
    return replace(record, where=cause.where) if len(ranks) == 1 else record


def _was_raised(record: FailureRecord) -> bool:
    """Say whether a line of code raised it, and no signal: that comes in whatever line runs."""
    calls = frames_of(record.traceback)
    return bool(calls) and re.search(r"\braise\b", calls[-1].text) is not None


def _explained(
    evidence: RunEvidence, statements: list[FailureRecord], cause: FailureRecord, waits: tuple[Wait, ...]
) -> Diagnosis:
    others = sorted(
        (r for r in statements if r.rank != cause.rank), key=lambda r: (r.rank in evidence.apart, r.at_ns)
    )
    cause = _of_no_chunk(evidence, cause)
    hang = any(record.error_type in HANGS for record in (cause, *others))
    stuck = {r.rank for r in (cause, *others) if r.error_type == StuckError.__name__}
    waits = _for_the_cause(waits, cause, evidence, stuck) if hang else ()
    if cause.error_type == MISMATCH:  # each stood in a call that the other did not make
        waits = tuple(
            wait for wait in waits if wait.waits_for or wait.rank not in evidence.topology.mesh_ranks
        )
    if cause.check_first == SILENT_PEER_CHECK:  # it asks for a diagnosis, and this is one
        cause = replace(cause, check_first=_who_was_silent(evidence, waits))
    if UNANSWERED in cause.what and (ends := early_ends(*_file_and_line(cause.source))):
        lines = listed([f"line {end}" for end in ends[:MOST_ENDS]])
        check = f"{lines}: does a turn of the loop end there, before its `plane.reply`?"
        cause = replace(cause, check_first=f"{check} Every mesh rank answers each chunk")
    flights = evidence.flights
    alike = {
        r.rank
        for r in others
        if (r.error_type, r.what, r.source) == (cause.error_type, cause.what, cause.source)
    }
    beside_it = _beside(evidence)
    at_end = cause.what.startswith(FAILED_AT_END)
    if at_end:
        beside_it += _apart(evidence)
    beside_it += _too_few(evidence, cause)
    told = "" if at_end else _answer_of_another_shape(evidence, cause)
    if told:
        cause, beside_it = replace(cause, check_first=WRONG[ODD_RESULTS]), beside_it[1:]
    missing = [rank for rank in evidence.topology.mesh_ranks if flights and rank not in flights]
    unknown = tuple(f"which collective rank {rank} was at: it left no flight record" for rank in missing)
    return Diagnosis(
        evidence.run_dir,
        cause,
        lines=users_lines(cause, evidence.run_dir) if not (cause.symptom or cause.between or at_end) else (),
        log=evidence.log_of(cause.rank),
        seen=tuple(line for line in beside_it if not _is_told(line, cause, evidence)),
        others=tuple(others),
        places=_places(evidence, cause, others, waits, alike),
        waits=tuple(wait._replace(call=evidence.in_their_words(wait.call)) for wait in waits),
        # A rank that fails leaves the others at other counts, and a guard has named the calls itself.
        flight=tuple(map(str, differences(flights))) if hang and not cause.between else (),
        unknown=_unread(evidence) + (unknown if hang else ()) + open_questions(evidence, cause, others),
        headline=_headline(evidence, cause, alike, told),
    )


def _of_no_chunk(evidence: RunEvidence, cause: FailureRecord) -> FailureRecord:
    """Return an error of ``finish`` behind the end of a stream without any chunk, from which it came."""
    ended = stream_ended(evidence.entries.get(STAGE0_RANK, []))
    if " for chunk 0," not in ended or "stage's finish raised" not in cause.what:
        return cause
    what = f"{ended}. No chunk had come when {cause.what[0].lower()}{cause.what[1:]}"
    check_first = "the lines of encode that return; then the traceback in its log"
    return replace(cause, what=what, check_first=check_first, source="", traceback="")


def _too_few(evidence: RunEvidence, cause: FailureRecord) -> tuple[str, ...]:
    """Return what ``finish`` may not have reckoned with: that fewer chunks came than the plan has."""
    entries, planned = evidence.entries.get(STAGE0_RANK, []), evidence.plan.chunks
    came = len({entry.chunk_index for entry in entries if entry.name in ("emit", "drop")})
    if "stage's finish raised" not in cause.what or not 0 < came < (planned or 0):
        return ()
    return (f"Only {came} of the plan's {planned} chunks had come when `finish` was called",)


def _beside(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about each thing that ends no run by itself."""
    ended = filter(None, [stream_ended(evidence.entries.get(STAGE0_RANK, []))])
    own = (*_odd_results(evidence), *_useless_cuts(evidence), *_let_go(evidence), *_dead_threads(evidence))
    return (*own, *ended)  # that it ended was mostly meant: a question, behind what is known


def _is_told(line: str, cause: FailureRecord, evidence: RunEvidence) -> bool:
    """Say whether a line is in the cause, or of a thread that died, and the cause says so."""
    died = map(str, evidence.dead_threads(STAGE0_RANK))
    return line in cause.what or any(thread in line and thread in cause.what for thread in died)


def _dead_threads(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about each rank of which a thread ended in an exception: Python goes on without it."""
    lines, went_on = [], "and the rank went on without it"
    for rank in range(evidence.topology.world_size):
        written = evidence.dead_threads(rank)
        lines += [f"On rank {rank} {thread}, {went_on}" for thread in written]
        shown = [stack for stack in tracebacks(evidence.text_of(rank)) if stack.above.startswith(IN_THREAD)]
        if shown and not written:  # before the rank could write it down
            at = f" at {frame.at}" if (frame := shown[-1].users) is not None else ""
            error = f"{shown[-1].error}: {shown[-1].message.partition(chr(10))[0]}"
            lines.append(f"A thread of rank {rank} died{at} of {error}, {went_on}")
    return tuple(lines)


def _odd_results(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about results of mesh ranks that were not the same, which end no run."""
    if not (odd := evidence.odd_results):
        return ()
    what = f"Mesh ranks returned different results in {named_chunks(odd)}: the leader's were sent"
    what += f"; {told}" if (told := told_of_results(evidence.entries)) else ""
    where = "All that differs: the logs of the mesh ranks, or a run with `--digests`"
    if evidence.of_loop:
        where = "Which rank is wrong is not known: print what each of them passes to `reply` there"
    if came_with_a_cut(evidence.entries.get(STAGE0_RANK, []), first := odd[0]):
        where = f"Chunk {first} came with a cut: did each of them reset its cache there? {where}"
    return (f"{what}. {where}",)


def _let_go(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about each place whose collectives nobody waited for: results may be wrong."""
    ranks: dict[str, list[int]] = {}
    for rank in evidence.topology.mesh_ranks:
        for entry in evidence.entries.get(rank, []):
            if isinstance(entry, Instant) and entry.name == HANDLE_LET_GO:
                ranks.setdefault(entry.text.partition(": ")[0], []).append(rank)
    what = "let go of a handle that nobody had waited for, at"
    early = "its tensor may have been used too early"
    return tuple(f"{named_ranks(of).capitalize()} {what} {line}: {early}" for line, of in ranks.items())


def _useless_cuts(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about cuts at which a generator or a loop reset nothing: results may be wrong."""
    if not (cuts := chunks_noted(evidence.entries, NOTHING_RESET)):
        return ()
    return (f"At the cut of {named_chunks(cuts)} {why_not_reset(of_loop=evidence.of_loop)}",)


def _unreleased(evidence: RunEvidence) -> tuple[str, ...]:
    """Return what is not known of a loop that does not say when it has decoded a result."""
    if not (chunks := chunks_noted(evidence.entries, UNRELEASED)):
        return ()
    why = f"from chunk {chunks[0]} on its loop called no `release_result` after a result"
    return (f"how long its decodes took: {why}",)


def _apart(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about tensors that only some mesh ranks wrote into, and one about other metadata."""
    wrote, said = told_of_writes(evidence.entries), told_of_metadata(evidence.entries)
    lines = [f"{wrote}. A wrong share, if it was not meant: `.clone()` before the write"] if wrote else []
    asked = "the leader's was sent. Does a rank hold another state? For its own, let followers give none"
    return (*lines, f"{said}; {asked}") if said else tuple(lines)


def _unread(evidence: RunEvidence) -> tuple[str, ...]:
    return tuple(f"what {name} says: it does not read" for name in evidence.unreadable)


def _for_the_cause(
    waits: tuple[Wait, ...], cause: FailureRecord, evidence: RunEvidence, stuck: set[int]
) -> tuple[Wait, ...]:
    """Let mesh ranks that compute the same chunk as the cause wait for it: a sum needs all of them.

    ``stuck``: they said that they were in code of their own, so they waited for nobody. Nor did a rank that
    stood still: what it had begun may not be on record.
    """
    rank: int = cause.where.get("rank", -1)
    if tells_of_a_freeze(cause):
        waits = tuple(
            wait._replace(call="stood still", waits_for=()) if wait.rank == rank and wait.waits_for else wait
            for wait in waits
        )
    is_mesh = rank in evidence.topology.mesh_ranks
    call = next((wait.call for wait in waits if wait.rank == rank and is_mesh), "")
    return tuple(
        wait._replace(waits_for=(rank,))
        if call.startswith("generate") and wait.call == call and wait.rank not in (rank, *stuck)
        else wait
        for wait in waits
        if not (wait.rank in stuck and wait.waits_for)
    )


def users_lines(record: FailureRecord, run_dir: Path) -> tuple[str, ...]:
    """Return the line of the user's own code that a record points at, with its source if it is there.

    Of a line in a helper, also where that was called: in another file if the calls go through one, else the
    nearest ones.
    """
    of_errors = map(frames_of, reversed(record.traceback.split(HEAD)))  # of the outer error first
    frames = next((each for each in of_errors if any(frame.at == record.source for frame in each)), [])
    if not frames:  # a method had returned, or a thread had died: no stack leads there
        frames = [Frame(*_file_and_line(record.source), "")]
    at = max((number for number, frame in enumerate(frames) if frame.at == record.source), default=0)
    users = frames[at]
    if not users.file:
        return ()
    users = users if users.text else replace_fields(users, text=line_of(users.file, users.line, run_dir))
    return source_lines(users, callers_of(frames, at))


def _file_and_line(source: str) -> tuple[str, int]:
    """Return the parts of ``FILE:LINE``; the line is 0 if there is none."""
    file, _, line = source.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


def _headline(evidence: RunEvidence, cause: FailureRecord, alike: set[int], told: str) -> str:
    """Say what happened.

    Args:
        evidence: Of the run.
        cause: The first failure.
        alike: Ranks with the same mistake; none of them is the first: that is a race.
        told: How results of mesh ranks differed, if rank 0 failed over one of them.
    """
    if cause.rank < 0 or cause.between:
        return cause.what
    if cause.what.startswith(FAILED_AT_END):  # rank 0 found it, and did nothing wrong
        return cause.what
    rank = f"{cause.rank} ({evidence.topology.role(cause.rank)})"
    error = f"{cause.error_type}: {without_noise(cause.what)}".removesuffix(": ")
    if cause.symptom:
        return f"Every record is a symptom; rank {rank} was the first: {error}"
    if tells_of_a_freeze(cause):  # an error of its peers: with its name here the cause reads like a symptom
        what = evidence.in_their_words(cause.what)
        how = what.partition(" was ")[2]
        return f"Rank {rank} is the cause: {f'it was {how}' if how else what}"
    if told:
        what = f"Mesh ranks returned different results {told}; the leader's were sent."
        return f"{what} Rank {rank}, which got them, failed: {error}"
    if alike:
        ranks = sorted({cause.rank, *alike})
        return f"Ranks {listed(f'{r} ({evidence.topology.role(r)})' for r in ranks)} failed alike: {error}"
    return f"Rank {rank} failed first: {error}"


def _answer_of_another_shape(evidence: RunEvidence, cause: FailureRecord) -> str:
    """Return how results of mesh ranks differed in shape before rank 0 failed over one; else nothing."""
    told = told_of_results(evidence.entries)
    if cause.rank != STAGE0_RANK or cause.symptom or " returned '" not in told:
        return ""
    return told if cause.where.get("chunk_index") in (None, min(evidence.odd_results)) else ""


def _places(
    evidence: RunEvidence,
    cause: FailureRecord,
    others: list[FailureRecord],
    waits: tuple[Wait, ...],
    alike: set[int],
) -> dict[int, str]:
    """Return one line for each other rank, by time: what it said, and where it was last.

    A rank that said nothing and of which it is known for whom it waited needs none.
    """
    waiting = {wait.rank for wait in waits if wait.waits_for}
    lines: dict[int, str] = {}
    spoke = {record.rank for record in (cause, *others)}
    for record in others:
        on_one_clock = not evidence.apart.intersection([cause.rank, record.rank])
        later = on_one_clock and record.at_ns > cause.at_ns > 0
        after = f" after {(record.at_ns - cause.at_ns) / 1e9:.3f} s" if later else ""
        known = tells_of_a_freeze(record) and record.where.get("peer") == cause.rank  # the headline says it
        known = known or bool(record.between and cause.between) or record.rank in alike
        told_by = record.where.get("peer") if record.error_type == TerminalNotice.__name__ else None
        what = "the same" if known else f"told by rank {told_by}" if told_by in spoke else ""
        error = f"{record.error_type}: {what}" if what else _error(record)
        lines[record.rank] = f"then rank {record.rank}{after}: {error}{_last(evidence, record.rank)}"
    for rank in range(evidence.topology.world_size):
        if rank not in (cause.rank, *lines, *waiting) and not (rank in evidence.absent and cause.rank < 0):
            lines[rank] = f"rank {rank} {evidence.end_of(rank)}{_last(evidence, rank)}"
    return lines


def _error(record: FailureRecord) -> str:
    return f"{record.error_type}: {without_noise(record.what.partition(chr(10))[0])}".removesuffix(": ")


def _last(evidence: RunEvidence, rank: int) -> str:
    point = evidence.last_point(rank)
    return f" (last: {point})" if point else ""


def _inferred_cause(
    evidence: RunEvidence,
    statements: list[FailureRecord],
    waits: tuple[Wait, ...],
    symptom: FailureRecord | None,
    exit_code: int | None,
) -> FailureRecord | None:
    """Return a record for the rank that the symptoms point to, or that held up a run past its limit."""
    by_launcher = (PAST_LIMIT, TORCHRUN_STOPPED, TORCHRUN_HUNG)
    if exit_code is not None and (exit_code in by_launcher or exit_code < 0):
        return _stopped(evidence, waits, exit_code)
    if symptom is None:
        return None
    rank = _pointed_at(evidence, statements, waits)
    said = f"rank {symptom.rank} said first: {_error(symptom)}"
    if (of_hosts := cause_of_hosts(evidence, rank, said)) is not None:
        return record_of(evidence, NOBODY, *of_hosts)
    if rank is None:
        return None
    what = f"Rank {rank} {evidence.end_of(rank)} and left no record; {said}"
    by_signal = evidence.signal_of(rank)
    stack = evidence.stack_of(rank) if by_signal else None
    is_known = evidence.code_of(rank) is not None and not by_signal  # its end, but by what came of the bound
    if symptom.error_type == PeerTimeoutError.__name__ and not is_known:
        # Its process is gone, but it was there when the bound passed, or its connections had told of its end.
        what = f"Rank {rank} said nothing for as long as a bound allows, and left no record; {said}"
        if rank == STAGE0_RANK and _has_sent_nothing(evidence):
            what = f"Rank 0 had sent no chunk when a bound passed, and left no record; {said}"
        return record_of(evidence, rank, "NoRecord", what, symptom.check_first, stack)
    at = evidence.at_chunk(rank)
    check = f"the end of its log: what ends a process without an exception{at and f' in {at}'}?"
    check += " os._exit(0), C++" if evidence.end_of(rank) == ENDED_WELL else " os._exit, C++, a kill"
    if evidence.code_of(rank) == -signal.SIGTERM and not evidence.ended_by_torchrun(rank):
        nothing = (
            "no rank had failed by then" if rank == evidence.terminated_first else "nothing else failed here"
        )
        why = f"torchrun sends it when another rank fails, and {nothing}"
        what = f"Rank {rank} got SIGTERM and left no record; {why}; {said}"
        check = "who sent it? a batch system, an out-of-memory daemon, a `kill` by hand"
    elif not evidence.log_of(rank):
        check = (
            f"torchrun's closing report: rank {rank}'s exit code. -9 is SIGKILL, of the kernel, too; a rank "
        )
        check += "that is not in it ended with code 0, as by `os._exit(0)`"
    return record_of(evidence, rank, "NoRecord", what, check, stack)


def _pointed_at(
    evidence: RunEvidence, statements: list[FailureRecord], waits: tuple[Wait, ...]
) -> int | None:
    """Return the rank without a record that the others' errors lead to, or else the one they waited for."""
    written = {record.rank: record for record in statements}
    for record in sorted(statements, key=lambda record: record.at_ns):
        path: list[int] = []
        peer = record.rank
        while peer in written and peer not in path:
            path.append(peer)
            peer = written[peer].where.get("peer", -1)
        if peer not in written and peer in range(evidence.topology.world_size):
            return peer
    silent = [
        rank
        for rank in range(evidence.topology.world_size)
        if rank not in written and rank not in evidence.absent
    ]
    if (terminated := evidence.terminated_first) in silent:
        return terminated
    # torchrun ends the others by SIGTERM when a rank has gone, some before they have said anything.
    left = [rank for rank in silent if evidence.signal_of(rank) != signal.SIGTERM] or silent
    awaited = [rank for rank in roots(waits) if rank in left]
    return next(iter(awaited), left[0] if len(left) == 1 else None)


def _stopped(evidence: RunEvidence, waits: tuple[Wait, ...], exit_code: int) -> FailureRecord:
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


def _without_cause(evidence: RunEvidence, exit_code: int | None) -> Diagnosis:
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
    seen = tuple(line for line in _beside(evidence) if not _is_told(line, cause, evidence))
    return Diagnosis(evidence.run_dir, cause, headline=cause.what, seen=seen, unknown=_unread(evidence))


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
    return record_of(evidence, STAGE0_RANK, "NoRecord", what, check)


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
    headline, seen = f"{fine} {ended}.", (*_beside(evidence), *_apart(evidence))
    asked = stream_ended(evidence.entries.get(STAGE0_RANK, []))
    is_empty = bool(count == 0 and asked)
    if is_empty:  # who asks for chunks has not ended well without any
        headline, seen = f"No rank failed, and no chunk came: {asked}", tuple(s for s in seen if s != asked)
    if evidence.odd_results or _useless_cuts(evidence):  # results may be wrong: that stands above a good end
        headline, seen = seen[0], (f"No rank failed: {ended}.", *seen[1:])
    is_alone = evidence.topology.mesh_size == 1 or "max_abs_diff" in (evidence.summary or {})
    return Diagnosis(
        evidence.run_dir,
        headline=headline,
        seen=seen,
        unknown=(
            *_unreleased(evidence),
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
    places = {rank: f"rank {rank}{_last(evidence, rank) or ' had not begun'}" for rank in evidence.pulses}
    stacks = {rank: stack.users.at for rank in silent if (stack := evidence.stack_of(rank)) and stack.users}
    places |= {rank: f"{places[rank]}, at {at}" for rank, at in stacks.items()}
    cause = ledger_difference(evidence) or record_of(evidence, NOBODY, "RanksGone", what, check)
    seen, unknown = _beside(evidence), _unread(evidence)
    return Diagnosis(evidence.run_dir, cause, headline=cause.what, seen=seen, places=places, unknown=unknown)
