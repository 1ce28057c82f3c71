"""The Perfetto trace: what a viewer shows of it, and that a spoiled one is refused."""

import json

import msgspec
import pytest
from made_runs import MS, ZERO, made
from trace_check import check_trace

from ppwork.plan import Plan
from ppwork.records.clocks import CLOCK
from ppwork.records.spans import Instant, Span
from ppwork.timeline.trace import chrome_trace

PLAN = Plan(mesh_size=2)


def events_of(entries, plan=PLAN, **options):
    data = chrome_trace(entries, plan, **options)
    check_trace(data)
    return json.loads(data)["traceEvents"]


def names(events, kind):
    found = [e for e in events if e["ph"] == "M" and e["name"] == kind]
    return {e["tid"] if kind == "thread_name" else e["pid"]: e["args"]["name"] for e in found}


# What a viewer shows


def test_one_named_process_row_per_rank_in_order_with_lanes_as_threads():
    events = events_of(made())
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    order = {e["args"]["sort_index"]: e["pid"] for e in events if e["name"] == "process_sort_index"}
    assert [processes[order[r]] for r in range(3)] == ["rank 0 stage0", "rank 1 leader", "rank 2 follower"]
    lanes = {(processes[e["pid"]], threads[e["tid"]]) for e in events if e["ph"] == "X"}
    assert ("rank 1 leader", "mesh_pg") in lanes
    assert len(lanes) == 3 + 4 + 2
    assert 0 not in {e["pid"] for e in events}  # viewers take process 0 for the idle task


def test_spans_and_instants_keep_their_times_in_microseconds_and_their_ids():
    """Zero is the first entry: the follower's receive, 22 ms before the first encode."""
    events = events_of(made(cut_at=3))
    (generate, _) = [e for e in events if e["name"] == "generate" and e["args"]["chunk_index"] == 3]
    assert generate["ph"] == "X"
    assert (generate["ts"], generate["dur"]) == (337_000.0, 65_000.0)
    assert generate["args"] == {"call_id": 3, "chunk_index": 3, "cache_epoch": 1}
    (emit,) = [e for e in events if e["name"] == "emit" and e["args"]["chunk_index"] == 3]
    assert (emit["ph"], emit["ts"], emit["args"]["stage1_ms"]) == ("i", 421_000.0, 65.0)
    assert len([e for e in events if e["ph"] == "X"]) == sum(
        isinstance(entry, Span) for entries in made().values() for entry in entries
    )


def slice_at(events, step):
    inside = [
        e for e in events
        if e["ph"] == "X" and e["tid"] == step["tid"] and e["ts"] <= step["ts"] <= e["ts"] + e["dur"]
    ]  # fmt: skip
    return max(inside, key=lambda e: e["ts"])


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("mesh_size", [1, 2, 4])
def test_arrows_follow_every_chunk_from_rank_0_through_the_mesh_and_back(overlapped, mesh_size):
    entries = made(overlapped=overlapped, mesh_size=mesh_size)
    events = events_of(entries, Plan(mesh_size=mesh_size))
    processes = names(events, "process_name")
    flows = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
    ways = {k: [] for k in range(8)}
    for steps in flows.values():
        assert [step["ph"] for step in steps] == ["s", *"t" * (len(steps) - 2), "f"]
        slices = [slice_at(events, step) for step in steps]
        (chunk,) = {found["args"]["chunk_index"] for found in slices}
        ways[chunk].append([(processes[found["pid"]].split()[1], found["name"]) for found in slices])
    main = [("0", "send"), *(("1", n) for n in ("receive", "broadcast", "generate", "send_result")),
            ("0", "decode")]  # fmt: skip
    branches = [
        [("1", "broadcast"), (f"{rank}", "receive"), (f"{rank}", "generate"), ("1", "send_result")]
        for rank in range(2, mesh_size + 1)
    ]
    for chunk, found in ways.items():
        assert found == [main, *branches], chunk


def test_chunk_that_never_came_back_has_an_arrow_as_far_as_it_got():
    entries = made(2)
    entries[0] = [e for e in entries[0] if not (e.chunk_index == 1 and e.name in ("decode", "emit"))]
    ends = [e for e in events_of(entries) if e["ph"] == "f" and e["name"] == "chunk 1"]
    assert len(ends) == 2  # through the leader, and through the follower: both at send_result


def test_arrows_against_time_are_left_out_and_counted_and_an_offset_brings_them_back():
    """Two hosts: the monotonic clocks of two machines have nothing in common."""
    entries = made(3)
    early = [
        msgspec.structs.replace(e, start_ns=e.start_ns - 60 * MS, end_ns=e.end_ns - 60 * MS)
        for e in entries[2]
    ]
    apart = json.loads(chrome_trace({**entries, 2: early}, PLAN))
    assert apart["otherData"]["flows_left_out"] == 3
    check_trace(json.dumps(apart).encode())
    behind = Instant(CLOCK, "main", ZERO - 60 * MS, figures={"offset_ns": -60.0 * MS})
    fixed = json.loads(chrome_trace({**entries, 2: [behind, *early]}, PLAN))
    events = fixed.pop("traceEvents")
    expected = json.loads(chrome_trace(entries, PLAN))
    assert [event for event in events if event["name"] != CLOCK] == expected.pop("traceEvents")
    assert fixed == expected


def test_run_that_recorded_nothing_still_makes_json_and_fails_the_check():
    with pytest.raises(ValueError, match="no list of events"):
        check_trace(chrome_trace({}, PLAN))


def test_spans_without_a_chunk_are_shown_too():
    entries = made(2)
    entries[0].insert(0, Span("load", "main", ZERO - 900 * MS, ZERO - 100 * MS))
    events = events_of(entries)
    (load,) = [e for e in events if e["name"] == "load"]
    assert (load["ts"], load["dur"], load["args"]) == (0.0, 800_000.0, {})


# A malformed trace fails


def first(document, phase, **where):
    return next(
        e for e in document["traceEvents"]
        if e["ph"] == phase and all(e[key] == value for key, value in where.items())
    )  # fmt: skip


def drop(phase, key, **where):
    return lambda document: first(document, phase, **where).pop(key)


def put(phase, key, value, **where):
    return lambda document: first(document, phase, **where).update({key: value})


def remove(phase, **where):
    return lambda document: document["traceEvents"].remove(first(document, phase, **where))


def repeat(phase):
    return lambda document: document["traceEvents"].append(dict(first(document, phase)))


SPOILED = {
    "no events": (lambda d: d.pop("traceEvents"), "no list of events"),
    "events of another type": (lambda d: d.update(traceEvents={}), "no list of events"),
    "event that is no object": (lambda d: d["traceEvents"].insert(2, 7), "event 2 "),
    "no phase": (drop("X", "ph"), "ph"),
    "unknown phase": (put("X", "ph", "Z"), "Z"),
    "slice without duration": (drop("X", "dur"), "dur"),
    "slice without time": (drop("X", "ts"), "ts"),
    "slice without process": (drop("X", "pid"), "pid"),
    "time as text": (put("X", "ts", "1.5"), "ts"),
    "process as text": (put("X", "pid", "1000"), "pid"),
    "negative time": (put("X", "ts", -1.0), ">= 0"),
    "negative duration": (put("X", "dur", -0.5), ">= 0"),
    "empty name": (put("X", "name", ""), "name"),
    "instant without scope": (drop("i", "s"), "`s`"),
    "instant of unknown scope": (put("i", "s", "q"), "'q'"),
    "flow without id": (drop("s", "id"), "id"),
    "flow end that binds to the next slice": (drop("f", "bp"), "bp"),
    "process without name": (remove("M", name="process_name"), "process has no name"),
    "thread without name": (remove("M", name="thread_name"), "thread has no name"),
    "row with an empty name": (put("M", "args", {"name": ""}, name="thread_name"), "no name"),
    "order without a number": (put("M", "args", {}, name="process_sort_index"), "no sort_index"),
    "slice in an unknown thread": (put("X", "tid", 1), "thread has no name"),
    "flow that begins twice": (repeat("s"), "begin once, and does so 2 times"),
    "flow that ends twice": (repeat("f"), "end once, and does so 2 times"),
    "flow that never begins": (remove("s"), "begin once, and does so 0 times"),
    "flow that never ends": (remove("f"), "end once, and does so 0 times"),
    "flow step outside of every slice": (put("t", "ts", 5e9), "lies in no slice"),
    "flow step just before its slice": (
        lambda d: first(d, "f").update(ts=first(d, "f")["ts"] - 0.001),
        "lies in no slice",
    ),
    "flow that ends before it began": (
        lambda d: first(d, "s").update(ts=first(d, "s", name="chunk 5")["ts"]),
        "outside the time of its flow",
    ),
    "slices that overlap": (
        lambda d: first(d, "X", name="encode").update(dur=10_500.0),
        "overlaps another slice",
    ),
}


@pytest.mark.parametrize("way", SPOILED)
def test_malformed_trace_is_refused_with_the_reason(way):
    spoil, said = SPOILED[way]
    document = json.loads(chrome_trace(made(), PLAN))
    check_trace(json.dumps(document).encode())
    spoil(document)
    with pytest.raises(ValueError, match=r"trace|event") as refused:
        check_trace(json.dumps(document).encode())
    assert said in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"trace"', b'{"traceEvents": [NaN]}'])
def test_what_is_no_json_object_is_refused(data):
    with pytest.raises(ValueError, match="not a JSON object"):
        check_trace(data)


def test_the_first_bad_event_is_named_by_its_place():
    document = json.loads(chrome_trace(made(), PLAN))
    places = [k for k, e in enumerate(document["traceEvents"]) if e["ph"] == "X"][5:7]
    for place in places:
        del document["traceEvents"][place]["dur"]
    with pytest.raises(ValueError, match=rf"^event {places[0]} "):
        check_trace(json.dumps(document).encode())


def test_slices_that_nest_are_allowed():
    entries = made(2)
    inside = Span("reduce", "main", ZERO + 20 * MS, ZERO + 30 * MS, 0, 0, 0)
    entries[1].append(inside)
    assert [e["name"] for e in events_of(entries)].count("reduce") == 1
