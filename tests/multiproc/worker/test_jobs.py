"""Pipelines in a job of somebody else's: several at once, one after another, and on a mesh that is there."""

from __future__ import annotations

import json

import pytest
from checkout import SUPPORT

import ppwork as pp
from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc

JOB = 6
"""Ranks of the job; the pipelines are [0, 1, 2] and [3, 4]."""


@pytest.fixture
def seen(tmp_path, start_ranks):
    """What each rank of a case saw."""

    def run(case: str, size: int) -> list:
        commands = [[str(SUPPORT / "job_pipelines.py"), case, str(tmp_path)]] * size
        assert start_ranks(commands).wait() == [0] * size
        return [json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in range(size)]

    return run


def test_two_pipelines_live_in_one_job_one_session_after_another(tmp_path, seen):
    """R6: the ranks of the job have made other numbers of groups, and each pipeline's find each other."""
    by_rank = seen("two", JOB)
    came = {0: [[[2.0 * k, 0] for k in range(3)]] * 2, 3: [[[k + 3.0, 0] for k in range(3)]] * 2}
    for rank, (sessions, total) in enumerate(by_rank):
        assert sessions == came.get(rank, [[], []] if rank < 5 else [])
        assert total == JOB
    for name, ranks in {"0-0": 3, "0-1": 3, "3-0": 2, "3-1": 2}.items():
        run = pp.open(tmp_path / name)
        assert sorted(run.entries_by_rank) == list(range(ranks))
        assert "Nothing failed" in pp.diagnose(tmp_path / name).text
        assert read_records(tmp_path / name, ranks) == []


def test_a_pipeline_that_fails_is_named_in_its_own_folder_and_the_other_goes_on(tmp_path, seen):
    """In its second session: the first was good, and stays so."""
    by_rank = seen("one fails", JOB)
    came = [[2.0 * k, 0] for k in range(3)]
    assert [sessions[0] for sessions, _ in by_rank[:3]] == [came, [], []]
    assert by_rank[2][0][1] == "ValueError"
    assert all(isinstance(sessions[1], str) for sessions, _ in by_rank[:3])
    assert by_rank[3][0] == [[[k + 3.0, 0] for k in range(3)]] * 2
    causes = [record for record in read_records(tmp_path / "0-1", 3) if not record.symptom]
    assert [(record.rank, record.what) for record in causes] == [(2, "my bug on the follower")]
    assert "Rank 2 (follower) failed first: ValueError" in pp.diagnose(tmp_path / "0-1").text
    for name, ranks in {"0-0": 3, "3-0": 2, "3-1": 2}.items():
        assert read_records(tmp_path / name, ranks) == []


def test_sessions_follow_each_other_in_one_process_and_leave_nothing(seen):
    """R10: no group, thread or descriptor more after the fourth than after the first."""
    by_rank = seen("sessions", 3)
    for rank, sessions in enumerate(by_rank):
        came = [[[2.0 * (k + session), 0] for k in range(3)] for session in range(4)]
        assert [session[0] for session in sessions] == (came if rank == 0 else [[]] * 4)
        left = [session[1:] for session in sessions]
        assert left[1:] == [left[0]] * 3, left
        assert left[0][0] == 0


@pytest.mark.parametrize("kind", ["right", "gpus"])
def test_a_mesh_that_is_there_is_used_and_stays(seen, kind):
    """Its own bound is the plan's meanwhile, and its own again afterwards. Beside links on the CPU it may be
    of GPUs; here gloo stands for its NCCL."""
    by_rank = seen(f"mesh: {kind}", 3)
    assert by_rank[0] == [[[2.0 * k, 0] for k in range(3)]] * 2
    assert by_rank[1:] == [[[], [], 2.0, 77.0]] * 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("wrong", "The DeviceMesh given was cpu[0, 1]; this pipeline's is cpu[1, 2]."),
        ("flat", "The DeviceMesh given was cpu[[1, 2]]; this pipeline's is cpu[1, 2]."),
    ],
)
def test_a_mesh_that_is_not_the_pipelines_is_refused_on_every_rank(seen, kind, said):
    assert seen(f"mesh: {kind}", 3) == [["PlanError", said]] * 3


def test_a_mesh_that_only_one_rank_gives_is_refused_on_every_rank(seen):
    kinds, texts = zip(*seen("mesh: one", 3), strict=True)
    assert kinds == ("ParityError",) * 3
    assert 'mesh was null on ranks 0 and 2; "cpu[1, 2]" on rank 1' in texts[0]
    assert len(set(texts)) == 1


def test_ranks_that_do_not_agree_on_their_pipeline_are_told_where_the_others_are(seen):
    by_rank = seen("misused: not all the same", 3)
    assert by_rank[0][0] == "PeerTimeoutError"
    assert "Rank 1 did not come to `join`" in by_rank[0][1]
    assert "This rank joined [0, 1], session 0; rank 1 of the job joined [1, 2], session 0." in by_rank[0][1]


def test_a_second_join_before_the_first_is_left_is_refused_and_the_first_goes_on(seen):
    said = ["PlanError", "Rank {} is in a pipeline that it has not left."]
    assert seen("misused: twice", 3) == [[said[0], said[1].format(rank)] for rank in range(3)]


def test_a_group_of_a_session_that_has_ended_is_refused_by_name(seen):
    said = "Rank {} asked for tp_pg of a session that has ended."
    assert seen("misused: dead sum", 3)[1:] == [["LocalProtocolError", said.format(rank)] for rank in (1, 2)]
