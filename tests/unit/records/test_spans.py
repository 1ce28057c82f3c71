"""Spans and instants as JSON lines, and the measures against an example computed by hand."""

import statistics
import threading

import msgspec
import pytest

from ppwork.records.spans import Instant, Recorder, Span, parse_entries, read_entries, span_file
from ppwork.timeline.chunks import chunk_durations
from ppwork.timeline.measures import (
    Measures,
    dropped_chunks,
    mean_mesh_idle_ms,
    measure,
    mesh_idle_ms,
    metrics_of,
    stage1_ms_of,
)

MS = 1_000_000


def example(periods_ms, *, encode=6.0, preflight=1.0, decode=3.0, first_emit_ms=100.0):
    """Return rank 0's entries of a run whose emissions are ``periods_ms`` apart."""
    entries, emit = [], first_emit_ms
    for chunk, period in enumerate([0.0, *periods_ms]):
        emit += period
        for name, ms in (("encode", encode), ("preflight", preflight), ("decode", decode)):
            entries.append(Span(name, "main", 0, int(ms * MS), chunk_index=chunk))
        entries.append(Span("send", "down_pg", 0, 50 * MS, chunk_index=chunk))
        entries.append(Instant("emit", "main", int(emit * MS), chunk_index=chunk))
    return entries


def recorded(tmp_path, act):
    with Recorder(span_file(tmp_path, 0)) as recorder:
        act(recorder)
    return read_entries(tmp_path, 0)


# Recording


def test_recorder_writes_spans_and_instants_that_read_back(tmp_path):
    def act(recorder):
        with recorder.span("encode", ids={"call_id": 4, "chunk_index": 3, "cache_epoch": 1}):
            pass
        recorder.add_span("receive", 1, lane="up_pg")
        recorder.instant("emit", figures={"psnr": 30.5}, ids={"chunk_index": 3})

    span, late, instant = recorded(tmp_path, act)
    assert (span.name, span.lane, span.call_id, span.chunk_index, span.cache_epoch) == (
        "encode",
        "main",
        4,
        3,
        1,
    )
    assert span.end_ns >= span.start_ns
    assert span.ms == (span.end_ns - span.start_ns) / 1e6
    assert (late.start_ns, late.lane, late.call_id) == (1, "up_pg", -1)
    assert (instant.name, instant.figures, instant.chunk_index) == ("emit", {"psnr": 30.5}, 3)
    assert instant.at_ns >= span.end_ns


def test_span_is_recorded_also_when_its_body_raises(tmp_path):
    def act(recorder):
        with pytest.raises(KeyError), recorder.span("decode"):
            raise KeyError

    assert [entry.name for entry in recorded(tmp_path, act)] == ["decode"]


def test_figure_that_json_cannot_carry_is_left_out_and_the_file_still_reads(tmp_path):
    """The PSNR of equal pictures is infinite."""
    figures = {"psnr": float("inf"), "nan": float("nan"), "stage1_ms": 2}

    def act(recorder):
        recorder.instant("emit", figures=figures)

    (entry,) = recorded(tmp_path, act)
    assert entry.figures == {"stage1_ms": 2.0}


def test_every_line_is_on_disk_before_the_recorder_is_closed(tmp_path):
    """A killed rank leaves all but its last line."""
    with Recorder(span_file(tmp_path, 2)) as recorder:
        recorder.instant("one")
        recorder.instant("two")
        assert [entry.name for entry in read_entries(tmp_path, 2)] == ["one", "two"]


def test_an_entry_that_is_followed_up_goes_out_with_the_next_one_of_any_thread_or_at_the_end(tmp_path):
    with Recorder(span_file(tmp_path, 2)) as recorder:
        recorder.add_span("preflight", 1, more=True)
        assert read_entries(tmp_path, 2) == []
        recorder.instant("envelope.send")
        assert [entry.name for entry in read_entries(tmp_path, 2)] == ["preflight", "envelope.send"]
        recorder.add_span("decode", 1, more=True)
        assert recorder.entries == 3
    assert [entry.name for entry in read_entries(tmp_path, 2)] == ["preflight", "envelope.send", "decode"]


def test_closed_recorder_drops_entries(tmp_path):
    recorder = Recorder(span_file(tmp_path, 0))
    recorder.instant("kept")
    recorder.close()
    recorder.instant("dropped")
    recorder.close()
    assert [entry.name for entry in read_entries(tmp_path, 0)] == ["kept"]


def test_recorder_without_a_file_keeps_the_last_instants_only():
    with Recorder(None) as recorder:
        recorder.instant("first")
        recorder.instant("second", ids={"call_id": 2})
        recorder.instant("other", lane="up_pg")
        last = recorder.last_instants()
    assert {lane: entry["name"] for lane, entry in last.items()} == {"main": "second", "up_pg": "other"}
    assert last["main"]["call_id"] == 2
    assert isinstance(last["main"], dict)


def test_threads_write_whole_lines(tmp_path):
    """R7: helper threads record too."""
    threads, each = 4, 200
    with Recorder(span_file(tmp_path, 0)) as recorder:
        start = threading.Barrier(threads)

        def work(lane):
            start.wait()
            for call_id in range(each):
                recorder.instant("tick", lane=lane, ids={"call_id": call_id})

        running = [threading.Thread(target=work, args=(f"lane{n}",)) for n in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    entries = read_entries(tmp_path, 0)
    assert len(entries) == threads * each
    for n in range(threads):
        mine = [entry.call_id for entry in entries if entry.lane == f"lane{n}"]
        assert mine == list(range(each))


# Reading


def test_cut_last_line_is_left_for_the_next_call():
    whole = b'{"type":"instant","name":"a","lane":"main","at_ns":1}\n'
    for cut in range(len(whole)):
        entries, consumed = parse_entries(whole + whole[:cut])
        assert entries == [Instant("a", "main", 1)]
        assert consumed == len(whole)
    assert parse_entries(whole[:-1]) == ([], 0)
    assert parse_entries(b"") == ([], 0)


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"type":"other"}\n', b"{}\n", b"\n"], ids=repr)
def test_whole_line_that_is_no_entry_is_refused(line):
    with pytest.raises(ValueError, match="not a span file"):
        parse_entries(line)


def test_rank_that_never_wrote_has_no_entries(tmp_path):
    assert read_entries(tmp_path, 5) == []


# Measures


def test_durations_sum_the_named_spans_per_chunk():
    entries = [
        Span("encode", "main", 0, 2 * MS, chunk_index=0),
        Span("encode", "main", 0, 3 * MS, chunk_index=0),
        Span("decode", "main", 0, 4 * MS, chunk_index=1),
        Span("load", "main", 0, 9 * MS),
        Instant("encode", "main", 5, chunk_index=0),
    ]
    assert chunk_durations(entries, "encode", "decode", "load") == {0: 5.0, 1: 4.0}
    assert chunk_durations(entries, "encode") == {0: 5.0}


def test_stage1_times_come_from_the_emissions():
    entries = [
        Instant("emit", "main", 1, chunk_index=0, figures={"stage1_ms": 7.5}),
        Instant("emit", "main", 2, chunk_index=1),
        Instant("envelope.send", "main", 3, chunk_index=2, figures={"stage1_ms": 9.0}),
        Span("emit", "main", 0, 1, chunk_index=3),
    ]
    assert stage1_ms_of(entries) == {0: 7.5}


def test_sequential_emissions_have_overlap_zero():
    """By hand: stage0 = 6+1+3 = 10, stage1 = 20, period = 10 + 20: nothing is hidden."""
    found = measure(example([30.0] * 4), dict.fromkeys(range(5), 20.0))
    each = {"period_ms": 30.0, "stage0_ms": 10.0, "stage1_ms": 20.0}
    assert found == Measures(5, 1, 4, **each, overlap_score=0.0, efficiency=round(20 / 30, 4))


@pytest.mark.parametrize(
    ("chunks", "depth", "first", "last"),
    [(2, 3, 1, 1), (5, 2, 1, 4), (8, 1, 1, 7), (8, 2, 2, 5), (8, 3, 1, 7), (20, 1, 1, 19), (20, 3, 3, 17)],
)
def test_figures_are_over_the_chunks_that_they_name(chunks, depth, first, last):
    """Chunks of unlike length; without fill and drain where two rounds remain; a few have no shares."""
    stage1 = {k: 30.0 + 7.0 * (k % 4) for k in range(chunks)}
    gaps = {k: 40.0 + 11.0 * (k % 4) for k in range(1, chunks)}
    found = measure(example([*gaps.values()]), stage1, depth=depth)
    assert (found.from_chunk, found.to_chunk) == (first, last)
    assert (found.period_p50_ms is None) == (last - first < 4)
    for figure, each in ((found.period_ms, gaps), (found.stage1_ms, stage1)):
        assert figure == pytest.approx(statistics.fmean(each[k] for k in range(first, last + 1)), abs=0.001)


def test_fully_overlapped_emissions_have_overlap_one_and_full_efficiency():
    """By hand: period = max(10, 20) = 20, hidden = 10 = min(stage0, stage1)."""
    found = measure(example([20.0] * 4), dict.fromkeys(range(5), 20.0))
    assert (found.period_ms, found.overlap_score, found.efficiency) == (20.0, 1.0, 1.0)


def test_half_overlapped_emissions_by_hand():
    """Period 25: hidden = 30 - 25 = 5 of 10."""
    found = measure(example([25.0] * 4), dict.fromkeys(range(5), 20.0))
    assert (found.period_ms, found.overlap_score, found.efficiency) == (25.0, 0.5, 0.8)


def test_alternating_periods_at_depth_2_are_measured_over_whole_rounds():
    """By hand: (20 + 20 + 5) / 2 = 22.5, which no single period is; hidden 40 - 22.5 of 20."""
    entries = example([20.0, 25.0] * 6 + [20.0], encode=12.0, preflight=0.0, decode=8.0)
    stage1 = dict.fromkeys(range(14), 20.0)
    found = measure(entries, stage1, depth=2)
    assert (found.period_ms, found.overlap_score) == (22.5, 0.875)
    assert found.efficiency == round(20 / 22.5, 4)


@pytest.mark.parametrize(("depth", "overlap"), [(1, 0.0), (2, 1.0), (4, 1.0)])
def test_chunks_of_unlike_length_do_not_turn_the_ranking_of_depths_round(depth, overlap):
    """By hand: every fourth chunk takes 120 ms and the others 20, a mean of 45; stage 0 takes 20.

    In turns a chunk comes after 65 ms in the mean, overlapped after 45. The median of single ones is 40 in
    turns, that of rounds of four 45: the slower run would have looked quicker.
    """
    stage1 = {k: 120.0 if k % 4 == 0 else 20.0 for k in range(41)}
    periods = [stage1[k] + (20.0 if depth == 1 else 0.0) for k in range(1, 41)]
    entries = example(periods, encode=12.0, preflight=0.0, decode=8.0)
    found = measure(entries, stage1, depth=depth)
    assert found.period_ms == pytest.approx(65.0 if depth == 1 else 45.0, abs=1.5)
    assert found.overlap_score == pytest.approx(overlap, abs=0.05)
    assert found.efficiency == pytest.approx(45 / 65 if depth == 1 else 1.0, abs=0.02)
    assert (found.period_p50_ms, found.period_p90_ms) == ((40.0, 140.0) if depth == 1 else (20.0, 120.0))


def test_time_for_which_the_source_had_no_chunk_is_a_mean_over_all_chunks():
    entries = [
        msgspec.structs.replace(entry, figures={"source_ms": 30.0})
        if entry.name == "emit" and entry.chunk_index > 2
        else entry
        for entry in example([40.0] * 4)
    ]
    assert measure(entries, dict.fromkeys(range(5), 20.0)).source_ms == 15.0  # chunks 1 to 4


def test_period_of_a_run_shorter_than_a_round_is_over_all_of_it():
    found = measure(example([20.0, 40.0]), dict.fromkeys(range(3), 20.0), depth=8)
    assert found.period_ms == 30.0


def test_rounds_start_after_the_warm_up():
    """Sums by hand: warm-up 2 leaves the rounds from chunk 1 on, (20 + 30) / 2 and (30 + 40) / 2."""
    found = measure(example([90.0, 20.0, 30.0, 40.0]), dict.fromkeys(range(5), 20.0), depth=2, warm_up=2)
    assert found.period_ms == 30.0


def test_stall_is_no_negative_overlap():
    found = measure(example([300.0] * 3), dict.fromkeys(range(4), 20.0))
    assert found.overlap_score == 0.0


def test_a_score_is_never_above_all_of_it():
    """A period that scatters below the longer stage: hidden would be 12 of 10."""
    found = measure(example([18.0] * 4), dict.fromkeys(range(5), 20.0))
    assert (found.overlap_score, found.efficiency) == (1.0, 1.0)


def test_a_stage_as_short_as_what_lies_between_chunks_is_not_scored():
    short = example([21.0] * 4, encode=0.3, preflight=0.1, decode=0.1)
    found = measure(short, dict.fromkeys(range(5), 20.0))
    assert (found.overlap_score, found.efficiency) == (None, round(20 / 21, 4))
    found = measure(short, dict.fromkeys(range(5), 0.4))
    assert (found.overlap_score, found.efficiency) == (None, None)


def test_metrics_of_a_stage_are_medians_over_the_chunks_that_have_them():
    figures = [{"stage1_ms": 1.0, "loss": 3.0}, {"stage1_ms": 1.0, "loss": 1.0, "rate": 7.0}, {"loss": 2.0}]
    entries = [Instant("emit", "main", at, figures=of) for at, of in enumerate(figures)]
    assert metrics_of(entries) == {"loss": 2.0, "rate": 7.0}


def test_a_mean_is_over_the_chunks_after_warm_up():
    """Periods of 30, 25 and 20 ms: hidden 30 - 25 = 5 of 10."""
    found = measure(example([30.0, 25.0, 20.0]), dict.fromkeys(range(4), 20.0))
    assert found.overlap_score == 0.5
    assert found.period_ms == 25.0


@pytest.mark.parametrize(
    ("warm_up", "period_ms"), [(0, 53.333), (1, 53.333), (2, 35.0), (3, 20.0), (4, 53.333)]
)
def test_warm_up_chunks_are_left_out_exactly(warm_up, period_ms):
    """Periods of chunks 1, 2, 3 are 90, 50, 20; a warm-up that leaves none is ignored."""
    found = measure(example([90.0, 50.0, 20.0]), dict.fromkeys(range(4), 20.0), warm_up=warm_up)
    assert found.period_ms == period_ms


def test_warm_up_longer_than_the_run_is_ignored():
    found = measure(example([30.0, 30.0]), dict.fromkeys(range(3), 20.0), warm_up=50)
    assert found.period_ms == 30.0


def test_order_of_entries_does_not_matter():
    entries = example([30.0, 20.0, 25.0])
    stage1 = dict.fromkeys(range(4), 20.0)
    assert measure(entries[::-1], stage1) == measure(entries, stage1)


@pytest.mark.parametrize(("periods", "chunks"), [(None, 0), ([], 1)], ids=["none", "one"])
def test_too_few_chunks_have_counts_and_no_measures(periods, chunks):
    entries = [] if periods is None else example(periods)
    assert measure(entries, {0: 20.0}) == Measures(chunks=chunks)


def test_chunks_without_a_stage1_time_have_no_measures():
    assert measure(example([30.0, 30.0]), {}) == Measures(chunks=3)


def test_period_over_a_missing_emission_is_not_taken():
    """A stale chunk was dropped (R3): the gap is no period."""
    entries = [
        entry for entry in example([30.0] * 4) if not (entry.name == "emit" and entry.chunk_index == 2)
    ]
    found = measure(entries, dict.fromkeys(range(5), 20.0))
    assert (found.chunks, found.period_ms) == (4, 30.0)
    assert measure(entries, dict.fromkeys(range(5), 20.0), depth=2).period_ms is None


def test_idle_of_the_mesh_is_between_the_leaders_computations():
    """By hand: 0-20, 25-45, 45-60, recorded in another order; other spans do not count."""
    spans = [
        Span("generate", "main", start * MS, end * MS, chunk_index=k)
        for k, (start, end) in ((2, (45, 60)), (0, (0, 20)), (1, (25, 45)))
    ]
    assert mesh_idle_ms([*spans, Span("send_result", "up_pg", 20 * MS, 24 * MS)]) == (5.0, 0.0)
    assert mesh_idle_ms(spans[:1]) == ()


def test_mean_idle_time_is_over_the_chunks_of_the_period():
    """By hand: 60 ms before chunk 1, where the pipeline fills, then 4 and 6."""
    spans = [
        Span("generate", "main", start * MS, (start + 10) * MS, chunk_index=k)
        for k, start in enumerate((0, 70, 84, 100))
    ]
    assert mean_mesh_idle_ms(spans, 2, 3) == 5.0
    assert mean_mesh_idle_ms(spans, None, None) == round(70 / 3, 3)
    assert mean_mesh_idle_ms(spans, 7, 9) == round(70 / 3, 3), "a run that has none of them has all"
    assert mean_mesh_idle_ms(spans[:1], 0, 0) is None


def test_dropped_chunks_are_those_with_a_drop():
    entries = [Instant("drop", "main", 9, chunk_index=4), Instant("drop", "main", 8, chunk_index=3)]
    assert dropped_chunks([*entries, Instant("emit", "main", 7, chunk_index=2)]) == [3, 4]


def test_span_may_have_ended_before_it_is_recorded(tmp_path):
    (span,) = recorded(tmp_path, lambda recorder: recorder.add_span("encode", 5, end_ns=7))
    assert (span.start_ns, span.end_ns) == (5, 7)
