"""The fault catalogue as data, and its verdicts: a made-up report that is wrong anywhere is not caught."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import msgspec
import pytest
from checkout import BENCHMARKS
from failure_records import record
from msgspec.structs import replace
from typer.testing import CliRunner

from ppwork.cli import faults
from ppwork.errors import WHERE_KEYS, PlanError, RunFailed
from ppwork.faults.catalogue import AT_CHUNK, FAULTS, fault_of, ranks_of, small_plan, with_fault
from ppwork.faults.facts import FACTS
from ppwork.faults.fault import (
    ANY,
    CPU,
    FAILS,
    GPU,
    NOBODY,
    OUTSIDE,
    SUCCEEDS,
    TWO_HOSTS,
    Bound,
    Case,
)
from ppwork.faults.report import (
    CAUGHT,
    NOT_CAUGHT,
    FaultReport,
    LeftoverProcess,
    Notice,
    is_open,
    judged,
    not_run,
)
from ppwork.faults.runs import names_of, run_case
from ppwork.faults.stages import SMALL_FRAMES
from ppwork.launcher.checks import resolve
from ppwork.plan import Plan
from ppwork.protocol.topology import Role, Topology
from ppwork.records.failure import write_record
from ppwork.records.run import Run
from ppwork.records.spans import Instant, Recorder, span_file

CASES = [(fault, case) for fault in FAULTS for case in fault.cases]
NAMES = [f"{fault.id}/{case.name}" for fault, case in CASES]


# The catalogue


def test_the_catalogue_is_complete_and_each_id_is_there_once():
    assert [fault.id for fault in FAULTS] == [f"F{number:02}" for number in range(1, 23)]
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(("fault", "case"), CASES, ids=NAMES)
def test_every_case_says_what_is_injected_and_what_good_looks_like(fault, case: Case):
    assert all((fault.title, fault.good, fault.lesson, case.injected))
    assert re.fullmatch(r"[a-z0-9-]+", case.name)
    assert case.needs in (CPU, GPU, TWO_HOSTS)
    expect = case.expect
    assert set(expect.where) <= set(WHERE_KEYS)
    assert set(expect.facts) <= set(FACTS)
    assert set(expect.first) <= {*Role, ANY, NOBODY}
    assert (expect.outcome == FAILS) == bool(expect.first), "who is named first is said of failures, only"
    assert expect.facts or expect.errors or expect.outcome != SUCCEEDS, "what would show that it went well?"
    for bound in (expect.notice, expect.gone):
        assert bound.because
        assert 0 < bound.seconds(small_plan()) <= 30


@pytest.mark.parametrize(
    "name", [name for name, (_, case) in zip(NAMES, CASES, strict=True) if case.place != OUTSIDE]
)
def test_a_plan_can_carry_every_case_that_happens_in_a_rank_or_in_the_plan(name):
    plan = with_fault(small_plan(3), name)
    assert plan.fault == name
    if name == "F11/weights":  # it needs the shipped denoiser, which refuses options that it does not have
        resolve(plan)
        assert plan.options == SMALL_FRAMES
    else:
        assert plan.options.items() >= {"payload_mb": 0.05, "tp_sums": 1}.items()
    assert Plan.from_json(plan.to_json()) == plan


def test_a_fault_without_a_case_is_its_first_case():
    assert with_fault(small_plan(), "F13").fault == f"F13/{fault_of('F13')[0].cases[0].name}"


@pytest.mark.parametrize(
    ("name", "said", "remedy"),
    [
        ("F99", "no fault 'F99'", "F01, F02"),
        ("", "no fault ''", "F22"),
        ("F06/loud", "F06 has no case 'loud'", "version, action"),
        ("F18/ctrl-c", "comes from outside", "ppwork fault run F18 --case ctrl-c"),
    ],
)
def test_a_fault_that_cannot_be_is_a_plan_error_with_the_remedy(name, said, remedy):
    with pytest.raises(PlanError, match=re.escape(said)) as raised:
        with_fault(small_plan(), name)
    assert remedy in raised.value.check_first


def test_a_fault_needs_its_rank_and_its_chunk():
    with pytest.raises(PlanError, match="a mesh of 1 has none"):
        with_fault(small_plan(1), "F08/wrong-group")
    with pytest.raises(PlanError, match=f"comes with chunk {AT_CHUNK}"):
        with_fault(small_plan().replace(chunks=AT_CHUNK), "F01")


def test_roles_mean_the_last_follower_and_any_means_all():
    assert ranks_of(("stage0", "leader", "follower"), Topology(4)) == (0, 1, 4)
    assert ranks_of((ANY,), Topology(2)) == (0, 1, 2)


def test_a_bound_comes_after_the_plan_s_own():
    plan = small_plan().replace(stall_s=None, timeout_s=10.0, freeze_s=1.5)
    assert Bound(2.0, after="stall_s").seconds(plan) == 10.0
    assert Bound(2.0, after="freeze_s").seconds(plan) == 3.5
    assert Bound(2.0).seconds(plan) == 2.0


def test_names_of_a_fault_are_its_cases():
    assert names_of([]) == NAMES
    assert names_of(["F12"]) == ["F12/more", "F12/fewer"]
    assert names_of(["F12"], "fewer") == ["F12/fewer"]
    with pytest.raises(PlanError):
        names_of(["F12"], "none")


# Verdicts


def good(name: str) -> tuple[FaultReport, Case, Plan]:
    """A made-up report of a failure that is all that the case wants."""
    fault, case = fault_of(name)
    plan = small_plan()
    expect = case.expect
    report = FaultReport(
        fault=fault.id,
        case=case.name,
        injected=case.injected,
        outcome=expect.outcome,
        injected_rank=0,
        injected_ns=10**9,
        noticed=Notice(1, "PeerLostError", 0.1),
        named=ranks_of(expect.first, plan.topology)[0] if expect.first else None,
        error_type=expect.errors[0] if expect.errors else "",
        what=" ".join(expect.said),
        where=dict.fromkeys(expect.where, 1),
        gone_s=0.5,
        all_gone_s=0.9,
        facts=dict.fromkeys(expect.facts, ""),
    )
    return report, case, plan


@pytest.mark.parametrize("name", NAMES)
def test_a_report_of_all_that_the_case_wants_is_caught(name):
    found = judged(*good(name))
    assert (found.verdict, found.reasons) == (CAUGHT, ())
    assert not is_open(found)


KILL = "F13/follower-mid-compute"
WRONG = {
    "another rank named": (KILL, {"named": 1}, "rank 1 was named first; it should be rank 2"),
    "nobody named": (KILL, {"named": None}, "nobody was named first"),
    "another error": (
        KILL,
        {"error_type": "PeerLostError"},
        "the error was PeerLostError; it should be RankDied",
    ),
    "words missing": (KILL, {"what": "it died"}, "does not say 'SIGKILL'"),
    "where missing": ("F01/object", {"where": {"rank": 0}}, "`where` lacks role, call_id, chunk_index"),
    "noticed late": (
        KILL,
        {"noticed": Notice(1, "PeerLostError", 2.1)},
        "first notice came after 2.10 s; 2 s",
    ),
    "ranks gone late": (KILL, {"gone_s": 2.2}, "last rank was gone after 2.20 s; 2 s are allowed"),
    "torchrun gone late": (KILL, {"all_gone_s": 5.1}, "last process was gone after 5.10 s; 5 s are allowed"),
    "end of ranks unknown": (KILL, {"gone_s": None}, "not known when the last rank was gone"),
    "end unknown": (KILL, {"all_gone_s": None}, "not known when the last process was gone"),
    "a process left": (KILL, {"left": (LeftoverProcess(7, 1.0, "worker"),)}, "1 processes were left running"),
    "nothing injected": (KILL, {"injected_ns": None}, "nothing was injected"),
    "it went well": (KILL, {"outcome": SUCCEEDS}, "the run succeeds; it should be: fails"),
    "a fact broken": (
        "F01/object",
        {"facts": {"nothing sent": "chunk 3", "peers told": ""}},
        "nothing sent: chunk 3",
    ),
    "a fact not looked up": ("F01/object", {"facts": {"peers told": ""}}, "nothing sent: was not looked up"),
    "failed instead of ended well": ("F09/flush", {"outcome": FAILS}, "it should be: succeeds"),
    "started instead of refused": ("F20/unwritable", {"outcome": FAILS}, "it should be: refused"),
    "refused for another reason": ("F20/unwritable", {"what": "no"}, "does not say 'cannot be used'"),
    "stopped run late": ("F18/ctrl-c", {"gone_s": 60.0}, "gone after 60.00 s"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_report_that_is_wrong_anywhere_is_not_caught_and_says_why(how):
    name, changes, said = WRONG[how]
    report, case, plan = good(name)
    found = judged(replace(report, **changes), case, plan)
    assert found.verdict == NOT_CAUGHT
    assert is_open(found)
    assert said in "\n".join(found.reasons)


def test_what_the_machine_cannot_run_is_neither():
    found = not_run("F15", fault_of("F15/out-of-memory")[1])
    assert found.verdict == "needs GPU"
    assert not is_open(found)


# Facts of a run's folder


def written(tmp_path, *instants: tuple[int, str, int, dict[str, float]], plan: Plan | None = None) -> Run:
    """A made-up run folder with these instants: rank, name, chunk, figures."""
    plan = plan or small_plan()
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    for rank in range(plan.world_size):
        with Recorder(span_file(tmp_path, rank)) as recorder:
            for of, name, chunk, figures in instants:
                if of == rank:
                    recorder.write(Instant(name, "main", 1, chunk, chunk, 0, figures))
    return Run(tmp_path, 1, RunFailed("synthetic.py:9", where={"rank": 0}))


SENT, CAST, EMIT = "envelope.send", "mesh.broadcast", "emit"
ALL = [(0, EMIT, k, {}) for k in range(12)]
AGES = [(0, EMIT, k, {"age": float(k + 1 if k < 5 else k - 4)}) for k in range(12)]
CUT = small_plan().replace(hard_cuts=(5,))
FLUSH = small_plan().replace(flushes=(5,))
MARK = (0, "fault.injected", 5, {"in_flight": 2.0})


@pytest.mark.parametrize(
    ("fact", "holds", "broken", "plan"),
    [
        ("nothing sent", [(0, SENT, 2, {})], [(0, SENT, AT_CHUNK, {})], None),
        ("mesh unseen", [(1, CAST, 2, {})], [(1, CAST, AT_CHUNK, {})], None),
        ("mesh unseen", [(2, "x", 2, {})], [(2, "x", AT_CHUNK, {})], None),
        ("no inference", [(0, "clock", -1, {})], [(1, "generate", 0, {})], None),
        ("nothing dropped", ALL, ALL[:-1], None),
        ("as if begun there", AGES, [*AGES[:6], (0, EMIT, 6, {"age": 7.0}), *AGES[7:]], CUT),
        ("as if begun there", AGES, AGES[:8], CUT),
        (
            "in flight dropped",
            [MARK, (0, "drop", 3, {}), (0, "drop", 4, {})],
            [MARK, (0, "drop", 4, {})],
            FLUSH,
        ),
        ("in flight dropped", [MARK, (0, "drop", 3, {}), (0, "drop", 4, {})], [], FLUSH),
        ("second caller refused", [(0, "fault.refused", -1, {})], [], None),
    ],
)
def test_a_fact_holds_in_one_folder_and_not_in_the_other(tmp_path, fact, holds, broken, plan):
    for name, instants in {"holds": holds, "broken": broken}.items():
        (tmp_path / name).mkdir()
        found = FACTS[fact](written(tmp_path / name, *instants, plan=plan))
        assert bool(found) == (name == "broken"), found


def test_queues_sources_and_records_are_looked_up(tmp_path):
    run = written(tmp_path)
    queue = {"rank": 1, "name": "ready", "bound": 4, "most": 4}
    for most, well in ((4, True), (5, False)):
        (tmp_path / "summary.json").write_bytes(msgspec.json.encode({"queues": [{**queue, "most": most}]}))
        assert (FACTS["queues within bounds"](run) == "") is well
    (tmp_path / "summary.json").unlink()
    assert FACTS["queues within bounds"](run)
    assert FACTS["source of the stage"](run) == ""
    assert FACTS["source of the stage"](Run(tmp_path, 1, RunFailed("nothing")))
    assert FACTS["records whole"](run) == ""
    (tmp_path / "failure-rank1.json").write_bytes(b'{"rank": 1')
    assert "failure-rank1.json does not read" in FACTS["records whole"](run)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({1: ("TerminalNotice", "ended by a peer: boom"), 2: ("TerminalNotice", "by a peer: boom")}, ""),
        ({2: ("PeerLostError", "closed: boom")}, "not told were rank 2: PeerLostError"),
        ({1: ("TerminalNotice", "ended by a peer")}, "not told were rank 1: TerminalNotice"),
        ({}, "no other rank spoke"),
    ],
)
def test_peers_are_told_by_a_notice_with_the_cause_and_not_by_a_closed_connection(tmp_path, others, said):
    run = written(tmp_path)
    assert FACTS["peers told"](run) == "no rank named the cause"
    for rank, (kind, what) in {0: ("StageError", "boom"), **others}.items():
        write_record(tmp_path, record(rank=rank, error_type=kind, what=what))
    assert FACTS["peers told"](run) == said


# The command


def test_the_list_has_every_case_and_as_json_the_whole_catalogue():
    text = CliRunner().invoke(faults.app, ["list"], env={"COLUMNS": "200"}).output
    assert all(case.name in text for _, case in CASES)
    as_json = msgspec.json.decode(CliRunner().invoke(faults.app, ["list", "--json"]).output)
    assert [fault["id"] for fault in as_json] == [fault.id for fault in FAULTS]


@pytest.mark.parametrize(("named", "code", "verdict"), [(2, 0, CAUGHT), (0, 1, NOT_CAUGHT)])
def test_the_command_fails_when_a_case_was_not_caught(monkeypatch, named, code, verdict):
    report, case, plan = good(KILL)
    asked = []

    def run_case(name: str, *, mesh_size: int, backend: str, keep: Path | None) -> FaultReport:
        asked.append((name, mesh_size, backend, keep))
        return judged(replace(report, named=named), case, plan)

    monkeypatch.setattr(faults, "run_case", run_case)
    options = ["run", "F13", "--case", "follower-mid-compute", "--keep", "/k", "--mesh-size", "2"]
    result = CliRunner().invoke(faults.app, options, env={"COLUMNS": "200"})
    assert result.exit_code == code
    assert asked == [(KILL, 2, "gloo", Path("/k"))]
    assert verdict in result.output
    assert "rank 1: PeerLostError, 0.100 s" in result.output


@pytest.mark.parametrize("name", [KILL, "F20/unwritable"], ids=["fails", "is refused by itself"])
def test_a_case_on_nccl_shares_one_gpu_and_is_bad_input_where_there_is_none(monkeypatch, tmp_path, name):
    """No verdict: what was not injected was not missed."""
    monkeypatch.setattr("ppwork.launcher.checks.count_gpus", lambda: 0)
    with pytest.raises(PlanError, match="NCCL needs one GPU per rank: 1 for this mesh"):
        run_case(name, backend="nccl", keep=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [KILL, "F20/unwritable", "F18/ctrl-c"])
def test_an_environment_that_every_run_refuses_is_bad_input_and_no_verdict(monkeypatch, tmp_path, name):
    """They said `not caught` after a minute; a log level was misspelt."""
    monkeypatch.setenv("PPWORK_LOG_LEVEL", "LOUD")
    with pytest.raises(PlanError, match="PPWORK_LOG_LEVEL was 'LOUD'"):
        run_case(name, keep=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["F07/leader", "F21/world-size"], ids=["in a rank", "by hand"])
def test_a_case_whose_folder_is_kept_from_before_is_bad_input(tmp_path, name):
    kept = tmp_path / name.replace("/", "-")
    kept.mkdir()
    (kept / "plan.json").touch()
    with pytest.raises(PlanError, match="exists; nothing was overwritten"):
        run_case(name, keep=tmp_path)


def test_a_refusal_that_no_case_is_about_is_bad_input_and_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setenv("PPWORK_LOG_LEVEL", "x")
    with pytest.raises(PlanError, match="PPWORK_LOG_LEVEL"):
        run_case(KILL, keep=tmp_path)


@pytest.fixture
def rounds(monkeypatch):
    """The benchmark that runs the catalogue in rounds, and a function that runs it with options."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("faults")

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["faults.py", *map(str, options)])
        return module.main()

    yield module, run
    for name in ("faults", "common"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("named", "code", "verdict"), [(2, 0, CAUGHT), (0, 1, NOT_CAUGHT)])
def test_rounds_fail_when_a_case_was_not_caught_in_any(
    monkeypatch, tmp_path, capsys, rounds, named, code, verdict
):
    report, case, plan = good(KILL)
    asked = []

    def run_case(name: str, *, mesh_size: int, keep: Path | None) -> FaultReport:
        asked.append((name, mesh_size, keep))
        # the last of three rounds is the one that tells
        return judged(replace(report, named=named if len(asked) == 3 else 2), case, plan)

    module, run = rounds
    monkeypatch.setattr(module, "run_case", run_case)
    monkeypatch.setattr(module, "names_of", lambda wanted: [KILL] if wanted == ["F13"] else [])
    assert run("F13", "--rounds", 3, "--keep", "/k", "--results", tmp_path) == code
    assert asked == [(KILL, 2, Path(f"/k/round-{n}")) for n in (1, 2, 3)]
    text = capsys.readouterr().out
    assert f"{verdict} {3 if code == 0 else 2}/3" in text
    assert f"{3 if code == 0 else 2} of 3 runs caught, 0 processes left running" in text
    assert "rank 1: PeerLostError, 0.100 s" in text


def test_the_table_goes_into_a_page_as_well(monkeypatch, tmp_path, rounds):
    module, run = rounds
    monkeypatch.setattr(module, "run_case", lambda name, **_: judged(*good(name)))
    assert run("F12", "--rounds", 1, "--results", tmp_path) == 0
    lines = [text for text in (tmp_path / "faults.md").read_text().splitlines() if text.startswith("|")]
    head, _, *rows = lines
    assert head.startswith("| fault | case | injected |")
    assert [row.split(" | ")[1] for row in rows] == ["more", "fewer"]
    assert all(row.endswith(f"| 0 | {CAUGHT} |") for row in rows)


def test_as_json_the_command_prints_every_report(monkeypatch):
    monkeypatch.setattr(faults, "run_case", lambda name, **_: judged(*good(name)))
    result = CliRunner().invoke(faults.app, ["run", "F12", "--json"])
    assert result.exit_code == 0
    found = msgspec.json.decode(result.stdout, type=list[FaultReport])
    assert [(one.fault, one.case, one.verdict) for one in found] == [
        ("F12", "more", CAUGHT),
        ("F12", "fewer", CAUGHT),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "No fault was named"),
        (["F07", "--all"], "exclude each other"),
        (["--all", "--case", "leader"], "--case names a case of one fault"),
    ],
)
def test_the_command_wants_ids_or_all(arguments, said):
    """Of all faults there is no one case: it once ran none, and said that all was caught."""
    result = CliRunner().invoke(faults.app, ["run", *arguments])
    assert isinstance(result.exception, PlanError)
    assert said in result.exception.what
