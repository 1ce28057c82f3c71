"""The benchmarks' own code, on made-up figures: grid, tables, and what stays on disk. Nothing is timed."""

import json
import os
import sys

import pytest
from checkout import BENCHMARKS

import ppwork as pp
from ppwork.plan import Plan
from ppwork.records.files import write_whole
from ppwork.records.spans import Recorder, span_file
from ppwork.timeline.costs import Costs, Hop
from ppwork.timeline.simulate import simulate

MODULES = ("common", "grid", "overlap", "simulate")


@pytest.fixture
def bench(monkeypatch):
    """The modules by name, importable as their scripts import each other."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = {name: __import__(name) for name in MODULES}
    yield found
    for name in MODULES:
        sys.modules.pop(name, None)


def made_record(bench, point, depth, schedule="overlap", **changes):
    grid = bench["grid"]
    fields = {
        "period_ms": {1: 44.0, 2: 22.5, 3: 20.5}[depth],
        "stage0_ms": 20.0,
        "stage1_ms": 20.0,
        "efficiency": 0.9,
        "overlap_score": 0.8,
        "mesh_idle_ms": 1.0,
        "others_share": 0.0,
    }
    return grid.Record(point, depth, schedule, 0, f"run-{depth}-{schedule}", **(fields | changes))


class TestGrid:
    def test_every_depth_and_the_mistake_from_depth_2_on(self, bench):
        grid = bench["grid"]
        point, one_way = grid.Point("balanced", 20.0, "1"), grid.Point("balanced", 20.0, grid.ONE_WAY)
        assert grid.variants([point], (1, 2, 3), grid.SCHEDULES) == [
            (point, 1, "overlap"),
            *((point, d, order) for d in (2, 3) for order in grid.SCHEDULES),
        ]
        assert grid.variants([one_way], (1, 2), grid.SCHEDULES) == [
            (one_way, 1, "overlap"),
            (one_way, 2, "overlap"),
        ]

    def test_depth_1_is_always_there_and_once(self, bench):
        point = bench["grid"].Point("balanced", 20.0, "1")
        found = bench["grid"].variants([point], (3,), ("overlap",))
        assert found == [(point, 1, "overlap"), (point, 3, "overlap")]

    def test_plans_have_the_stages_of_their_point(self, bench):
        grid = bench["grid"]
        for balance, (stage0, stage1) in {"balanced": (60, 60), "3:1": (60, 20), "1:3": (20, 60)}.items():
            plan = grid.plan_of(grid.Point(balance, 60, "1"), 3, "send-after-decode")
            halves = plan.options["encode_ms"], plan.options["decode_ms"]
            assert halves == pytest.approx((stage0 / 2, stage0 / 2))
            assert plan.options["stage1_ms"] == pytest.approx(stage1)
            assert (plan.in_flight_depth, plan.schedule, plan.chunks) == (3, "send-after-decode", 50)

    def test_tables_of_a_part_of_the_grid_stay_with_its_runs(self, bench, tmp_path):
        grid = bench["grid"]
        every = grid.variants(grid.whole_grid(), grid.DEPTHS, grid.SCHEDULES)
        records = [grid.Record(*variant, 0, "run", *[1.0] * 7) for variant in every]
        assert len(records) == 27 * (4 + 3) + 9 * 4
        assert grid.place_of(records, tmp_path) == bench["common"].RESULTS == BENCHMARKS / "results"
        assert grid.place_of(records[1:], tmp_path) == tmp_path


class TestOverlap:
    def test_law_comes_from_depth_1_of_the_same_point(self, bench):
        point = bench["grid"].Point("balanced", 20.0, "1")
        rows = bench["overlap"].rows_of([made_record(bench, point, depth) for depth in (3, 1, 2)])
        assert [row["depth"] for row in rows] == [1, 2, 3]
        assert [row["law_ms"] for row in rows] == [44.0, 22.0, 20.0]
        assert [row["off_law"] for row in rows] == [0.0, 0.0227, 0.025]
        assert {row["transport_ms"] for row in rows} == {4.0}

    def test_rounds_become_medians_and_one_busy_round_marks_the_figure(self, bench):
        point = bench["grid"].Point("balanced", 20.0, "1")
        same = [made_record(bench, point, 1, period_ms=ms) for ms in (44.0, 90.0, 45.0)]
        (row,) = bench["overlap"].rows_of(same)
        assert (row["period_ms"], row["busy"]) == (45.0, False)
        (row,) = bench["overlap"].rows_of([*same, made_record(bench, point, 1, others_share=0.2)])
        assert row["busy"]

    def test_what_is_there_is_not_measured_again_and_a_cut_line_is_left_out(
        self, bench, tmp_path, monkeypatch
    ):
        grid, overlap = bench["grid"], bench["overlap"]
        point, asked = grid.Point("balanced", 20.0, "1"), []

        def measured(job, wait_s):
            asked.append(job.args[0].in_flight_depth)
            return None, 0.0

        monkeypatch.setattr(overlap, "measured_quietly", measured)
        monkeypatch.setattr(
            overlap,
            "record_of",
            lambda point, round_, run, share, folder: made_record(
                bench, point, asked[-1], others_share=share
            ),
        )
        todo = [(0, point, depth, "overlap") for depth in (1, 2)]
        assert overlap.measure(tmp_path, todo[:1], 0.0) == grid.read_records(tmp_path)
        with (tmp_path / grid.RECORDS).open("ab") as file:
            file.write(b'{"point": ')
        assert len(grid.read_records(tmp_path)) == 1
        assert [record.depth for record in overlap.measure(tmp_path, todo, 0.0)] == [1, 2]
        assert asked == [1, 2]
        assert [record.depth for record in grid.read_records(tmp_path)] == [1, 2]

    def test_report_has_every_run_and_reads_back(self, bench, tmp_path):
        point = bench["grid"].Point("3:1", 60.0, "16")
        records = [made_record(bench, point, 1), made_record(bench, point, 2)]
        records.append(made_record(bench, point, 2, "send-after-decode", mesh_idle_ms=33.0, others_share=0.3))
        rows = bench["overlap"].rows_of(records)
        parts = bench["overlap"].parts_of(rows)
        text = bench["common"].report("overlap", "A title", parts, {"rows": rows}, tmp_path)
        assert (tmp_path / "overlap.md").read_text() == text
        assert text.startswith("# A title\n\nppwork ")
        assert "| 3:1 | 60 | 16 | 2 | 22.500 | 22.000 | +2.3% | 0.900 | 0.800 | 1.000 |  |" in text
        assert (
            "| 30.000 | 3:1 | 60 | 16 | 2 | 22.500 | 22.000 | +2.3% | 0.900 | 0.800 | 33.000 | busy |" in text
        )
        data = json.loads((tmp_path / "overlap.json").read_text())
        assert data["rows"] == rows
        assert data["machine"]["cores"] >= 1


def test_simulator_is_compared_with_what_it_was_told_at_depth_1_only(bench, tmp_path):
    """Runs made by the simulator itself: what it predicts from depth 1 must be them."""
    grid, compared = bench["grid"], bench["simulate"]
    point, hop = grid.Point("balanced", 20.0, "1"), Hop(1.0)
    costs = Costs(encode_ms=10.0, decode_ms=10.0, stage1_ms=20.0, down=hop, broadcast={2: hop}, up=hop)
    records = []
    for depth in (1, 2):
        found = simulate(grid.plan_of(point, depth, "overlap"), costs)
        run_dir = tmp_path / f"run-{depth}-overlap"
        run_dir.mkdir()
        write_whole(run_dir / Plan.FILE_NAME, found.plan.to_json())
        for rank, entries in found.entries_by_rank.items():
            with Recorder(span_file(run_dir, rank)) as recorder:
                for entry in entries:
                    recorder.write(entry)
        records.append(made_record(bench, point, depth, period_ms=found.period_ms))
    rows = compared.rows_of(compared.predictions(records, tmp_path))
    assert [row["error"] for row in rows] == [0.0, 0.0]
    assert compared.errors(rows) == (0.0, 0.0)
    assert "| balanced | 20 | 1 | 2 | overlap | 21.500 | 21.500 | +0.0% |  |" in "\n".join(
        compared.parts_of(rows)
    )
    alone = compared.predictions(records[1:], tmp_path)
    assert alone == {}  # without depth 1 there is nothing to predict from


def test_others_are_what_is_not_ours(bench, monkeypatch):
    """Two cores, 10 s: the machine was busy for 8 s, 3 of them ours: others took 5 of 20."""
    common = bench["common"]
    moments = iter([(100.0, 50.0, 7.0), (110.0, 58.0, 10.0)])
    monkeypatch.setattr(common, "_clocks", lambda: next(moments))
    monkeypatch.setattr(common.psutil, "cpu_count", lambda: 2)
    with common.Others() as others:
        pass
    assert others.share == pytest.approx(0.25)


def test_a_busy_measurement_is_repeated_a_bounded_number_of_times(bench, monkeypatch):
    common = bench["common"]
    monkeypatch.setattr(common, "quiet_at_last", lambda wait_s: False)
    busy = [1.0] * 2 + [0.0] + [1.0] * 9
    monkeypatch.setattr(common.Others, "__exit__", lambda self, *exc: setattr(self, "share", busy.pop(0)))
    assert common.measured_quietly(lambda attempt: attempt) == (2, 0.0)
    assert common.measured_quietly(lambda attempt: attempt) == (common.REPEATS, 1.0)


def test_the_machine_names_what_figures_depend_on(bench):
    found = bench["common"].machine()
    assert found["ppwork"] == pp.__version__
    assert found["cores"] == os.cpu_count()
    assert found["torch"]
