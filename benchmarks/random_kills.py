"""Strike a run at a random moment: nothing hangs, nothing is left, the right one is named.

Each run is a small synthetic one, launched in a process of its own. At a moment drawn between its start and
its usual end (start-up is a third of the draws) something is done to it (``strikes``): SIGKILL, SIGSTOP or a
signal from outside to a rank, torchrun or the launcher; a pause of all of them; the loss of its run folder or
of its scratch folder. A victim that does not exist yet is struck when it does; one that has left well is no
failure, and the run must have ended well. Then:

- all ranks are gone within the bound, and torchrun soon after: 2 s after a kill or a signal, the plan's
  ``freeze_s`` and 1 s more after a stop; a run that may go on must end as if nothing had been, or so late
  that the wait which was cut off has ended;
- the launcher says that the run failed, and names the rank, torchrun, the pause or the folder; a stopped
  launcher does not stop the run, and reports it rightly once it goes on;
- no process is left, and no scratch folder of a launcher that could remove it.

``python benchmarks/random_kills.py --runs 200 --seed 0`` writes ``random_kills.md`` and exits with 1 if a run
did anything else. ``--load 2`` keeps two cores busy meanwhile; ``--only 17`` repeats one run of the series.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
from strikes import (
    CHUNKS,
    LOSSES,
    MESH_SIZES,
    POLL_S,
    SIGNALS,
    STRIKES,
    Case,
    Family,
    Moment,
    Usual,
    case_of,
    strike,
)

from ppwork.launcher.torchrun_watch import LEAVE_S
from ppwork.records.spans import Span, read_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TIMEOUT_S, FREEZE_S, STALL_S = 10.0, 2.0, 3.0
GONE_S = 2.0
"""From a kill until no rank is left; docs/reliability.md promises it."""
TORCHRUN_END_S = 3.0
"""From the end of the last rank until torchrun has written its report and left."""
NOTICE_S = 1.0
"""From the end of a bound until somebody looks and says so."""
REPORT_S = 5.0
"""From the end of the last rank until the launcher has reported and left."""
PATIENCE_S = 30.0
"""Past the bound, until we give a run up, kill it and call it a hang."""
WORDS = {"all": "was paused", "run folder": "was moved or removed", "scratch": "store"}
"""What must be said of what is no process; no rank is to be named."""
LAUNCHER = """
import signal, sys
for number in (signal.SIGTERM, signal.SIGHUP):  # as the command line
    signal.signal(number, lambda number, _: sys.exit(128 + number))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a series in the background has it ignored
import json, ppwork as pp
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1
run_dir, mesh_size, chunks, timeout_s, freeze_s, stall_s = sys.argv[1], *map(json.loads, sys.argv[2:])
plan = pp.Plan(
    mesh_size=mesh_size, chunks=chunks, backend="gloo", in_flight_depth=2, timeout_s=timeout_s,
    freeze_s=freeze_s, stall_s=stall_s, stage0=SYNTHETIC_STAGE0, stage1=SYNTHETIC_STAGE1,
    options={"encode_ms": 10, "decode_ms": 10, "stage1_ms": 30, "payload_mb": 0.25, "tp_sums": 2},
)
run = pp.launch(plan, out=run_dir, check=False)
said = str(run.failure) if run.failure else ""
where = run.failure.where if run.failure else {}
chunks = None if said else run.summary.get("chunks")
print(json.dumps({"said": said, "where": where, "chunks": chunks}))
"""


@dataclass
class Outcome:
    """What came of it; times are in seconds after the signal."""

    case: Case
    struck_s: float = 0.0
    """From the start of the launcher to the signal."""
    phase: str = ""
    """``start`` until all ranks have loaded, ``run``, ``end`` once the last chunk is out."""
    existed: bool = True
    """Whether the victim was still there to be struck."""
    bound_s: float = 0.0
    """For the ranks."""
    ranks_s: float = 0.0
    """Until all ranks were gone, for good."""
    gone_s: float = 0.0
    """Until torchrun and all ranks were gone."""
    over_s: float = 0.0
    """Until the launcher was, too."""
    left: list[str] = field(default_factory=list)
    said: str = ""
    """What the launcher reported; empty if the run ended well, or the launcher was killed."""
    well: bool = False
    """Whether the launcher reported that the run ended well."""
    named: bool | None = None
    """Whether the report names the victim; ``None`` where there is nothing to name."""
    wrong: list[str] = field(default_factory=list)


def start(run_dir: Path, mesh_size: int) -> Family:
    """Launch a run in a process of its own."""
    figures = (mesh_size, CHUNKS, TIMEOUT_S, FREEZE_S, STALL_S)
    return Family(run_dir, [sys.executable, "-c", LAUNCHER, str(run_dir), *map(str, figures)])


def usual_of(mesh_size: int, scratch: Path) -> Usual:
    """Let a run be, and measure it."""
    run_dir, began = scratch / f"usual-{mesh_size}", time.monotonic()
    family = start(run_dir, mesh_size)
    try:
        said = json.loads(family.popen.communicate(timeout=120.0)[0].splitlines()[-1])
    finally:
        family.end()
    if said["said"] or said["chunks"] != CHUNKS:
        raise RuntimeError(f"an undisturbed run failed: {said}")
    loaded = (loaded_ns(run_dir, mesh_size + 1) or 0) / 1e9
    return Usual(loaded - began, time.monotonic() - loaded)


def loaded_ns(run_dir: Path, world_size: int) -> int | None:
    """Return when the last rank had built its stage, the end of start-up; ``None`` if one has not."""
    ends = [
        [e.end_ns for e in read_entries(run_dir, rank) if isinstance(e, Span) and e.name == "load"]
        for rank in range(world_size)
    ]
    return max(of[0] for of in ends) if all(ends) else None


def play(case: Case, usual: dict[int, Usual], scratch: Path) -> Outcome:
    """Run one case to its end and judge it."""
    run_dir, outcome = scratch / f"run-{case.index}", Outcome(case)
    began = time.monotonic()
    family = start(run_dir, case.mesh_size)
    try:
        due = Moment(case, began, usual[case.mesh_size], run_dir)
        struck_at = _strike(family, case, outcome, due)
        outcome.struck_s = struck_at - began
        outcome.bound_s = bound_of(case, usual[case.mesh_size])
        _follow(family, outcome, struck_at)
        outcome.left = family.alive()
        if family.scratch is not None and not (case.ends_the_launcher and case.sent == "SIGKILL"):
            outcome.left.append("scratch folder")
    finally:
        family.end()
    judge(outcome, family.popen.stdout.read() if family.popen.stdout else b"", family.popen.returncode)
    return outcome


def _strike(family: Family, case: Case, outcome: Outcome, due: Moment) -> float:
    """Strike when it is due and the victim exists; return the moment, the end of a pause."""
    while family.popen.poll() is None and not (family.has(case.victim) and due.has_come()):
        family.look()
        time.sleep(POLL_S)  # the interval of looking
    world_size, now_ns = case.mesh_size + 1, time.monotonic_ns()
    if case.victim == "run folder":  # it cannot be read any more afterwards
        outcome.phase = phase_of(family.run_dir, world_size, now_ns)
    outcome.existed = strike(case, family)
    outcome.phase = outcome.phase or phase_of(family.run_dir, world_size, now_ns)
    return time.monotonic()


def _follow(family: Family, outcome: Outcome, struck_at: float) -> None:
    """Watch the run end; let a stopped launcher go on once there is nothing more to come without it."""
    case, ranks_at, gone_at = outcome.case, 0.0, 0.0
    resume_at = struck_at + FREEZE_S if "torchrun" not in family.members else None
    deadline = struck_at + outcome.bound_s + PATIENCE_S
    held = case.victim == "launcher" and case.sent == "SIGSTOP" and outcome.existed
    over = False
    while not over and time.monotonic() < deadline:
        family.look()
        now, there = time.monotonic(), family.alive()
        if held and (now > resume_at if resume_at else there == ["launcher"]):
            family.members["launcher"].resume()
            held = False
        left = family.popen.poll() is not None
        settled = left or "torchrun" in family.members
        # Some may still be started: it is the last time that counts.
        ranks_at = ranks_at or now if settled and not any(name.startswith("rank") for name in there) else 0.0
        gone_at = gone_at or now if settled and there in ([], ["launcher"]) else 0.0
        over = left and gone_at > 0.0
        time.sleep(POLL_S)  # the interval of looking
    now = time.monotonic()
    outcome.ranks_s, outcome.gone_s = (ranks_at or now) - struck_at, (gone_at or now) - struck_at
    outcome.over_s = now - struck_at


def phase_of(run_dir: Path, world_size: int, at_ns: int) -> str:
    """Say where a run was at a moment, by what its ranks wrote."""
    loaded = loaded_ns(run_dir, world_size)
    if loaded is None or loaded > at_ns:
        return "start"
    decoded = [e for e in read_entries(run_dir, 0) if isinstance(e, Span) and e.name == "decode"]
    return "end" if any(e.chunk_index == CHUNKS - 1 and e.end_ns < at_ns for e in decoded) else "run"


def bound_of(case: Case, usual: Usual) -> float:
    """Return how long a rank may be there after the strike."""
    if case.goes_on:
        waits = TIMEOUT_S if case.victim in ("run folder", "scratch") else FREEZE_S
        return 2 * (usual.start_s + usual.run_s) + waits
    if case.sent == "SIGSTOP":
        return FREEZE_S + NOTICE_S + GONE_S
    return GONE_S


def judge(outcome: Outcome, printed: bytes, code: int) -> None:
    """Fill in what the launcher said, and what was wrong."""
    _judge_words(outcome, printed, code)
    if past_bound(outcome):
        outcome.wrong.append(
            f"ranks were there for {outcome.ranks_s:.1f} s, torchrun for {outcome.gone_s:.1f} s"
        )
    if outcome.left:
        outcome.wrong.append(f"left: {outcome.left}")


def _judge_words(outcome: Outcome, printed: bytes, code: int) -> None:
    case, wrong, late_s = outcome.case, outcome.wrong, outcome.over_s - outcome.gone_s
    lines = printed.decode(errors="replace").splitlines()
    if case.ends_the_launcher and outcome.existed and not _is_json(lines):
        if "Traceback (most recent call last):" in lines and lines[-1] != "KeyboardInterrupt":
            wrong.append(f"the launcher ended with code {code}: {chr(10).join(lines[-8:])}")
        return
    if late_s > REPORT_S:
        wrong.append(f"the launcher took {late_s:.1f} s to report")
    try:
        said: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        wrong.append(f"the launcher ended with code {code}: {chr(10).join(lines[-8:])}")
        return
    outcome.said, outcome.well = said["said"], not said["said"]
    if outcome.said:
        outcome.named = _names(case, outcome.said, said["where"])
        if not outcome.existed or case.victim == "launcher":
            wrong.append("the run failed, and nothing had been done to it")
        elif not outcome.named:
            wrong.append(f"another one was named: {outcome.said}")
    elif said["chunks"] != CHUNKS:
        wrong.append(f"the run ended well with {said['chunks']} chunks")
    elif outcome.existed and outcome.phase == "run" and not case.goes_on and not case.ends_the_launcher:
        wrong.append("the victim was struck in mid-run, and the run ended well")


def past_bound(outcome: Outcome) -> bool:
    """Return whether ranks or torchrun were there for too long."""
    if outcome.well and outcome.phase == "start" and outcome.case.sent == "SIGINT":
        return False  # Python passes over an interrupt that comes in a callback of its own imports
    end_s = TORCHRUN_END_S + (LEAVE_S if outcome.case.victim == "scratch" else 0.0)
    return outcome.ranks_s > outcome.bound_s or outcome.gone_s > outcome.bound_s + end_s


def _is_json(lines: list[str]) -> bool:
    return bool(lines) and lines[-1].startswith('{"said"')


def _names(case: Case, said: str, where: dict[str, Any]) -> bool:
    if case.rank is not None:
        return bool(where.get("rank") == case.rank)
    if case.victim in WORDS:
        return WORDS[case.victim] in said and "rank" not in where
    return "torchrun" in said.splitlines()[0] and "rank" not in where


def rows_of(outcomes: list[Outcome]) -> Iterator[tuple[object, ...]]:
    """Yield one row for each kind of victim and signal."""
    kinds = ("rank 0", "leader", "follower", "torchrun", "launcher")
    struck_by = [(kind, sent) for kind in kinds for sent in (*STRIKES, *SIGNALS)]
    for kind, sent in [*struck_by, ("all", "pause"), *LOSSES]:
        those = [o for o in outcomes if kind_of(o.case) == kind and o.case.sent == sent]
        if not those:
            continue
        struck = [o for o in those if o.existed]
        judged = [o for o in struck if o.named is not None]
        gone = [o.ranks_s for o in struck if o.said or (o.case.ends_the_launcher and not o.well)]
        yield (
            kind, sent, len(those), sum(o.well for o in those),
            sum(past_bound(o) for o in those), sum(bool(o.left) for o in those),
            f"{sum(o.named is True for o in judged)} of {len(judged)}" if judged else None,
            statistics.median(gone) if gone else None, max(gone, default=None),
        )  # fmt: skip


def kind_of(case: Case) -> str:
    """Return the victim by role."""
    return {"rank 1": "leader", "rank 2": "follower", "rank 3": "follower"}.get(case.victim, case.victim)


def series(cases: Iterable[Case], parallel: int, keep: Path | None) -> tuple[list[Outcome], dict[int, Usual]]:
    """Play all cases, so many at a time; run folders of those that went wrong are kept where asked."""
    scratch, outcomes = Path(tempfile.mkdtemp(prefix="ppwork-")), []
    try:
        with ThreadPoolExecutor(parallel) as pool:
            measured = pool.map(partial(usual_of, scratch=scratch), MESH_SIZES)
            usual = dict(zip(MESH_SIZES, measured, strict=True))
            for outcome in pool.map(lambda case: play(case, usual, scratch), cases):
                outcomes.append(outcome)
                told(outcome)
                name = f"run-{outcome.case.index}"
                if outcome.wrong and keep is not None and (scratch / name).exists():
                    shutil.copytree(scratch / name, keep / name, dirs_exist_ok=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return outcomes, usual


def told(outcome: Outcome) -> None:
    """Print one line about a run, and what was wrong."""
    case = outcome.case
    end = outcome.said.splitlines()[0][:90] if outcome.said else "no failure reported"
    sys.stderr.write(
        f"{case.index:3} mesh {case.mesh_size} {case.sent} {case.victim:8} at {outcome.struck_s:4.1f} s "
        f"({outcome.phase}{'' if outcome.existed else ', gone'}) ranks gone after {outcome.ranks_s:4.1f} s "
        f"of {outcome.bound_s:4.1f}, torchrun {outcome.gone_s:4.1f}, launcher {outcome.over_s:4.1f}: {end}\n"
    )
    for what in outcome.wrong:
        sys.stderr.write(f"    WRONG: {what}\n")


def main() -> int:
    """Play the series asked for."""
    parser = common.described(__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs of the series")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--load", type=int, default=0, metavar="CORES")
    parser.add_argument("--keep", type=Path, help="folder for the run folders of runs that went wrong")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    cases = [case_of(asked.seed, index) for index in asked.only or range(asked.runs)]
    with common.busy(asked.load), common.Others() as others:
        outcomes, usual = series(cases, asked.parallel, asked.keep)
    columns = (
        "victim", "what", "runs", "ended well", "past bound", "left",
        "named right", "ranks gone, median s", "worst s",
    )  # fmt: skip
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    parts = [
        f"{len(outcomes)} runs, seed {asked.seed}, {asked.parallel} at a time, {asked.load} cores kept busy; "
        f"others took {others.share:.0%} of the machine. An undisturbed run takes "
        + " and ".join(f"{u.start_s:.1f} + {u.run_s:.1f} s at mesh size {size}" for size, u in usual.items())
        + f". `freeze_s` {FREEZE_S:g}, `timeout_s` {TIMEOUT_S:g}.",
        common.table(columns, rows_of(outcomes)),
        *(f"WRONG: {outcome.case}: {'; '.join(outcome.wrong)}" for outcome in wrong),
    ]
    data = {"seed": asked.seed, "load": asked.load, "usual": {n: asdict(u) for n, u in usual.items()}}
    data["runs"] = [asdict(outcome) for outcome in outcomes]
    text = common.report("random_kills", "Random kills", parts, data, asked.results)
    sys.stdout.write(json.dumps(data) + "\n" if asked.json else text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
