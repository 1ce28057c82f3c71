"""A job that the user's own torchrun has started: our planes, stages and loops in the user's program.

``join`` brings a rank up and writes the same records into the run folder as the ranks of ``ppwork run``, so
that ``ppwork timeline``, ``ppwork diagnose`` and ``pp.open`` can read it. ``stage_context``, ``run_stage0``
and ``run_mesh`` run stages of the contract; a user's own loop needs none of them.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch.distributed.device_mesh import DeviceMesh

from ppwork.errors import LocalProtocolError, PlanError, PPWorkError, named_chunks
from ppwork.plan import VERIFY_VARIABLE, Plan
from ppwork.process import LIFELINE_VARIABLE, SECONDARY
from ppwork.protocol.parity import THREADS_VARIABLE
from ppwork.protocol.topology import STAGE0_RANK, Role
from ppwork.records import last_stacks
from ppwork.records.clocks import host_of, whose_clock
from ppwork.records.failure import failure_file, record_of
from ppwork.records.files import write_whole
from ppwork.records.flight import NCCL_DUMP_NAME, NCCL_DUMP_VARIABLE
from ppwork.records.folder import REFUSED_FILE, new_run_dir
from ppwork.records.pulse import Pulse, pulse_file
from ppwork.records.run import (
    EARLY_LOOP,
    EARLY_SOURCE,
    FAILED_AT_END,
    METADATA_DIFFERS,
    QUEUE,
    SUMMARY_FILE,
    WRITES_DIFFER,
    WRONG,
    Run,
    mesh_notes,
)
from ppwork.records.spans import HANDLE_LET_GO, Entry, Instant, Recorder, read_entries, span_file
from ppwork.records.threads import written_down
from ppwork.runtime import FollowerPlane, Groups, Hook, LeaderPlane, MeshPlane, PPControlPlane, Stage0Plane
from ppwork.runtime.groups import join as join_groups
from ppwork.runtime.membership import Membership, gather
from ppwork.runtime.process_exit import show_in_short
from ppwork.stage import Generator, NoTensorParallel, Stage0, StageContext, StageKind, check_methods
from ppwork.worker import progress
from ppwork.worker.clock_exchange import gather_clocks, settle_clocks
from ppwork.worker.collectives import StageTPGroup, peer_of
from ppwork.worker.contract import figures_of, optional
from ppwork.worker.exit_barrier import exit_barrier_of
from ppwork.worker.last_words import FailureWriter, write_flight
from ppwork.worker.loops import follower_loop, leader_loop, stage0_loop
from ppwork.worker.orphan import die_with_torchrun
from ppwork.worker.stage_code import StageCode
from ppwork.worker.summary import write_summary
from ppwork.worker.tally import Tally
from ppwork.worker.user_errors import in_short
from ppwork.worker.user_lines import users_frame
from ppwork.worker.user_loop import UserLoop
from ppwork.worker.watchdog import Watchdog

log = logging.getLogger(__name__)

ONLY_SOME = (
    "only some mesh ranks wrote into a tensor that all had received, in %s: `ppwork diagnose` says who"
)
OTHER_METADATA = "mesh ranks gave different metadata with their results, in %s: `ppwork diagnose` says which"
NO_FOLDER = (
    "join without run_dir: no watchdog runs, the mesh ranks do not compare what they call and return, and "
    "`ppwork diagnose` will have nothing to read; join(plan, run_dir=...) gives all three"
)
UNCHECKED = (
    "ppwork: %d chunks came, and their numbers were not checked: "
    "`%s` compares them with those of a mesh of one"
)


@contextmanager
def join(
    plan: Plan,
    *,
    run_dir: Path | str | None = None,
    ranks: Sequence[int] | None = None,
    mesh: DeviceMesh | None = None,
) -> Iterator[PPControlPlane]:
    """Bring this process up as a rank of the job, and keep its records.

    Args:
        plan: The same on all ranks. If the process has no ``OMP_NUM_THREADS``, torch gets the plan's
            ``threads_per_rank``, unless the job has its own default group.
        run_dir: Folder for plan, spans, pulses, failure records and summary, the same for all ranks, new or
            empty; they are written once all ranks have joined. Hosts that do not share it have one each, with
            the records of their own ranks. ``None``, on all ranks or none: nothing is kept, and no watchdog
            runs; calls that a loop must not make are still refused. Each pipeline of a job, and each session,
            needs its own folder.
        ranks: The ranks of the job in this pipeline, ascending: stage 0, then the mesh; default: all. In
            folder and errors they count from 0. Other ranks of the job do not take part.
        mesh: The mesh ranks as the caller's ``DeviceMesh``, on each of them: stages sum over it, and it
            outlives the session.

    Raises:
        PlanError: The plan says ``verify``, torchrun has not started this process, ``ranks`` do not fit, or
            this process is in a pipeline that it has not left (this rank); the folder cannot be used (rank
            0); all before anything starts.
            Another host's folder cannot be used, a rank cannot write into its own, or ranks of one host named
            different folders (every rank, same text; before anything is sent; each may join again).
        PPWorkError: As ``PPControlPlane.join``, and any error that ends the block.

    Collective:
        All ranks of the pipeline; a process in several pipelines joins them one after another, in one order.
    """
    if plan.verify:
        raise PlanError(
            "The plan says verify; a job of your own torchrun has nothing to compare with.",
            check_first="`ppwork run --verify` with the same stages; keep_outputs and a mesh of 1 for a loop",
        )
    _settle_process()
    membership = Membership.here(ranks)
    if ranks is None and mesh is None:
        plan, run_dir = _to_be_verified(plan, run_dir, membership)
    if THREADS_VARIABLE not in os.environ and not membership.in_group:
        # torchrun sets it only on hosts with several ranks, so on some hosts of a job and not on others.
        os.environ[THREADS_VARIABLE] = str(plan.threads_per_rank)
        torch.set_num_threads(plan.threads_per_rank)
    if run_dir is None:
        groups = _told(join_groups(plan, membership, mesh))
        with PPControlPlane.join(plan, groups=groups) as plane, UserLoop.of(plane) as plane.watch:
            yield plane
        return
    rank, folder = membership.rank, Path(run_dir).absolute()
    with _refusal_kept(folder) if rank == STAGE0_RANK else nullcontext():
        if os.environ.get(NCCL_DUMP_VARIABLE, NCCL_DUMP_NAME).endswith(NCCL_DUMP_NAME):  # not the user's own
            os.environ[NCCL_DUMP_VARIABLE] = str(folder / NCCL_DUMP_NAME)
        groups = join_groups(plan, membership, mesh, run_dir="given")
        clocks, recorder, pulse = _begin_records(folder, plan, groups)
    if membership.job_rank != rank:
        log.info(
            "rank %d of the job is rank %d (%s) of %s", membership.job_rank, rank, groups.role, folder.name
        )
    words = FailureWriter(folder, rank, recorder)
    words.also = partial(write_flight, folder, rank)
    ending = ExitStack()
    try:
        stacks = ending.enter_context(last_stacks.kept(folder, rank))
        watchdog = Watchdog(
            plan, rank, folder, recorder, words=words, pulse=pulse, stacks=stacks,
            ends_stopped=not os.environ.get(LIFELINE_VARIABLE),
        )  # fmt: skip
        with recorder, written_down(folder, rank), watchdog:
            watchdog.joined(on_cuda=groups.uses_gpu, hangs_up=not membership.in_group)
            recorder.write(whose_clock(rank, clocks[rank]))
            try:
                settle_clocks(groups, recorder, clocks)
            except BaseException:  # there is no plane yet that would close the groups
                groups.abandon()
                raise
            with recorded(plan, groups, recorder, words) as plane:
                yield plane
            if rank == STAGE0_RANK:
                _sum_up(plan, folder, plane, of_job=ranks is None and mesh is None)
    except BaseException as error:
        words.write(error)
        if words.exit_code == SECONDARY:  # the record of a symptom has the traceback
            show_in_short(error, in_short(error, membership.job_rank, failure_file(folder, rank)))
        raise
    finally:
        with ending:  # also after an impatient Ctrl-C
            pulse.leave(words.exit_code)
            words.stay_for_peers()


def _new_folder(folder: Path) -> Path:
    return new_run_dir(folder, "run_dir", beside=(REFUSED_FILE,))


@contextmanager
def _refusal_kept(folder: Path) -> Iterator[None]:
    """Make the folder; if the body's start is refused, write down there why: the console alone had it."""
    _new_folder(folder)
    try:
        yield
    except PPWorkError as error:
        with suppress(OSError):  # the start's own error is the one to report
            if all(each.name == REFUSED_FILE for each in folder.iterdir()):
                write_whole(folder / REFUSED_FILE, msgspec.json.encode(record_of(error, STAGE0_RANK, {})))
        raise
    _remove(folder / REFUSED_FILE)


def _told(groups: Groups) -> Groups:
    log.log(logging.WARNING if groups.rank == STAGE0_RANK else logging.DEBUG, NO_FOLDER)
    return groups


def _settle_process() -> None:
    """Tie this process to its torchrun, and show its last stacks on the console."""
    die_with_torchrun()
    last_stacks.show_on_console()


def _to_be_verified(
    plan: Plan, run_dir: Path | str | None, membership: Membership
) -> tuple[Plan, Path | str | None]:
    """Return plan and folder; under ``ppwork verify`` those that it needs in their place."""
    folder = os.environ.get(VERIFY_VARIABLE)
    if not folder:
        return plan, run_dir
    return plan.replace(mesh_size=membership.job_size - 1, keep_outputs=True), folder


def _sum_up(plan: Plan, folder: Path, plane: PPControlPlane, *, of_job: bool) -> None:
    """Write the summary, with what a loop kept and the mesh ranks' notes: results that differ, idle cuts."""
    of_loop = not (folder / SUMMARY_FILE).exists()
    if of_loop:
        write_summary(plan, folder, plane.groups.device.type, kept=getattr(plane.watch, "kept", {}))
    mesh = {rank: read_entries(folder, rank) for rank in plane.groups.topology.mesh_ranks}
    if notes := mesh_notes(mesh):
        Run(folder, None).complete(notes)
    if WRITES_DIFFER in notes:
        log.warning(ONLY_SOME, named_chunks(notes[WRITES_DIFFER]))
    if METADATA_DIFFERS in notes:
        log.warning(OTHER_METADATA, named_chunks(notes[METADATA_DIFFERS]))
    if not plan.strict:
        notes, mesh = {key: chunks for key, chunks in notes.items() if key in WRONG}, {}
    _refuse_odd(plan, folder, notes, mesh, of_loop=of_loop)
    if of_job:
        _tell_how_to_verify(plan, folder)


def _tell_how_to_verify(plan: Plan, folder: Path) -> None:
    """Say on the console that a wrong share of the weights ends well, too, and which command finds it."""
    chunks = Run(folder, None).summary.get("chunks")
    if plan.mesh_size > 1 and chunks and VERIFY_VARIABLE not in os.environ:
        program, *arguments = sys.argv
        behind = ["--"] if any(each.startswith("-") for each in arguments) else []
        command = ["ppwork", "verify", "--nproc", str(plan.world_size), program, *behind, *arguments]
        log.warning(UNCHECKED, chunks, shlex.join(command))


def _refuse_odd(
    plan: Plan,
    folder: Path,
    notes: Mapping[str, Sequence[int]],
    mesh: Mapping[int, Sequence[Entry]],
    *,
    of_loop: bool,
) -> None:
    """Let a run that ended well fail if it was odd (rank 0).

    Raises:
        LocalProtocolError: It was: what mesh ranks have noted, and another number of chunks than planned.
    """
    odd = [f"{key.replace('_', ' ')} in {named_chunks(chunks)}" for key, chunks in notes.items()]
    odd += dict.fromkeys(
        f"a handle that nobody waited for at {entry.text}"
        for entries in mesh.values()
        for entry in entries
        if isinstance(entry, Instant) and entry.name == HANDLE_LET_GO
    )
    ended = sum(entry.name in ("emit", "drop") for entry in read_entries(folder, STAGE0_RANK))
    if plan.chunks not in (None, ended):
        odd.append(f"{ended} chunks, and the plan has chunks={plan.chunks}")
    if odd:
        raise LocalProtocolError(
            f"{FAILED_AT_END}{', as its plan is strict' * plan.strict}: {'; '.join(odd)}.",
            where={"rank": STAGE0_RANK, "role": str(Role.STAGE0)},
            check_first="`ppwork diagnose` says more of each"
            if plan.strict
            else next((WRONG[key] for key in WRONG if key in notes), EARLY_LOOP if of_loop else EARLY_SOURCE),
        )


def _begin_records(folder: Path, plan: Plan, groups: Groups) -> tuple[list[str], Recorder, Pulse]:
    """Write the plan, make this rank's files, and return them after the names of all ranks' clocks.

    Raises:
        PlanError: Some rank cannot write, or as ``_make_folder_of_host`` (every rank, same text).
        PeerTimeoutError: A peer did not come (the ranks that came).
        After each error this rank's files are removed, and its groups are closed.

    Collective:
        The store, all ranks.
    """
    rank, problem = groups.rank, ""
    with ExitStack() as undo:
        undo.push(partial(_let_go, groups))
        if rank == STAGE0_RANK:  # only now: the next start may use the folder of a refused one
            try:
                plan.save(_new_folder(folder))
                undo.callback(_remove, folder / Plan.FILE_NAME)
            except (PlanError, OSError) as error:
                problem = _unwritten(rank, folder, error)
        clocks = gather_clocks(groups)
        _make_folder_of_host(folder, plan, groups, [host_of(name) for name in clocks])
        try:
            undo.callback(_remove, span_file(folder, rank))
            recorder = undo.enter_context(Recorder(span_file(folder, rank)))
            undo.callback(_remove, pulse_file(folder, rank))
            pulse = Pulse(folder, rank)
        except OSError as error:
            problem = problem or _unwritten(rank, folder, error)
        problems = gather(groups.store, "records", problem.encode(), rank, groups.topology.world_size)
        if said := next(filter(None, problems), b""):
            check = "may that rank's user write there, is it a file, is the disk full?"
            raise PlanError(said.decode(), where={"rank": rank}, check_first=check)
        undo.pop_all()
    return clocks, recorder, pulse


def _let_go(groups: Groups, kind: type[BaseException] | None, *_: object) -> None:
    """Close the groups after a start that was refused, or that lost a peer."""
    if kind is not None and issubclass(kind, PlanError):  # every rank raises it: no rank waits for another
        groups.close()
    else:
        groups.abandon()


def _unwritten(rank: int, folder: Path, error: PlanError | OSError) -> str:
    if isinstance(error, PlanError):
        return error.what
    return f"Rank {rank} cannot write {error.filename or folder}: {error.strerror}."


def _remove(path: Path) -> None:
    with suppress(OSError):  # it was never made
        path.unlink()


def _make_folder_of_host(folder: Path, plan: Plan, groups: Groups, hosts: list[str]) -> None:
    """Make the folder on this host, if it does not see rank 0's; the host's first rank makes it.

    Raises:
        PlanError: A host's folder is not empty, or cannot be used; or ranks of one host named different
            folders (every rank, same text).

    Collective:
        The store, all ranks.
    """
    rank, world_size = groups.rank, groups.topology.world_size
    if len(set(hosts)) == 1:
        every = gather(groups.store, "folder", os.fsencode(folder), rank, world_size)
        first, *others = (Path(os.fsdecode(raw)) for raw in every)  # all ranks see it: rank 0 has made it
        for peer, other in enumerate(others, 1):
            if not (other.exists() and other.samefile(first)):
                what = f"The ranks have different run_dirs: rank 0 {first}, rank {peer} {other}."
                check = "one folder for all ranks: a name with the time or the rank in it is another on each"
                raise PlanError(what, where={"rank": rank}, check_first=check)
        return
    path = folder / Plan.FILE_NAME
    # On a file system that hosts share, each sees when rank 0 wrote the plan.
    written = str(path.stat().st_mtime_ns) if path.exists() else ""
    shown = gather(groups.store, "folder", written.encode(), rank, world_size)[STAGE0_RANK].decode()
    problem = ""
    if written != shown and rank == hosts.index(hosts[rank]):
        try:
            plan.save(_new_folder(folder))
        except PlanError as error:
            problem = f"{error.what} That is on {hosts[rank]}, where rank {rank} runs."
        except OSError as error:
            problem = f"{path} on {hosts[rank]} cannot be written: {error.strerror}."
    problems = gather(groups.store, "folders", problem.encode(), rank, world_size)
    if said := next(filter(None, problems), b""):
        raise PlanError(said.decode(), where={"rank": rank}, check_first="a new folder, on every host")


@contextmanager
def recorded(
    plan: Plan, groups: Groups, recorder: Recorder, words: FailureWriter, hook: Hook | None = None
) -> Iterator[PPControlPlane]:
    """Yield this rank's plane; it writes a failure before its peers hear of it, and at the end its queues."""

    def on_failure(error: BaseException) -> None:
        # If the block was simply left, nothing was raised yet: use the line of its `with`.
        if (
            isinstance(error, PPWorkError)
            and not (error.source or error.__traceback__ or error.__cause__)
            and (frame := users_frame(sys._getframe())) is not None
        ):
            error.source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if isinstance(error, PPWorkError):
            error.at(peer=peer_of(error, groups))
        words.write(error, where=plane.where)
        symptom = words.record is not None and words.record.symptom
        computing = bool(plane.session.in_flight)
        words.exit_barrier = exit_barrier_of(
            groups.rank, plan.topology, error, symptom=symptom, computing=computing
        )
        if groups.membership is not None and groups.membership.in_group:
            # To hang up would close the job's own connections, too; the process's end closes ours.
            words.exit_barrier = replace(words.exit_barrier, deaf=())

    plane = PPControlPlane.join(plan, groups=groups, recorder=recorder, hook=hook, on_failure=on_failure)
    plane.run_dir = words.run_dir
    with plane, UserLoop.of(plane) as plane.watch:
        yield plane
        for queue in plane.statistics():
            fill = {"bound": queue.bound, "most": queue.most, "done": queue.done}
            recorder.instant(QUEUE + queue.name, figures=fill)


def stage_context(plane: PPControlPlane) -> StageContext:
    """Return the context for a stage of this rank; ``tp`` has the mesh's sum, group and ``DeviceMesh``.

    It belongs to this session: a stage that stays for the next session takes ``tp`` from that one's context.

    Raises:
        LocalProtocolError: The plan is not a ``Plan``, which stages need (this rank).
    """
    if isinstance(plane, Stage0Plane):
        return StageContext(_plan_of(plane), plane.groups.device, NoTensorParallel(), plane.run_dir)
    return StageContext(_plan_of(plane), plane.groups.device, StageTPGroup(plane.groups))


def run_stage0(plane: Stage0Plane, stage0: Stage0) -> dict[str, object]:
    """Rank 0: send all chunks of the stage by the plan's schedule, decode the results, and shut down.

    Returns:
        The figures that ``finish`` returned; the summary has them, too.

    Raises:
        PlanError: A method's parameters break the contract (this rank).
        PPWorkError: Any error that ends the run.
    """
    plan = _plan_of(plane)
    check_methods(type(stage0), StageKind.STAGE0)
    plane.watch = None  # our own loop records itself, step by step
    progress.leave(None)
    kept = stage0_loop(plane, plan, stage0)
    with StageCode("finish", stage0, plane.groups, plane.session.last_ids.where()):
        figures = figures_of(stage0, optional(stage0, "finish")())
    if plane.run_dir is not None:
        write_summary(plan, plane.run_dir, plane.groups.device.type, figures, kept)
    return figures


def run_mesh(plane: MeshPlane, generator: Generator, tally: Tally | None = None) -> None:
    """Mesh rank: compute every chunk that comes, until rank 0 says that the stream has ended.

    Args:
        plane: The leader's or a follower's plane.
        generator: This rank's generator.
        tally: The generator's counts, if its class counts the calls itself (``tally.counted``).

    Raises:
        PlanError: A method's parameters break the contract (this rank).
        PPWorkError: Any error that ends the run.
    """
    plan = _plan_of(plane)
    check_methods(type(generator), StageKind.GENERATOR)
    tally = tally or Tally(plane.groups.rank, str(plane.role), plan.compare_collectives)
    if isinstance(plane.watch, UserLoop):
        tally.shared, plane.watch = plane.watch.calls, None  # our own loop records and guards itself
    if isinstance(plane, LeaderPlane):
        leader_loop(plane, plan, generator, tally)
    elif isinstance(plane, FollowerPlane):
        follower_loop(plane, plan, generator, tally)


def _plan_of(plane: PPControlPlane) -> Plan:
    if isinstance(plane.plan, Plan):
        return plane.plan
    raise LocalProtocolError(
        f"The plan was a {type(plane.plan).__name__}; stages need a Plan.",
        where={"rank": plane.groups.rank, "role": str(plane.role)},
        check_first="Plan(mesh_size=..., chunks=...) in place of it",
    )
