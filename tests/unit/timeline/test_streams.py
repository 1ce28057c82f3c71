"""Streams of a run on CUDA made by hand (``made_streams`` has its numbers): waits, edges, measures."""

import json
from itertools import pairwise

import pytest
from made_runs import made, moved
from made_streams import made_on_cuda
from trace_check import check_trace

from ppwork.launcher.launch import mesh_figures
from ppwork.plan import Plan
from ppwork.records.clocks import CLOCK
from ppwork.records.run import Run
from ppwork.records.spans import DEVICE_LANE, STREAM, Instant, Recorder, Span, span_file
from ppwork.timeline.chunks import aligned, lanes_of, spans_by_call, spans_by_chunk
from ppwork.timeline.measures import measure, mesh_idle_ms, stage1_ms_of
from ppwork.timeline.streams import edges, hidden, streams, transfers
from ppwork.timeline.trace import chrome_trace


def half(entries, rank, name, chunk=3):
    (found,) = [
        t for t in transfers(entries) if (t.rank, t.span.name, t.span.chunk_index) == (rank, name, chunk)
    ]
    return found.waits_ms, (found.span.end_ns - found.moves_ns) / 1e6


# Waits and moves


def test_a_transfer_waits_until_the_last_of_its_ranks_has_begun():
    entries = made_on_cuda()
    assert half(entries, 0, "send") == (42, 8)
    assert half(entries, 1, "receive") == (0, 8)
    assert half(entries, 0, "receive") == (58, 4)
    assert half(entries, 1, "send_result") == (0, 4)
    assert half(entries, 1, "broadcast") == (0, 10)
    assert half(entries, 2, "receive") == (20, 10)


def test_a_transfer_whose_peer_never_began_has_not_moved():
    entries = made_on_cuda()
    entries[1] = [e for e in entries[1] if (e.lane, e.chunk_index) != ("cuda:down_pg", 3)]
    assert half(entries, 0, "send") == (50, 0)
    assert half(entries, 0, "send", chunk=4) == (42, 8)


def test_a_clock_that_is_a_little_off_makes_no_negative_time():
    entries = made_on_cuda()
    entries[0] = [moved(e, -9_000_000) for e in entries[0]]
    assert half(entries, 0, "send") == (50, 0)


def test_ranks_of_two_hosts_are_compared_on_one_clock():
    entries = made_on_cuda()
    elsewhere = Instant(CLOCK, "main", 0, figures={"offset_ns": 7e9, "error_ns": 0.0})
    entries[1] = [elsewhere, *(moved(e, 7_000_000_000) for e in entries[1])]
    assert half(aligned(entries), 0, "send") == (42, 8)


def test_hidden_is_what_ended_behind_the_chunk_before_and_not_what_lay_over_it():
    assert hidden(made_on_cuda()) == dict.fromkeys(range(1, 8), True)
    assert hidden(made_on_cuda(late_from=5)) == {k: k < 5 for k in range(1, 8)}
    assert hidden(made()) == {}


@pytest.mark.parametrize(
    ("rank", "ways"),
    [
        (0, ["compute send", "receive decode"]),
        (1, ["receive broadcast", "broadcast generate", "generate send_result"]),
        (2, ["receive generate"]),
    ],
)
def test_edges_lead_from_the_end_of_one_stream_s_work_to_the_start_of_another_s(rank, ways):
    found = [e for e in edges(made_on_cuda()) if e.rank == rank and e.after.chunk_index == 3]
    assert [f"{e.before.name} {e.after.name}".replace("encode", "compute") for e in found] == ways
    assert all(e.before.end_ns <= e.after.start_ns and e.before.lane != e.after.lane for e in found)


def test_each_stream_has_a_row_with_its_share_and_its_medians():
    rows = {(s.rank, s.lane): (s.spans, s.busy_ms, s.waits_ms) for s in streams(made_on_cuda())}
    assert rows[0, "cuda:down_pg"] == (8, 8, 42)
    assert rows[1, DEVICE_LANE] == (8, 98, 0)
    assert len(rows) == 3 + 4 + 2
    shares = {(s.rank, s.lane): s.busy for s in streams(made_on_cuda())}
    # From emit 0 at 281 to emit 7 at 981: seven chunks' work of the leader, less the gap before 260.
    assert shares[1, DEVICE_LANE] == pytest.approx(0.95, abs=0.02)
    assert shares[0, "cuda:down_pg"] == pytest.approx(0.06, abs=0.02)
    assert streams(made()) == []


# What others make of these lanes


def test_a_step_on_the_device_counts_once_with_the_time_of_the_device():
    entries = made_on_cuda()
    figures = measure(entries[0], stage1_ms_of(entries[0]), depth=3)
    assert (figures.period_ms, figures.stage0_ms, figures.stage1_ms) == (100, 10 + 18 + 0.5, 98)
    assert mesh_idle_ms(entries[1]) == (2.0,) * 7
    spans = spans_by_chunk(entries)[3]
    assert {name: [s.lane for s in of] for (rank, name), of in spans.items() if rank == 1} == {
        "receive": ["cuda:down_pg"],
        "broadcast": ["cuda:mesh_pg"],
        "generate": [DEVICE_LANE],
        "send_result": ["cuda:up_pg"],
    }


def test_the_devices_encode_has_the_call_that_was_made_after_it():
    """A heartbeat may take the id that is next while a chunk is encoded."""
    entries = made_on_cuda()
    assert spans_by_call(entries[0], "encode")[3].ms == 10
    assert spans_by_call(entries[0], "send")[3].ms == 50


def test_a_chunk_whose_tensors_stayed_on_the_cpu_keeps_its_frame():
    entries = made_on_cuda()
    entries[0] = [e for e in entries[0] if (e.lane, e.chunk_index) != ("cuda:down_pg", 3)]
    assert [s.lane for s in spans_by_chunk(entries)[3][0, "send"]] == ["down_pg"]


def test_streams_stand_below_the_threads_of_their_rank_in_the_order_of_a_chunks_life():
    lanes = [lane for rank, lane in lanes_of(made_on_cuda()) if rank == 1]
    assert lanes == [
        *("down_pg", "mesh_pg", "main", "up_pg"),
        *("cuda:down_pg", "cuda:mesh_pg", DEVICE_LANE, "cuda:up_pg"),
    ]


def test_the_trace_has_a_thread_per_stream_its_waits_and_arrows_from_stream_to_stream():
    data = chrome_trace(made_on_cuda(), Plan(mesh_size=2, in_flight_depth=3))
    check_trace(data)
    events = json.loads(data)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sum(name.startswith(STREAM) for name in names.values()) == 9
    waits = [e for e in events if e["name"] == "waits" and names[e["tid"]] == "cuda:down_pg"]
    assert [(e["cat"], e["dur"]) for e in waits] == [("wait", 42_000.0)] * 8
    first = [e for e in events if e["ph"] in "stf" and e["id"] == 0]
    lanes = [names[e["tid"]].removeprefix(STREAM) for e in first]
    assert lanes == ["down_pg", "down_pg", "mesh_pg", "compute", "up_pg", "compute"]
    assert json.loads(data)["otherData"]["flows_left_out"] == 0


def test_spans_of_a_stream_do_not_overlap_in_what_was_made():
    for entries in made_on_cuda(late_from=3).values():
        for lane in {e.lane for e in entries}:
            spans = sorted((e.start_ns, e.end_ns) for e in entries if isinstance(e, Span) and e.lane == lane)
            assert all(a[1] <= b[0] for a, b in pairwise(spans)), lane


def test_the_summary_has_the_streams_of_a_run_on_cuda_and_nothing_of_them_without(tmp_path):
    for name, entries in {"cuda": made_on_cuda(late_from=5), "cpu": made()}.items():
        folder = tmp_path / name
        folder.mkdir()
        Plan(mesh_size=2, in_flight_depth=3).save(folder)
        for rank, of_rank in entries.items():
            with Recorder(span_file(folder, rank)) as recorder:
                for entry in of_rank:
                    recorder.write(entry)
    figures = mesh_figures(Run(tmp_path / "cuda", 0))
    assert figures["hidden_transfers"] == "4 of 7"
    assert [f["lane"] for f in figures["streams"] if f["rank"] == 0] == [
        DEVICE_LANE,
        "cuda:down_pg",
        "cuda:up_pg",
    ]
    assert mesh_figures(Run(tmp_path / "cpu", 0)).keys() == {"mesh_idle_ms", "queues"}
