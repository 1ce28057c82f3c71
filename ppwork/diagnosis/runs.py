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
from pathlib import Path

from msgspec.structs import replace

from ppwork.diagnosis.branches import early_ends
from ppwork.diagnosis.findings import NO_RECORD, NOBODY, RANK_DIED, Diagnosis, Wait, source_lines
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
from ppwork.diagnosis.run_ends import last_told, stopped, without_cause
from ppwork.diagnosis.run_evidence import ENDED_WELL, RunEvidence
from ppwork.diagnosis.run_notes import is_told, noted, ranks_apart, too_few, unread
from ppwork.diagnosis.stacks import HEAD, Frame, callers_of, frames_of, line_of
from ppwork.diagnosis.uneven_collectives import (
    MISMATCH,
    beside,
    last_collective,
    ledger_difference,
    on_the_carrier,
    stood_apart,
    uneven,
    widened,
    with_loop,
)
from ppwork.diagnosis.waits import roots, waits_of
from ppwork.errors import (
    PeerTimeoutError,
    PlanError,
    StuckError,
    TerminalNotice,
    listed,
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
    told_of_results,
)
from ppwork.records.run import (
    FAILED_AT_END,
    ODD_RESULTS,
    TORCHRUN_LOG,
    WRONG,
    FinishedProgram,
    stream_ended,
)

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
        raise PlanError(
            f"{paths[0]} cannot be read: it is not there.",
            check_first="the path; if a run was to begin there, its console says why it did not: "
            "`ppwork diagnose CONSOLE.log`",
        )
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
        return without_cause(evidence, exit_code)
    if cause.error_type == KeyboardInterrupt.__name__ and not _was_raised(cause):
        cause = _interrupted(evidence, cause)
    # Who noticed saw those that had come by then, and the ledgers have who came later.
    if cause.between and (all_of_them := ledger_difference(evidence)) is not None:
        cause = widened(cause, all_of_them)
    return _explained(evidence, statements, with_loop(cause), waits)


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
        loads = [rank for rank in awaited if (pulse := evidence.pulses.get(rank)) and not pulse.ids]
        load = "; does it load for longer than `timeout_s`? it had begun no chunk" if loads else ""
        return f"{words}: the others waited for it, and it waited for nobody{load}"
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
    beside_it = noted(evidence)
    at_end = cause.what.startswith(FAILED_AT_END)
    if at_end:
        beside_it += ranks_apart(evidence)
    beside_it += too_few(evidence, cause)
    told = "" if at_end else _answer_of_another_shape(evidence, cause)
    if told:
        cause, beside_it = replace(cause, check_first=WRONG[ODD_RESULTS]), beside_it[1:]
    left_nothing = cause.error_type in (RANK_DIED, NO_RECORD) or tells_of_a_freeze(cause)
    last = last_collective(evidence, cause.rank) if left_nothing and not cause.source else ""
    if last:
        beside_it = (last, *beside_it)
    is_known = {*flights, *([cause.rank] if last else [])}
    missing = [rank for rank in evidence.topology.mesh_ranks if flights and rank not in is_known]
    unknown = tuple(f"which collective rank {rank} was at: it left no flight record" for rank in missing)
    return Diagnosis(
        evidence.run_dir,
        cause,
        lines=users_lines(cause, evidence.run_dir) if not (cause.symptom or cause.between or at_end) else (),
        log=evidence.log_of(cause.rank),
        seen=tuple(line for line in beside_it if not is_told(line, cause, evidence)),
        others=tuple(others),
        places=_places(evidence, cause, others, waits, alike),
        waits=tuple(wait._replace(call=evidence.in_their_words(wait.call)) for wait in waits),
        # A rank that fails leaves the others at other counts, and a guard has named the calls itself.
        flight=tuple(map(str, differences(flights))) if hang and not cause.between else (),
        unknown=unread(evidence) + (unknown if hang else ()) + open_questions(evidence, cause, others),
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
        lines[record.rank] = f"then rank {record.rank}{after}: {error}{last_told(evidence, record.rank)}"
    for rank in range(evidence.topology.world_size):
        if rank not in (cause.rank, *lines, *waiting) and not (rank in evidence.absent and cause.rank < 0):
            lines[rank] = f"rank {rank} {evidence.end_of(rank)}{last_told(evidence, rank)}"
    return lines


def _error(record: FailureRecord) -> str:
    return f"{record.error_type}: {without_noise(record.what.partition(chr(10))[0])}".removesuffix(": ")


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
        return stopped(evidence, waits, exit_code)
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
        return record_of(evidence, rank, NO_RECORD, what, symptom.check_first, stack)
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
        check += "that is not in it ended with code 0, as by `os._exit(0)`. `ppwork diagnose FOLDER CONSOLE` "
        check += "reads it"
    return record_of(evidence, rank, NO_RECORD, what, check, stack)


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
