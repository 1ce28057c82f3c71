"""A loop of one's own, told apart by its calls of the plane."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from ppwork.errors import LocalProtocolError, PlanError
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.session import Session
from ppwork.protocol.topology import Role
from ppwork.records.run import UNRELEASED
from ppwork.records.spans import STAGE1_MS, Recorder, Span, read_entries, span_file
from ppwork.worker import collectives, progress, user_loop
from ppwork.worker.backend_wait import lend
from ppwork.worker.user_job import join
from ppwork.worker.user_loop import UserLoop

STEP_NS = 2_000_000
IDS = [Ids(k, k, 0) for k in range(3)]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """What lets a watched loop work and then call the plane, which gives it a message; and what it has left.

    Time passes while it works, and at no other moment.
    """
    now_ns = 1
    monkeypatch.setattr(user_loop, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    with Recorder(span_file(tmp_path, 0)) as recorder, UserLoop(recorder, None) as loop:

        def works(call, message=None, *, good=True):
            nonlocal now_ns
            now_ns += STEP_NS
            loop.called(call)
            loop.returned(message, good=good)

        yield loop, works, lambda: read_entries(tmp_path, 0)


def result(k):
    return PPResult(PPAction.INFER, IDS[k], 1, 3_000_000, {}, {"x": torch.zeros(1)})


def envelope(k):
    return PPEnvelope(PPAction.INFER, IDS[k], ChunkPlan.of(1), {}, {"x": torch.zeros(1)})


def spans(entries):
    return [(e.name, e.chunk_index) for e in entries if isinstance(e, Span) and e.ms]


def test_error_amid_a_chunk_says_that_it_came_with_other_tensors_than_those_before_it(recorded):
    def error_of(*given):
        loop, works, _ = recorded
        for k, tensors in enumerate(given):
            works("receive", PPEnvelope(PPAction.INFER, IDS[k], ChunkPlan.of(1), {}, tensors))
        error = RuntimeError("expected Float")
        loop.__exit__(RuntimeError, error, None)
        return getattr(error, "__notes__", [])

    single, double = {"x": torch.zeros(3)}, {"x": torch.zeros(3).double()}
    changed = "this chunk came with 'x' float64[3]; those before it with 'x' float32[3]"
    assert error_of(single, single, double) == [changed]
    assert error_of(single, single, single) == []


def test_rank_zero_encodes_before_a_send_and_decodes_before_anything_else(recorded):
    """As the pages have it: ahead, then the decode; and one after another, parted by release_result."""
    _, works, entries = recorded
    works("send", IDS[0])
    works("receive_result", result(0))
    works("send", IDS[1])
    works("receive_result", result(1))
    works("release_result")
    works("send", IDS[2])
    works("receive_result", result(2), good=False)
    works("shutdown")
    assert spans(entries()) == [("encode", 0), ("encode", 1), ("decode", 0), ("decode", 1), ("encode", 2)]
    said = [(e.name, e.chunk_index, e.figures) for e in entries() if not isinstance(e, Span)]
    emitted = [("emit", k, {STAGE1_MS: 3.0}) for k in range(2)]
    assert said == [(UNRELEASED, 0, {}), *emitted, ("drop", 2, {})]


def test_a_loop_that_says_of_no_result_that_it_was_decoded_is_told_once(recorded, caplog):
    """The pages make it a duty; without it the timeline gave the decode to the next chunk."""
    _, works, entries = recorded
    for k in range(3):
        works("send", IDS[k])
        works("receive_result", result(k))
    works("shutdown")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("`receive_result` was called without `release_result` for chunk 0")
    (noted,) = [entry for entry in entries() if entry.name == UNRELEASED]
    assert noted.chunk_index == 0


def test_the_last_result_is_to_be_released_too_and_a_loop_that_does_it_hears_nothing(recorded, caplog):
    _, works, _ = recorded
    for call, message in (("send", IDS[0]), ("receive_result", result(0)), ("release_result", None)):
        works(call, message)
    works("send", IDS[1])
    works("receive_result", result(1))
    assert not caplog.records
    works("shutdown")
    assert "`shutdown` was called without `release_result` for chunk 1" in caplog.text


def test_a_loop_is_told_of_a_handle_that_it_let_go_by_the_end_of_the_chunk(recorded, caplog):
    _, works, _ = recorded
    works("receive_envelope", envelope(0))
    lend(torch.zeros(1), "mine.py:7: dist.all_reduce(x, async_op=True)")  # let go at once
    assert not caplog.records
    works("computed")
    assert "by chunk 0 this rank let go of a handle that nobody had waited for, at mine.py:7" in caplog.text


def test_the_watchdog_sees_rank_zero_from_its_first_call_until_it_ends_the_stream(tmp_path):
    """What comes before may be a model that loads; a heartbeat begins anew, as every call does."""
    session = Session(0, Role.STAGE0, 1)
    with Recorder(span_file(tmp_path, 0)) as recorder, UserLoop(recorder, None, sent=session) as loop:
        assert progress.current() is None
        for call, message in (("send", IDS[0]), ("receive_result", result(0)), ("heartbeat", None)):
            before = progress.current()
            loop.called(call)
            assert progress.current() is None  # a wait of the plane has a bound of its own
            loop.returned(message)
            seen = progress.current()
            assert (seen.step, seen.which["chunk_index"], seen is before) == (progress.LOOP, 0, False)
        loop.called("shutdown")
        assert progress.current() is None


@pytest.mark.parametrize(
    ("planned", "said"), [(None, ""), (0, ""), (3, "the loop sent 0 chunks; its plan has chunks=3")]
)
def test_a_loop_that_ends_with_another_number_of_chunks_than_its_plan_says_so(caplog, planned, said):
    """The plan's number bound nobody, and nothing told of it."""
    session = Session(0, Role.STAGE0, 1)
    with UserLoop(Recorder(None), None, sent=session, planned=planned) as loop:
        loop.called("shutdown")
    assert [record.getMessage() for record in caplog.records] == ([said] if said else [])


def test_a_mesh_rank_generates_from_a_chunk_to_its_reply_also_where_it_receives_ahead(recorded):
    _, works, entries = recorded
    works("receive", envelope(0))
    assert progress.current().which == IDS[0].where()
    works("receive", envelope(1))
    for call in ("reply", "computed"):  # the one calls the other
        works(call)
    assert progress.current().which == IDS[1].where()
    works("computed")
    assert progress.current() is None
    works("receive", PPEnvelope(PPAction.NOOP, Ids(2, 1, 0)))
    works("acknowledge")
    assert spans(entries()) == [("generate", 0), ("generate", 1)]
    first, second = entries()
    assert all(a.end_ns <= b.start_ns for a, b in pairwise([first, second]))
    # It came at the end of the first step, and what was computed before the second `receive` is in it, too.
    assert [(span.start_ns, span.ms) for span in (first, second)] == [
        (1 + STEP_NS, 3 * STEP_NS / 1e6),
        (1 + 4 * STEP_NS, STEP_NS / 1e6),
    ]


def test_a_step_that_the_loop_times_itself_is_not_recorded_twice(recorded):
    loop, works, entries = recorded
    works("receive", envelope(0))
    loop.timed("generate")
    works("computed")
    assert entries() == []
    assert progress.current() is None


def test_a_job_of_ones_own_has_no_reference_and_refuses_to_verify():
    with pytest.raises(PlanError, match="The plan says verify") as caught, join(Plan(verify=True)):
        pass
    assert "ppwork run --verify" in caught.value.check_first


def test_a_refusal_that_ended_a_session_is_not_raised_in_the_next_one():
    with pytest.raises(LocalProtocolError), collectives._Noting():
        raise LocalProtocolError("The loop called barrier.", check_first="the line")
    collectives.keep(None)
    collectives.heed()


def test_a_comparison_with_nobody_says_so_once(caplog):
    with UserLoop(Recorder(None), None, alone="`join` got no run_dir") as loop:
        for _ in range(2):
            loop.compare({"seen": torch.ones(1)})
    assert [record.getMessage() for record in caplog.records] == [
        "`plane.compare` compared nothing: `join` got no run_dir (said once)"
    ]


def test_a_mesh_of_one_has_nobody_to_miss(caplog):
    with UserLoop(Recorder(None), None) as loop:
        loop.compare({"seen": torch.ones(1)})
    assert caplog.records == []


@pytest.mark.parametrize("alone", [True, False])
def test_a_loop_that_compared_and_found_no_rank_of_its_host_is_told_at_its_end(caplog, alone):
    calls = SimpleNamespace(alone=alone, state=lambda text: None, close=lambda: None)
    with UserLoop(Recorder(None), calls) as loop:
        loop.compare({"seen": torch.ones(1)})
    said = [record.getMessage() for record in caplog.records]
    assert said == ([user_loop.UNCOMPARED % user_loop.NOBODY_HERE] if alone else [])
