"""``ppwork simulate``: options to figures and pictures, and one message for what cannot work."""

import json
import sys

import pytest
from trace_check import check_trace

from ppwork.cli.main import main
from ppwork.plan import Plan
from ppwork.records.files import write_whole
from ppwork.records.spans import Recorder, span_file
from ppwork.timeline.costs import Costs, Hop
from ppwork.timeline.simulate import simulate as on_paper

COSTS = Costs(
    encode_ms=12.0, decode_ms=8.0, stage1_ms=20.0, down=Hop(1.0), broadcast={2: Hop(1.0)}, up=Hop(1.0)
)


@pytest.fixture
def simulate(monkeypatch, capsys):
    """Run the command; return its exit code, output and error output."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ppwork", "simulate", *map(str, arguments)])
        code = 0
        try:
            code = main()
        except SystemExit as done:
            code = done.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def figures(simulate):
    def call(*arguments):
        code, said, wrong = simulate(*arguments, "--json")
        assert code == 0, wrong
        return json.loads(said)

    return call


@pytest.fixture
def run_dir(tmp_path):
    """The folder of a run at depth 1, which the simulator made."""
    folder = tmp_path / "run"
    folder.mkdir()
    found = on_paper(Plan(mesh_size=2, chunks=12), COSTS)
    write_whole(folder / Plan.FILE_NAME, found.plan.to_json())
    for rank, entries in found.entries_by_rank.items():
        with Recorder(span_file(folder, rank)) as recorder:
            for entry in entries:
                recorder.write(entry)
    return folder


def test_options_become_costs(figures):
    """16 MB at 2000 MB/s and 0.5 ms are 8.889 ms a hop, three of them."""
    found = figures(
        *("--stage0-ms", "12,8", "--stage1-ms", 20, "--payload-mb", 16, "--hop-ms", 0.5, "--mb-per-s", 2000)
    )
    assert found["period_ms"] == found["law_ms"] == pytest.approx(40 + 3 * 8.889, abs=0.01)
    assert (found["stage0_ms"], found["stage1_ms"], found["depth"], found["chunks"]) == (20.0, 20.0, 1, 32)


def test_depth_order_mesh_and_streams_count(figures):
    stages = ("--stage0-ms", "12,8", "--stage1-ms", 20, "--hop-ms", 1)
    assert figures(*stages, "--depth", 3)["period_ms"] == pytest.approx(20.0)
    assert figures(*stages, "--depth", 3, "--schedule", "send-after-decode")["period_ms"] == pytest.approx(
        31.0
    )
    assert figures(*stages, "--mesh-size", 8)["period_ms"] == pytest.approx(40 + 2 + 3)
    assert figures(*stages, "--d-in", 2, "--d-out", 1)["depth"] == 3
    shared = figures(*stages, "--depth", 3, "--streams", 3)
    assert (shared["period_ms"], shared["law_ms"]) == (pytest.approx(60.0), None)


def test_receiving_between_computations_costs_the_broadcast(figures):
    options = ("--stage0-ms", 10, "--stage1-ms", 20, "--hop-ms", 4, "--depth", 4)
    assert figures(*options)["mesh_idle_ms"] == 0.0
    assert figures(*options, "--no-run-ahead")["mesh_idle_ms"] == pytest.approx(8.0)


def test_jitter_follows_the_seed(figures):
    first, again, other = (figures("--jitter", 0.3, "--seed", seed)["period_ms"] for seed in (1, 1, 2))
    assert first == again != other


def test_costs_of_a_run_predict_another_depth(figures, run_dir):
    assert figures("--from-run", run_dir)["period_ms"] == pytest.approx(43.0)
    deeper = figures("--from-run", run_dir, "--depth", 2, "--chunks", 40)
    assert (deeper["period_ms"], deeper["chunks"], deeper["mesh_size"]) == (pytest.approx(21.5), 40, 2)


def test_a_run_whose_source_said_when_to_end_has_as_many_chunks_as_it_had(figures, run_dir):
    plan = Plan(mesh_size=2, hard_cuts=(70,))
    (run_dir / Plan.FILE_NAME).write_bytes(plan.to_json())
    assert figures("--from-run", run_dir)["chunks"] == 71  # it emitted 12, and was to be cut at 70
    (run_dir / Plan.FILE_NAME).write_bytes(plan.replace(hard_cuts=()).to_json())
    assert figures("--from-run", run_dir)["chunks"] == 12


@pytest.mark.parametrize("streams", [1, 3])
def test_pictures_are_those_of_a_run(simulate, tmp_path, streams):
    folder = tmp_path / "out"
    code, said, _ = simulate("--depth", 2, "--hop-ms", 1, "--streams", streams, "--out", folder)
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["timeline.png", "timeline.txt", "trace.json"]
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "simulated (depth 2, mesh of 2): Over chunks 2 to 29" in (folder / "timeline.txt").read_text()
    check_trace((folder / "trace.json").read_bytes())
    for name in (
        "period_ms",
        "law_ms",
        "efficiency",
        "overlap_score",
        "mesh_idle_ms",
        f"{folder}/trace.json",
    ):
        assert name in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stage0-ms", "1,2,3"], "1,2,3"),
        (["--payload-mb", "-1"], "-1"),
        (["--jitter", "1.5"], "jitter"),
        (["--hop-ms", "nan"], "latency_ms"),
        (["--mb-per-s", "0"], "mb_per_s"),
        (["--depth", "0"], "in_flight_depth"),
        (["--schedule", "random"], "schedule"),
        (["--mesh-size", "0"], "mesh_size"),
        (["--streams", "0"], "streams"),
        (["--chunks", "1000000000"], "at most 333333"),
        (["--chunks", "400000", "--streams", "2"], "at most 166666"),
        (["--payload-mb", "1025"], "most is 1024"),
        (["--d-in", "2"], "d_out"),
        (["--from-run", "{}/nowhere"], "cannot be read"),
        (["--from-run", "{}/run", "--stage1-ms", "3", "--hop-ms", "1"], "--stage1-ms and --hop-ms"),
        (["--out", "{}/run"], "not empty"),
    ],
)
def test_bad_input_exits_2_with_one_message_and_writes_nothing(simulate, tmp_path, run_dir, options, said):
    before = sorted(tmp_path.rglob("*"))
    code, out, wrong = simulate(*(option.format(tmp_path) for option in options))
    assert (code, out) == (2, "")
    assert wrong.startswith("bad input: ")
    assert said in wrong.replace("\n", " ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_without_spans_is_refused(simulate, run_dir):
    for rank in range(3):
        span_file(run_dir, rank).unlink()
    code, _, wrong = simulate("--from-run", run_dir)
    assert code == 2
    assert "has no spans of any chunk" in wrong
    span_file(run_dir, 0).write_text("nonsense\n")
    assert "do not read" in simulate("--from-run", run_dir)[2]
