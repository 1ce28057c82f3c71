"""Collectives of mesh ranks that differ in a late chunk, where no exchange compares them: never wrong sums.

The ranks of one host lay each call beside the others'; whoever comes later raises, before the backend.
"""

from __future__ import annotations

import re
import time

import pytest
from checkout import SUPPORT
from guarded_stages import ODD_CHUNK
from toy_runs import toy

import ppwork as pp
from ppwork.pictures.run_table import rows_of
from ppwork.records.failure import read_records
from ppwork.records.ledger import read_ledger
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import Span
from ppwork.timeline.chunks import emissions

pytestmark = pytest.mark.multiproc

GONE_S, BOUND_S = 10.0, 60.0
"""From the first record to the end of all ranks, and the bound of a wait, which a hang would take."""
LINES = {
    mark: f"guarded_stages.py:{number}: {line.strip()}"
    for number, line in enumerate((SUPPORT / "guarded_stages.py").read_text().splitlines(), 1)
    for mark in ("SUM", "ODD", "MORE", "ALL", "HELPER", "HERE", "THERE", "GATHER", "FUNCTIONAL")
    if line.endswith(f"# {mark}")
}
USUAL, ODD = "all_reduce float32[8, 64]", "all_reduce float32[{}, 64]"
GATHER, HALF = "all_gather bfloat16[{}, 64]", "all_gather float16[8, 64]"
AT, IN = f" at collective 2 of chunk {ODD_CHUNK}", f" in chunk {ODD_CHUNK}"
SHORT = "ended it after 2 collectives (the last at {SUM})"
CASES = {
    "leader longer": (AT, f"called {ODD.format(9)} ({{ODD}})", f"called {USUAL} ({{SUM}})"),
    "follower longer": (AT, f"called {USUAL} ({{SUM}})", f"called {ODD.format(9)} ({{ODD}})"),
    "follower shorter": (AT, f"called {USUAL} ({{SUM}})", f"called {ODD.format(7)} ({{ODD}})"),
    "leader skips": (IN, SHORT, f"called {USUAL} as collective 3 ({{SUM}})"),
    "follower skips": (IN, f"called {USUAL} as collective 3 ({{SUM}})", SHORT),
    "follower gathers": (
        AT,
        f"called {GATHER.format(8)} ({{GATHER}})",
        f"called {GATHER.format(4)} ({{GATHER}})",
    ),
    "leader misreads": (AT, f"called {HALF} ({{GATHER}})", f"called {GATHER.format(8)} ({{GATHER}})"),
    "follower more": (AT, f"called {USUAL} ({{SUM}})", f"called {USUAL} ({{MORE}})"),
}
"""Where, and what the leader and the follower did, each with its line."""
LISTED = [
    *(
        "rank 1 in chunk 3:",
        *(f"{count} {USUAL} at {{SUM}}" for count in (1, 2, 3)),
        "ended after 3 collectives",
    ),
    *("rank 2 in chunk 3:", f"1 {USUAL} at {{SUM}}", f"2 {USUAL} at {{MORE}}"),
    *(f"{count} {USUAL} at {{SUM}}" for count in (3, 4)),
]
"""Calls of the chunk in which the follower makes a sum more of the same shape."""
OWN_CASES = {
    **{case: CASES[case] for case in ("follower shorter", "leader skips", "follower skips")},
    **{case: CASES[case] for case in ("follower gathers", "leader misreads")},
    "follower compares": (AT, f"called {USUAL} ({{SUM}})", "called all_reduce(max) float32[8, 64] ({ODD})"),
    "follower meets all": (AT, f"called {USUAL} ({{SUM}})", "called barrier on the default group ({ALL})"),
}


def judged(found, records, where, leader, follower):
    """Both sides are in the headline, with the chunk; and it came before the backend, not out of it."""
    cause = found.cause
    assert cause.error_type == "LocalProtocolError"
    assert cause.between == (1, 2)
    places = {mark: line.partition(": ")[0] for mark, line in LINES.items()}
    said = f"Ranks 1 and 2 differ{where}: rank 1 {leader}, rank 2 {follower}."
    sentence, *_ = cause.what.splitlines()
    told, *lines = re.sub(r", called at \w+\.py:\d+", "", cause.what).splitlines()
    assert told.startswith(said.format(**places))
    marks = [re.findall(r"\{\w+\}", side) for side in (leader, follower)]
    assert "MORE" in follower or (told == sentence) == (marks[0] != marks[1]), (
        "of one line the callers are shown"
    )
    if "MORE" in follower:
        assert [line.strip() for line in lines] == [line.format(**LINES) for line in LISTED]
    else:
        assert [line.partition(" at ")[2] for line in lines] == [
            LINES[mark] for side in (leader, follower) for mark in LINES if f"{{{mark}}}" in side
        ]
    assert found.sentence == cause.what  # no rank has failed first, and the line of neither comes before it
    assert found.text.startswith(sentence)
    assert cause.where["group"] == "tp_pg"
    assert cause.where["chunk_index"] == ODD_CHUNK
    assert {cause.where["rank"], cause.where["peer"]} == {1, 2}
    assert cause.where["role"] == ("leader", "follower")[cause.rank - 1]
    assert [record for record in records if record.error_type == "RankDied"] == []


def gone(run_dir):
    return all((pulse := read_pulse(run_dir, rank)) is None or pulse.process() is None for rank in range(3))


@pytest.mark.parametrize("case", CASES)
def test_sums_that_differ_past_the_window_are_named_and_nobody_hangs(tmp_path, case):
    """F05 and R5, in a chunk that no exchange compares."""
    options = {"case": case}
    plan = toy(verify=False, timeout_s=BOUND_S, stage1="guarded_stages:OddSums", options=options)
    assert plan.compare_collectives <= ODD_CHUNK
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    ended_ns = time.monotonic_ns()
    records = read_records(run.run_dir, plan.world_size)
    assert ended_ns - min(record.at_ns for record in records) < GONE_S * 1e9
    found = pp.diagnose(run)
    judged(found, records, *CASES[case])
    assert found.cause.what in found.text
    assert found.cause.what in run.failure.what
    assert run.failure.headline == found.cause.what
    assert pp.pictures.failure(run).finding.startswith("Ranks 1 and 2 differ, none more to blame (")
    assert gone(run.run_dir)
    left = [entry.chunk_index for entry in run.entries(1) if entry.name == "result.send"]
    # A leader with a call too few may have ended its chunk before anybody could see that.
    assert left in ([0, 1, 2], [0, 1, 2, 3])
    if case not in ("leader skips", "follower more"):
        assert left == [0, 1, 2]


def started(start_ranks, case, run_dir, compare, *job):
    script = [str(SUPPORT / "odd_loops.py"), case, str(run_dir), str(compare), *map(str, job)]
    return start_ranks([script] * 3).wait(BOUND_S)


@pytest.mark.parametrize("case", OWN_CASES)
def test_in_a_loop_of_ones_own_they_are_named_too(tmp_path, start_ranks, case):
    """Also on a default group that the job has made itself, and nobody refuses."""
    job = [tmp_path / "job"] if case.endswith("meets all") else []
    assert started(start_ranks, case, tmp_path / "run", 2, *job) == [1, 1, 1]
    judged(pp.diagnose(tmp_path / "run"), read_records(tmp_path / "run", 3), *OWN_CASES[case])
    assert gone(tmp_path / "run")


@pytest.mark.parametrize("of_stages", [True, False])
def test_in_a_helper_that_both_call_the_lines_of_the_callers_are_told(tmp_path, start_ranks, of_stages):
    """The helper's line is the same on both, and tells nothing."""
    if of_stages:
        stages = {"stage1": "guarded_stages:OddSums", "options": {"case": "follower helped"}}
        pp.launch(toy(verify=False, timeout_s=BOUND_S, **stages), out=tmp_path / "run", check=False)
    else:
        started(start_ranks, "follower helped", tmp_path / "run", 2)
    helper, here, there = (LINES[mark].partition(": ")[0] for mark in ("HELPER", "HERE", "THERE"))
    sentence, *lines = pp.diagnose(tmp_path / "run").cause.what.splitlines()
    assert f"rank 1 called {USUAL} ({helper}, called at {there})" in sentence
    assert f"rank 2 called {ODD.format(9)} ({helper}, called at {here})." in sentence
    assert lines == [
        f"  rank {rank} at {LINES['HELPER']}, called at {caller}" for rank, caller in ((1, there), (2, here))
    ]


def test_a_loop_that_turned_it_off_is_told_to_turn_it_on_and_no_rank_is_blamed(tmp_path, start_ranks):
    """What gloo makes of it is a hang; the counts of the flight recorder are said first."""
    assert 1 in started(start_ranks, "follower skips", tmp_path / "run", 0)
    assert read_ledger(tmp_path / "run", 1) == {}
    found = pp.diagnose(tmp_path / "run")
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert "in it or before, rank 2 left one out, or the other made one more" in found.sentence
    assert "without `compare_collectives=0`" in found.check_first
    assert "ppwork diagnose RUN" not in found.text
    assert gone(tmp_path / "run")


def test_a_functional_collective_that_one_rank_leaves_out_is_named_beside_where_the_other_stood(
    tmp_path, start_ranks, capfd
):
    """Nothing compares it. "Every record is a symptom", it said, and that both waited for nobody."""
    assert started(start_ranks, "follower leaves out", tmp_path / "run", 2) == [1, 1, 1]
    found = pp.diagnose(tmp_path / "run")
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    functional, gather = (LINES[mark].partition(": ")[0] for mark in ("FUNCTIONAL", "GATHER"))
    assert found.sentence.startswith(
        "The mesh ranks waited for each other in different collectives of chunk 3: rank 1 in all_reduce at "
        f"{functional} and rank 2 in all_gather at {gather}."
    )
    assert found.cause.where == {"group": "tp_pg", "call_id": 3, "chunk_index": 3}
    assert found.check_first.startswith("does a rank alone make a functional collective")
    said = capfd.readouterr().err  # whose timeout passes says where it waited, and the other loses it, or too
    records = {record.rank: record.error_type for record in read_records(tmp_path / "run", 3)}
    late = [rank for rank in (1, 2) if records[rank] == "PeerTimeoutError"]
    assert late
    for rank in late:
        place = {1: functional, 2: gather}[rank]
        assert re.search(rf"^rank {rank} waited in vain: PeerTimeoutError: .*{place}: ", said, re.MULTILINE)
    assert gone(tmp_path / "run")


def test_a_loop_of_ones_own_leaves_a_timeline_and_a_period(tmp_path, start_ranks):
    assert started(start_ranks, "follower stays", tmp_path / "run", 2) == [1, 0, 0]
    run = pp.open(tmp_path / "run")
    assert run.summary["chunks"] == 6
    for name in ("period_ms", "stage0_ms", "stage1_ms"):
        assert run.summary[name] > 0, name
    assert [*emissions(run.entries_by_rank)] == [*range(6)]
    spans = {
        rank: [entry for entry in run.entries(rank) if isinstance(entry, Span) and entry.lane == "main"]
        for rank in range(3)
    }
    for rank, names in ((0, ("encode", "decode")), (1, ("generate",)), (2, ("generate",))):
        for name in names:
            chunks = [span.chunk_index for span in spans[rank] if span.name == name]
            assert chunks == [*range(6)], (rank, name)
    assert "period" in run.timeline().finding
    assert run.summary["results_differ"] == [4]
    assert "of chunk 4 differed on the mesh; the leader's were sent" in dict(rows_of(run))["results"]
    found = pp.diagnose(run)
    assert "Mesh ranks returned different results in chunk 4: the leader's were sent" in found.text
    # It ended with code 0, and four users in a row were content with it until they read what it had printed.
    assert found.cause.what == "The run came to its end, and failed there: results differ in chunk 4."
    assert found.sentence == found.cause.what  # and not "Rank 0 failed first"
    assert "returns none, `{}`" in found.check_first
    calls = read_ledger(tmp_path / "run", 2)
    assert len(calls) == 6 * 4  # three sums and the end of each chunk
    theirs = read_ledger(tmp_path / "run", 1)
    assert [call.anywhere for call in calls.values()] == [call.anywhere for call in theirs.values()]
    odd = LINES["ODD"]  # the same sum from another line is no difference
    assert [call.line for call in calls.values()].count(odd) == 1
    assert odd not in [call.line for call in theirs.values()]


def test_a_loop_that_sent_another_number_of_chunks_than_its_plan_has_fails_at_its_end(tmp_path, start_ranks):
    """It ended with code 0 and less data, told in a line that nobody reads in a job that went well."""
    assert started(start_ranks, "one too few", tmp_path / "run", 2) == [1, 0, 0]
    cause = pp.diagnose(tmp_path / "run").cause
    assert (cause.rank, cause.error_type) == (0, "LocalProtocolError")
    assert cause.what == "The run came to its end, and failed there: 6 chunks, and the plan has chunks=7."
    assert cause.check_first.startswith("does the loop end early?")
    assert pp.open(tmp_path / "run").summary["chunks"] == 6
    assert gone(tmp_path / "run")


def test_a_loop_that_ended_well_and_was_odd_fails_if_its_plan_is_strict(tmp_path, start_ranks):
    """Under one's own torchrun a job in CI passed although a mesh rank had not asked for its cut."""
    assert started(start_ranks, "strict cuts unasked", tmp_path / "run", 2) == [1, 0, 0]
    cause = pp.diagnose(tmp_path / "run").cause
    assert (cause.rank, cause.error_type, cause.symptom) == (0, "LocalProtocolError", False)
    said = "The run came to its end, and failed there, as its plan is strict: cuts without reset in chunks "
    assert cause.what == f"{said}2 and 4."
    assert cause.where == {"rank": 0, "role": "stage0"}
    assert pp.open(tmp_path / "run").summary["chunks"] == 6
    assert gone(tmp_path / "run")


def test_a_loop_that_sends_more_chunks_than_its_plan_has_is_stopped_at_that_send(tmp_path, start_ranks):
    """It was told at the end only, when all had been computed."""
    assert started(start_ranks, "one too many", tmp_path / "run", 2) == [1, 1, 1]
    cause = pp.diagnose(tmp_path / "run").cause
    assert (cause.rank, cause.error_type) == (0, "LocalProtocolError")
    assert cause.what == "A chunk more than the 6 of the plan was about to leave."
    assert cause.where == {"rank": 0, "role": "stage0", "chunk_index": 6}
    left = {
        entry.chunk_index for entry in pp.open(tmp_path / "run").entries(0) if entry.name == "envelope.send"
    }
    assert left == {*range(6)}
    assert gone(tmp_path / "run")


@pytest.mark.parametrize("by", ["one writes", "all write", "strict one writes"])
def test_a_write_into_a_received_tensor_by_one_mesh_rank_is_told(tmp_path, start_ranks, capfd, by):
    """It made a wrong share, and nothing was said; if all ranks write it is meant."""
    codes = started(start_ranks, by, tmp_path / "run", 2)
    run, found, console = pp.open(tmp_path / "run"), pp.diagnose(tmp_path / "run"), capfd.readouterr().err
    told = "only some mesh ranks wrote into a tensor that all had received, in chunk 4"
    if by == "all write":
        assert (codes, run.summary.get("writes_differ"), found.is_odd) == ([0, 0, 0], None, False)
        assert told not in console
        return
    assert run.summary["writes_differ"] == [4]
    assert console.count(told) == 1
    if by.startswith("strict"):
        assert codes == [1, 0, 0]
        assert found.cause.what.endswith("as its plan is strict: writes differ in chunk 4.")
        return
    assert (codes, found.is_odd) == ([0, 0, 0], True)
    assert "in chunk 4: rank 1 into none, rank 2 into 'x'. A wrong share, if it was not meant" in found.text
    assert gone(tmp_path / "run")


@pytest.mark.parametrize("by", ["says other", "strict says other"])
def test_metadata_that_mesh_ranks_give_differently_are_told_with_their_key(tmp_path, start_ranks, capfd, by):
    """A rank that had not reset its cache said so in its metadata, and nobody compared them."""
    codes = started(start_ranks, by, tmp_path / "run", 2)
    run, found, console = pp.open(tmp_path / "run"), pp.diagnose(tmp_path / "run"), capfd.readouterr().err
    assert run.summary["metadata_differs"] == [4, 5]
    assert console.count("mesh ranks gave different metadata with their results, in chunks 4 and 5") == 1
    if by.startswith("strict"):
        assert codes == [1, 0, 0]
        assert "its plan is strict: metadata differs in chunks 4 and 5" in found.cause.what
        return
    assert (codes, found.is_odd) == ([0, 0, 0], True)
    said = "Mesh ranks gave different metadata with their results in chunks 4 and 5: 'cache' of ranks 1 and 2"
    assert f"{said} differ in chunk 4; the leader's was sent" in found.text
    assert dict(rows_of(run))["metadata"] == f"{said} differ in chunk 4"
    assert gone(tmp_path / "run")


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked"])
def test_a_cut_for_which_a_loop_does_not_ask_is_told(tmp_path, start_ranks, capfd, asked):
    """Nothing was reset, and nothing was said. Results may be wrong: so it fails, at its end."""
    codes = started(start_ranks, f"cuts {'asked' if asked else 'unasked'}", tmp_path / "run", 2)
    assert codes == ([0, 0, 0] if asked else [1, 0, 0])
    run = pp.open(tmp_path / "run")
    assert run.summary.get("cuts_without_reset", []) == ([] if asked else [2, 4])
    said = "the loop of a mesh rank did not read `chunk.plan.reset_cache`: was its cache not reset?"
    assert (f"At the cut of chunks 2 and 4 {said}" in pp.diagnose(run).text) == (not asked)
    assert dict(rows_of(run)).get("cuts", "") == ("" if asked else f"at chunks 2 and 4 {said}")
    told = "chunk 2 came with a cut, and the loop did not read `chunk.plan.reset_cache`"
    console = capfd.readouterr().err
    assert console.count(told) == (0 if asked else 2)  # each mesh rank says it once
    assert "chunk 4 came with a cut" not in console


@pytest.mark.parametrize("same", [True, False], ids=["the same", "another"])
def test_what_mesh_ranks_must_hold_alike_is_compared_where_a_loop_asks(tmp_path, start_ranks, same):
    """A rank that had not reset its counts gave a wrong share, and the wrong sum was alike on all ranks."""
    codes = started(start_ranks, "holds the same" if same else "holds another", tmp_path / "run", 2)
    found = pp.diagnose(tmp_path / "run")
    if same:
        assert codes == [0, 0, 0]
        assert found.cause is None
        return
    assert 1 in codes[1:]  # the later of both: without a sum nobody waits for it
    assert (found.cause.error_type, found.cause.between) == ("LocalProtocolError", (1, 2))
    sentence, *lines = found.cause.what.splitlines()
    held = next(
        line for line in (SUPPORT / "odd_loops.py").read_text().splitlines() if line.endswith("# HELD")
    )
    at = r"\(odd_loops.py:\d+, called at odd_loops.py:\d+\)"
    digest = rf"called compare 'counts' float32\[2, 3\] with digest \w{{8}} {at}"
    assert re.fullmatch(
        rf"Ranks 1 and 2 differ at call 2 of chunk 4: rank 1 {digest}, rank 2 {digest}\.", sentence
    )
    assert [held.strip() in line for line in lines] == [True, True]
    assert found.check_first == "is it loaded, reset and updated alike on these ranks? also before this chunk"
    assert found.cause.where["chunk_index"] == 4
    assert gone(tmp_path / "run")
