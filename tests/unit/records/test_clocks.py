"""Clocks of several hosts: the bound holds whatever the delays, and pictures use what the files say."""

import json
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import MS, made

from ppwork.pictures.timeline_words import timeline_finding
from ppwork.pictures.timelines import timeline
from ppwork.plan import Plan
from ppwork.records.clocks import (
    CLOCK,
    HOST,
    SAME,
    Clock,
    Offset,
    Round,
    best,
    clock_names,
    clock_offsets,
    host_of,
    ranks_elsewhere,
)
from ppwork.records.spans import Instant, Span
from ppwork.timeline.chunks import aligned
from ppwork.timeline.trace import chrome_trace

moments = st.integers(-(10**17), 10**17)
delays = st.integers(0, 10**10)
trips = st.lists(st.tuples(moments, delays, delays), min_size=1, max_size=20)


def answered(offset_ns, left_ns, there_ns, back_ns):
    return Round(left_ns, left_ns + there_ns + offset_ns, left_ns + there_ns + back_ns)


# Measuring


def test_even_trip_gives_the_offset_by_hand():
    """Asked at 100, answered by a clock 5000 ahead after 30, back after 30 more."""
    assert answered(5000, 100, 30, 30).offset == Offset(5000, 30)


def test_uneven_trip_is_wrong_by_half_of_the_difference_and_says_so():
    """40 there and none back: the middle is 20 too early."""
    assert answered(0, 100, 40, 0).offset == Offset(20, 20)
    assert answered(0, 100, 0, 40).offset == Offset(-20, 20)


@given(moments, trips)
def test_truth_is_never_further_away_than_the_bound(offset_ns, legs):
    found = best(answered(offset_ns, *leg) for leg in legs)
    assert abs(found.offset_ns - offset_ns) <= found.error_ns


@given(moments, trips)
def test_bound_is_half_of_the_quickest_trip(offset_ns, legs):
    found = best(answered(offset_ns, *leg) for leg in legs)
    assert found.error_ns == (min(there + back for _, there, back in legs) + 1) // 2


def test_no_rounds_are_no_offset():
    with pytest.raises(ValueError, match="empty"):
        best([])


# Who shares a clock


def test_ranks_are_grouped_by_clock_and_those_of_rank_zero_need_nothing():
    assert ranks_elsewhere(["a", "b", "a", "c", "b"]) == [[1, 4], [3]]
    assert ranks_elsewhere(["a", "a", "a"]) == []


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_every_rank_is_measured_once_or_shares_the_clock_of_rank_zero(names):
    elsewhere = ranks_elsewhere(names)
    assert sorted(rank for ranks in elsewhere for rank in ranks) == [
        rank for rank, name in enumerate(names) if name != names[0]
    ]
    assert all(len({names[rank] for rank in ranks}) == 1 for ranks in elsewhere)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Files in the places where a kernel says which boot and which time namespace this is."""
    boot, namespace = tmp_path / "boot_id", tmp_path / "time"
    monkeypatch.setattr("ppwork.records.clocks.BOOT_ID", boot)
    monkeypatch.setattr("ppwork.records.clocks.TIME_NAMESPACE", namespace)

    def says(boot_id, time_namespace):
        boot.write_text(f"{boot_id}\n")
        namespace.unlink(missing_ok=True)
        if time_namespace:
            namespace.symlink_to(time_namespace)
        return Clock.of_this_host().name

    return says


def test_clock_is_that_of_the_boot_and_of_the_time_namespace(kernel):
    names = [
        kernel("one", "time:[1]"),
        kernel("one", "time:[2]"),
        kernel("two", "time:[1]"),
        kernel("one", None),
    ]
    assert len(set(names)) == 4
    assert kernel("one", "time:[1]") == names[0]


def test_hosts_that_were_resumed_from_one_snapshot_share_a_boot_and_no_clock(kernel, monkeypatch):
    names = []
    for host in ("gpu-a", "gpu-b"):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        names.append(kernel("one", "time:[1]"))
    assert names == ["gpu-a one time:[1]", "gpu-b one time:[1]"]


def test_host_that_tells_nothing_goes_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("ppwork.records.clocks.BOOT_ID", tmp_path / "nowhere")
    assert Clock.of_this_host().name == os.uname().nodename


# What the files say, and who uses it


def on_clock(entries, rank, offset_ns):
    """The same entries as a rank would have recorded them whose clock is ahead by so much."""
    later = aligned({rank: [*entries[rank], said(-offset_ns)]})[rank][:-1]
    entries[rank] = [*later, said(offset_ns)]
    return entries


def said(offset_ns):
    return Instant(CLOCK, "main", 0, figures={"offset_ns": float(offset_ns), "error_ns": 900.0})


def test_offsets_are_read_from_each_rank_that_says_one():
    entries = {
        0: [said(0)],
        1: [Span("clock", "main", 0, 1), said(-7), Instant("emit", "main", 1, figures={"offset_ns": 3.0})],
        2: [Instant(CLOCK, "main", 1)],
        3: [],
    }
    assert clock_offsets(entries) == {0: 0, 1: -7, 2: 0, 3: 0}, "no rank names a clock: all are on one"


def on(rank, clock, *more):
    """Entries of a rank that said on which clock it is."""
    return [Instant(HOST + clock, "main", 0, figures={"rank": float(rank)}), *more]


def told_of(rank, clock):
    return Instant(HOST + clock, "main", 2, figures={"rank": float(rank)})


def test_a_clock_that_nobody_compared_has_no_offset_and_its_entries_no_place_in_time():
    """0 was assumed: between hosts the order of entries was then chance."""
    join = Span("join", "main", 5, 9)
    entries = {0: on(0, "hosta 1"), 1: on(1, "hostb 1", join), 2: on(2, "hosta 1", join)}
    assert clock_offsets(entries) == {0: 0, 2: 0}
    assert aligned(entries) == {0: [], 1: [], 2: [join]}


def test_ranks_on_one_clock_share_what_one_of_them_measured():
    """Rank 2 was killed before it wrote its own down; rank 0's host left nothing."""
    entries = {1: on(1, "hostb 1", said(-7)), 2: on(2, "hostb 1"), 0: []}
    assert clock_offsets(entries) == {1: -7, 2: -7}


def test_ranks_of_the_only_folder_that_is_there_are_on_one_clock():
    """Nobody joined, and rank 0 was elsewhere."""
    assert clock_offsets({0: [], 1: on(1, "hostb 1"), 2: on(2, "hostb 1")}) == {1: 0, 2: 0}


def test_a_ranks_own_word_of_its_clock_counts_more_than_that_of_others():
    entries = {0: on(0, "hosta 1", told_of(1, "hostx 1"), told_of(2, "hostb 1")), 1: on(1, "hostb 1")}
    names = clock_names(entries)
    assert names == {0: "hosta 1", 1: "hostb 1", 2: "hostb 1"}
    assert [host_of(name) for name in names.values()] == ["hosta", "hostb", "hostb"]


@pytest.mark.parametrize("offset_ns", [SAME.offset_ns, 7_000 * MS, -5_000 * MS, 123_456_789_012_345])
def test_pictures_tables_and_traces_put_every_rank_on_the_clock_of_rank_zero(offset_ns):
    apart = on_clock(on_clock(made(), 1, offset_ns), 2, offset_ns + MS)
    assert timeline_finding(apart) == timeline_finding(made())
    assert timeline(apart).table == timeline(made()).table
    traces = [json.loads(chrome_trace(run, Plan(mesh_size=2, chunks=8))) for run in (apart, made())]
    slices = [[e for e in trace["traceEvents"] if e["ph"] == "X"] for trace in traces]
    zero = min(e["ts"] for e in slices[0])
    assert [{**e, "ts": e["ts"] - zero} for e in slices[0]] == slices[1]
    assert traces[0]["otherData"]["flows_left_out"] == 0


def test_entries_of_a_rank_are_put_on_rank_zeros_clock_by_what_they_say():
    entries = on_clock(made(), 1, 7_000 * MS)
    assert entries[1][0].start_ns - made()[1][0].start_ns == 7_000 * MS
    assert aligned(entries)[1][0] == made()[1][0]


def test_figures_of_the_instant_are_those_of_the_offset():
    """The worker records the fields as they are; ``clock_offsets`` must find them."""
    figures = msgspec.structs.asdict(Offset(5, 2))
    assert clock_offsets({1: [Instant(CLOCK, "main", 0, figures=figures)]}) == {1: 5}
