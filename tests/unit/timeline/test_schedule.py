"""The simulator against the law and figures worked out by hand; blocking schedules and their deadlocks."""

import statistics
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.records.spans import Instant, Span
from ppwork.timeline.costs import Costs, Gaps, Hop, law_period_ms
from ppwork.timeline.measures import dropped_chunks, measure, mesh_idle_ms, stage1_ms_of
from ppwork.timeline.simulate import simulate

MS = 1_000_000
SHAPES = {"balanced": (20.0, 20.0), "3:1": (60.0, 20.0), "1:3": (20.0, 60.0)}


def gaps_of(ms):
    """Return gaps that all take the same time."""
    return Gaps(**dict.fromkeys(Gaps.__struct_fields__, ms))


def costs_of(stage0, stage1, transport=0.0, *, decode_share=0.4, **changes):
    """Return costs with the transport spread over the three hops of a mesh of 2."""
    hop = Hop(transport / 3)
    fields = {
        "encode_ms": stage0 * (1 - decode_share),
        "decode_ms": stage0 * decode_share,
        "stage1_ms": stage1,
        "down": hop,
        "broadcast": {2: hop},
        "up": hop,
    }
    return Costs(**(fields | changes))


def run(costs, *, chunks=40, mesh_size=2, cuts=(), **options):
    return simulate(Plan(mesh_size=mesh_size, chunks=chunks, hard_cuts=cuts), costs, **options)


def bounded(costs, **fields):
    """Simulate a plan with these fields, over 40 chunks."""
    return simulate(Plan(mesh_size=2, chunks=40, **fields), costs)


def spans_of(entries, name, lane=None):
    return {
        (e.call_id): e
        for e in entries
        if isinstance(e, Span) and e.name == name and (lane is None or e.lane == lane)
    }


def instants_of(entries, name):
    return {e.call_id: e.at_ns for e in entries if isinstance(e, Instant) and e.name == name}


def later(entry, ns):
    """Return an entry moved in time."""
    moments = {
        name: getattr(entry, name) + ns
        for name in ("start_ns", "end_ns", "at_ns")
        if name in entry.__struct_fields__
    }
    return msgspec.structs.replace(entry, **moments)


def most_between(begins, ends):
    """Return the largest number of calls between the first and the second of their moments."""
    count = most = 0
    for _, step in sorted([(at, 1) for at in begins.values()] + [(at, -1) for at in ends.values()]):
        count += step  # an end at the same moment comes first
        most = max(most, count)
    return most


def most_unfinished(stage0_entries):
    """Return the largest number of chunks between the start of their encode and their emission."""
    starts = {call: span.start_ns for call, span in spans_of(stage0_entries, "encode").items()}
    return most_between(starts, instants_of(stage0_entries, "emit"))


def check_consistent(simulation, chunks, mesh_size, streams=1):
    """Assert what holds for the entries of every real run that ended well."""
    ranks = simulation.entries_by_rank
    assert sorted(ranks) == list(range(mesh_size + streams))
    for entries in ranks.values():
        lanes = {}
        for entry in entries:
            if isinstance(entry, Span):
                assert entry.start_ns <= entry.end_ns
                lanes.setdefault(entry.lane, []).append(entry)
        for spans in lanes.values():
            spans.sort(key=lambda s: (s.start_ns, s.end_ns))
            assert all(a.end_ns <= b.start_ns for a, b in pairwise(spans))
    sources = [0, *range(mesh_size + 1, mesh_size + streams)]
    for stream, rank in enumerate(sources):
        calls = [k * streams + stream for k in range(chunks)]
        for name in ("encode", "preflight", "send", "receive", "decode"):
            found = spans_of(ranks[rank], name)
            assert sorted(found) == calls
            assert [found[c].chunk_index for c in calls] == list(range(chunks))
        sends, sent = spans_of(ranks[rank], "send"), instants_of(ranks[rank], "envelope.send")
        assert all(sent[c] <= sends[c].start_ns for c in calls)
        assert sorted(instants_of(ranks[rank], "emit")) == calls
    every = set(range(chunks * streams))
    leader = ranks[1]
    for point, name in (("mesh.broadcast", "broadcast"), ("result.send", "send_result")):
        spans, instants = spans_of(leader, name), instants_of(leader, point)
        assert set(spans) == set(instants) == every
        assert all(instants[c] <= spans[c].start_ns for c in every)
    assert set(spans_of(leader, "receive", "down_pg")) == every
    for rank in range(1, mesh_size + 1):
        computed = spans_of(ranks[rank], "generate")
        assert set(computed) == every
        if rank > 1:
            arrived = spans_of(ranks[rank], "receive", "mesh_pg")
            assert all(arrived[c].end_ns <= computed[c].start_ns for c in every)
    for first, then in (("receive", "broadcast"), ("broadcast", "generate"), ("generate", "send_result")):
        before, after = spans_of(leader, first), spans_of(leader, then)
        assert all(before[c].end_ns <= after[c].start_ns for c in every)


class TestLaw:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("transport", [0.0, 5.0])
    def test_depth_1_takes_the_sum_of_everything(self, shape, transport):
        stage0, stage1 = SHAPES[shape]
        found = run(costs_of(stage0, stage1, transport))
        total = stage0 + stage1 + transport
        assert found.period_ms == pytest.approx(total)
        assert found.measures.period_ms == pytest.approx(total, abs=1e-3)
        assert found.measures.overlap_score == 0.0

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("transport", [0.0, 5.0])
    @pytest.mark.parametrize("depth", [1, 2, 3, 4])
    def test_period_follows_the_law(self, shape, transport, depth):
        stage0, stage1 = SHAPES[shape]
        found = run(costs_of(stage0, stage1, transport), depth=depth)
        law = law_period_ms(stage0, stage1, transport, depth)
        assert found.period_ms == pytest.approx(law, rel=0.01)

    @pytest.mark.parametrize(("depth", "measured"), [(1, 42.7), (2, 21.4), (3, 20.3)])
    def test_prototype_of_the_design_is_reproduced(self, depth, measured):
        assert run(costs_of(20.0, 20.0, 2.7), depth=depth).period_ms == pytest.approx(measured, rel=0.03)

    def test_single_periods_at_depth_2_may_alternate_around_the_law(self):
        """Why a period is a mean over a round of ``depth``: a median of these is either of the two."""
        emits = instants_of(run(costs_of(20.0, 20.0, 5.0), depth=2).entries_by_rank[0], "emit")
        periods = [(b - a) / MS for a, b in pairwise(emits.values())][2:-2]
        assert {round(p, 3) for p in periods} == {20.0, 25.0}
        assert {round((a + b) / 2, 3) for a, b in pairwise(periods)} == {22.5}

    def test_costs_know_their_own_law(self):
        costs = costs_of(20.0, 20.0, 2.7, gaps=gaps_of(0.05))
        assert costs.transport_ms(2) == pytest.approx(3.2)
        assert costs.law_ms(1, 2) == pytest.approx(43.2)
        assert run(costs).period_ms == pytest.approx(43.2)

    def test_depth_comes_from_the_plan_without_the_option(self):
        costs = costs_of(20.0, 20.0, 2.7)
        plan = Plan(mesh_size=2, chunks=40, in_flight_depth=2)
        assert simulate(plan, costs).period_ms == pytest.approx(21.35)
        assert simulate(plan, costs, depth=1).period_ms == pytest.approx(42.7)


class TestSplitDepth:
    """``d_in`` bounds what is on its way, ``d_out`` what has come back and waits."""

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize(("d_in", "d_out"), [(1, 1), (2, 1), (1, 2), (3, 2)])
    def test_neither_bound_is_passed_and_one_of_them_is_reached(self, shape, d_in, d_out):
        found = bounded(costs_of(*SHAPES[shape], 5.0), d_in=d_in, d_out=d_out).entries_by_rank
        answers = {call: span.end_ns for call, span in spans_of(found[1], "send_result").items()}
        on_their_way = most_between(instants_of(found[0], "envelope.send"), answers)
        waiting = most_between(answers, instants_of(found[0], "emit"))
        assert on_their_way <= d_in
        assert waiting <= d_out
        assert on_their_way == d_in or waiting == d_out
        assert most_unfinished(found[0]) <= d_in + d_out

    def test_a_result_without_room_waits_at_the_leader(self):
        """Decoding is the slowest step: without ``d_out`` all results come at once, with it one at a time."""
        costs = costs_of(40.0, 5.0, decode_share=0.9)
        free, held = (
            bounded(costs, **fields) for fields in ({"in_flight_depth": 4}, {"d_in": 3, "d_out": 1})
        )
        longest = [
            max(s.ms for s in spans_of(f.entries_by_rank[1], "send_result").values()) for f in (free, held)
        ]
        assert longest == [0.0, pytest.approx(40.0)]  # a whole period: its turn comes once in each
        assert free.period_ms == held.period_ms == pytest.approx(40.0)

    def test_streams_with_a_split_depth_are_refused(self):
        with pytest.raises(PlanError, match="streams"):
            simulate(Plan(chunks=4, d_in=1, d_out=1), costs_of(5.0, 5.0), streams=2)


class TestFlushes:
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_a_flush_drops_what_is_in_flight_and_nothing_else(self, depth):
        found = bounded(costs_of(20.0, 20.0, 3.0), flushes=(10, 20), in_flight_depth=depth)
        stage0 = found.entries_by_rank[0]
        expected = [k for flush in (10, 20) for k in range(flush - depth + 1, flush)]
        assert dropped_chunks(stage0) == expected
        assert (
            set(range(40)) - set(expected)
            == set(instants_of(stage0, "emit"))
            == set(spans_of(stage0, "decode"))
        )
        assert set(spans_of(stage0, "receive")) == set(range(40))  # rule R3: a receive is never skipped
        assert found.period_ms == pytest.approx(run(costs_of(20.0, 20.0, 3.0), depth=depth).period_ms)
        assert [e.cache_epoch for e in stage0 if e.name == "encode"] == [0] * 10 + [1] * 10 + [2] * 20


class TestMistakes:
    @pytest.mark.parametrize("decode", [4.0, 8.0, 16.0])
    def test_send_after_decode_leaves_the_mesh_idle_for_the_decode(self, decode):
        costs = costs_of(20.0, 20.0, 3.0, encode_ms=20.0 - decode, decode_ms=decode)
        good, bad = run(costs, depth=2), run(costs, depth=2, schedule="send-after-decode")
        assert statistics.median(bad.mesh_idle) == pytest.approx(decode + 3.0, abs=1e-3)
        assert bad.period_ms == pytest.approx(20.0 + decode + 3.0)
        assert statistics.median(good.mesh_idle) < 2.0

    def test_send_after_decode_is_no_better_at_any_depth(self):
        costs = costs_of(20.0, 20.0, 3.0)
        periods = [run(costs, depth=d, schedule="send-after-decode").period_ms for d in (2, 3, 4)]
        assert max(periods) - min(periods) < 0.01

    def test_send_after_decode_at_depth_1_is_the_sequential_loop(self):
        costs = costs_of(20.0, 20.0, 3.0)
        assert run(costs, schedule="send-after-decode").entries_by_rank == run(costs).entries_by_rank

    def test_broadcast_between_computations_hurts_with_16_mb(self):
        hop = Hop(0.2, mb_per_s=2000.0)
        costs = costs_of(20.0, 20.0, down=hop, broadcast={2: hop}, up=hop, down_bytes=16_000_000)
        ahead, between = run(costs, depth=3), run(costs, depth=3, run_ahead=False)
        assert ahead.measures.efficiency > 0.99
        assert between.measures.efficiency < 0.75
        assert statistics.median(between.mesh_idle) > 8.0

    def test_broadcast_between_computations_costs_nothing_in_sequence(self):
        costs = costs_of(20.0, 20.0, 3.0)
        assert run(costs, run_ahead=False).period_ms == pytest.approx(run(costs).period_ms)


class TestTimes:
    def test_jitter_is_the_same_for_the_same_seed(self):
        costs = costs_of(20.0, 20.0, 2.0, jitter=0.2)
        first, again = run(costs, depth=2, seed=7), run(costs, depth=2, seed=7)
        assert first == again
        assert first.entries_by_rank != run(costs, depth=2, seed=8).entries_by_rank
        assert len({s.ms for s in spans_of(first.entries_by_rank[0], "encode").values()}) > 30

    def test_mesh_waits_for_the_slowest_rank(self):
        alone, many = (
            run(costs_of(1.0, 20.0, jitter=0.2), mesh_size=n, chunks=200, seed=1).measures.stage1_ms
            for n in (1, 32)
        )
        assert alone == pytest.approx(20.0, abs=1.0)
        assert many > 23.0

    def test_samples_are_taken_in_order_without_a_seed_and_drawn_with_one(self):
        costs = costs_of(10.0, (20.0, 30.0, 40.0))
        in_order = stage1_ms_of(run(costs, chunks=6).entries_by_rank[0])
        assert list(in_order.values()) == [20.0, 30.0, 40.0] * 2
        drawn = stage1_ms_of(run(costs, chunks=60, seed=3).entries_by_rank[0])
        assert set(drawn.values()) == {20.0, 30.0, 40.0}
        assert list(drawn.values()) != [20.0, 30.0, 40.0] * 20

    def test_a_chunk_costs_the_same_at_every_depth(self):
        costs = costs_of(10.0, (20.0, 30.0, 40.0), jitter=0.1)
        one, three = (stage1_ms_of(run(costs, seed=3, depth=depth).entries_by_rank[0]) for depth in (1, 3))
        assert one == three

    def test_broadcast_of_an_unknown_mesh_size_scales_with_the_rounds_of_a_tree(self):
        costs = costs_of(10.0, 10.0, broadcast={2: Hop(1.0), 4: Hop(1.8)})
        down_and_up = costs.transport_ms(1)
        found = {n: round(costs.transport_ms(n) - down_and_up, 6) for n in (1, 2, 3, 4, 8, 16)}
        assert found == {1: 0.0, 2: 1.0, 3: 2.0, 4: 1.8, 8: 2.7, 16: 3.6}

    @pytest.mark.parametrize(
        "changes",
        [
            {"encode_ms": -1.0},
            {"stage1_ms": ()},
            {"decode_ms": (1.0, float("nan"))},
            {"up": Hop(float("inf"))},
            {"down": Hop(1.0, mb_per_s=0.0)},
            {"down_bytes": -1},
            {"jitter": 1.0},
        ],
    )
    def test_impossible_costs_are_refused(self, changes):
        with pytest.raises(PlanError, match=r"The simulation's"):
            costs_of(10.0, 10.0, **changes)

    @pytest.mark.parametrize("options", [{"depth": 0}, {"streams": 0}, {"schedule": "random"}])
    def test_impossible_options_are_refused(self, options):
        with pytest.raises(PlanError, match=next(iter(options))):
            run(costs_of(10.0, 10.0), **options)


class TestEntries:
    @pytest.mark.parametrize("mesh_size", [1, 2, 5])
    @pytest.mark.parametrize("options", [{}, {"run_ahead": False}, {"schedule": "send-after-decode"}])
    def test_entries_are_those_of_a_run(self, mesh_size, options):
        costs = costs_of(20.0, (20.0, 25.0), 3.0, jitter=0.3, gaps=gaps_of(0.1), preflight_ms=0.2)
        check_consistent(run(costs, mesh_size=mesh_size, depth=3, seed=1, **options), 40, mesh_size)

    def test_measures_are_those_of_the_timeline(self):
        found = run(costs_of(20.0, 20.0, 2.0, jitter=0.2), depth=2, seed=0)
        stage0 = found.entries_by_rank[0]
        assert found.measures == measure(stage0, stage1_ms_of(stage0), depth=2)
        assert found.period_ms == found.measures.period_ms
        assert found.mesh_idle == mesh_idle_ms(found.entries_by_rank[1])
        assert len(found.mesh_idle) == 39

    def test_hard_cuts_move_the_epoch(self):
        entries = run(costs_of(5.0, 5.0), chunks=6, cuts=(2, 4)).entries_by_rank[2]
        epochs = [e.cache_epoch for e in entries if e.name == "generate"]
        assert epochs == [0, 0, 1, 1, 2, 2]

    def test_one_chunk_is_enough(self):
        found = run(costs_of(5.0, 5.0), chunks=1, depth=3)
        check_consistent(found, 1, 2)
        assert found.measures.chunks == 1

    def test_unresolved_chunks_get_a_default(self):
        assert simulate(Plan(), costs_of(5.0, 5.0)).measures.chunks > 10

    def test_streams_share_the_mesh_round_robin(self):
        costs = costs_of(60.0, 20.0, 3.0)
        found = run(costs, depth=2, streams=3)
        check_consistent(found, 40, 2, streams=3)
        calls = list(spans_of(found.entries_by_rank[1], "generate"))
        assert calls == list(range(120))
        assert found.period_ms == pytest.approx(60.0)
        assert statistics.median(found.mesh_idle) == pytest.approx(0.0, abs=1e-3)
        crowded = run(costs, depth=2, streams=6)
        assert crowded.period_ms == pytest.approx(120.0, rel=0.01)


TIMES = st.one_of(st.floats(0, 50), st.lists(st.floats(0, 50), min_size=1, max_size=4).map(tuple))


@settings(max_examples=60)
@given(
    times=st.tuples(*[TIMES] * 6),
    handover=st.floats(0, 1),
    jitter=st.floats(0, 0.9),
    depth=st.integers(1, 5),
    mesh_size=st.integers(1, 3),
    streams=st.integers(1, 3),
    run_ahead=st.booleans(),
    schedule=st.sampled_from(["overlap", "send-after-decode"]),
    seed=st.one_of(st.none(), st.integers(0, 5)),
)
def test_unfinished_never_exceeds_depth(
    times, handover, jitter, depth, mesh_size, streams, run_ahead, schedule, seed
):
    encode, decode, stage1, down, broadcast, up = times
    costs = Costs(
        encode_ms=encode,
        decode_ms=decode,
        stage1_ms=stage1,
        down=Hop(down),
        broadcast={2: Hop(broadcast)},
        up=Hop(up),
        gaps=gaps_of(handover),
        jitter=jitter,
    )
    found = run(
        costs,
        chunks=8,
        mesh_size=mesh_size,
        depth=depth,
        streams=streams,
        run_ahead=run_ahead,
        schedule=schedule,
        seed=seed,
    )
    check_consistent(found, 8, mesh_size, streams)
    for rank in (0, *range(mesh_size + 1, mesh_size + streams)):
        assert most_unfinished(found.entries_by_rank[rank]) <= depth


class TestFromRun:
    """Costs taken from a simulated run must give that run again."""

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_costs_of_a_run_predict_it(self, depth):
        truth = costs_of(20.0, 25.0, 3.0, jitter=0.2, preflight_ms=0.5, gaps=gaps_of(0.1))
        before = run(truth, chunks=60, seed=2, depth=1)
        costs = Costs.from_run(before.entries_by_rank)
        for name, samples in costs.gaps.by_step().items():
            assert statistics.median(samples) == pytest.approx(0.1, abs=1e-3), name
        assert len(costs.encode_ms) == 59
        assert costs.transport_ms(2) == pytest.approx(4.0, abs=0.01)
        predicted = run(costs, chunks=60, depth=depth).period_ms
        assert predicted == pytest.approx(run(truth, chunks=60, seed=2, depth=depth).period_ms, rel=0.03)

    def test_what_a_receiver_needs_beyond_its_sender_belongs_to_the_hops(self):
        """A send ends when its bytes have left: here every arrival at rank 0 is 1 ms later than that."""
        entries = run(costs_of(20.0, 20.0, 3.0), chunks=9).entries_by_rank
        late = ("receive", "decode", "emit")
        stage0 = [later(e, MS * (e.chunk_index + (e.name in late))) for e in entries[0]]
        leader = [later(e, MS * e.chunk_index + 10**12) for e in entries[1]]  # and on a clock of its own
        costs = Costs.from_run({0: stage0, 1: leader, 2: []})
        assert costs.transport_ms(2) == pytest.approx(4.0, abs=0.01)
        assert statistics.median(costs.down.latency_ms) == pytest.approx(1.5)
        assert statistics.median(costs.up.latency_ms) == pytest.approx(1.5)

    def test_deeper_runs_have_no_chunk_alone_on_its_way(self):
        entries = run(costs_of(20.0, 20.0, 3.0), chunks=9, depth=2).entries_by_rank
        assert set(Costs.from_run(entries).down.latency_ms[:-1]) == {1.0}

    def test_what_shutdown_and_heartbeats_leave_is_no_cost(self):
        entries = run(costs_of(20.0, 20.0, 3.0), chunks=5).entries_by_rank
        late = Span("send", "down_pg", 10**12, 2 * 10**12, call_id=5, chunk_index=4)
        costs = Costs.from_run({**entries, 0: [*entries[0], late]})
        assert max(costs.down.latency_ms) == pytest.approx(1.0)

    def test_a_run_without_whole_chunks_is_refused(self):
        entries = run(costs_of(20.0, 20.0, 3.0), chunks=5).entries_by_rank
        with pytest.raises(PlanError, match="no chunk with all its spans"):
            Costs.from_run({0: entries[0]})
