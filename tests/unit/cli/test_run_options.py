"""Every field of a plan is an option of ``ppwork run``, or is left to Python for a reason."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ppwork.cli import main
from ppwork.cli.options import options_of
from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.protocol.plan import option_of
from ppwork.records.run import Run
from ppwork.version import __version__
from ppwork.workloads.spec import VideoOptions

OPTIONS = {
    "mesh_size": ("--mesh-size 3", 3),
    "chunks": ("--chunks 5", 5),
    "seed": ("--seed 7", 7),
    "hard_cuts": ("--hard-cut-at 2 --hard-cut-at 4", (2, 4)),
    "flushes": ("--flush-at 3", (3,)),
    "steps": ("--steps 2", 2),
    "recompute_every": ("--recompute-every 4", 4),
    "in_flight_depth": ("--depth 3", 3),
    "d_in": ("--d-in 2 --d-out 1", 2),
    "d_out": ("--d-in 2 --d-out 1", 1),
    "schedule": ("--schedule send-after-decode", "send-after-decode"),
    "backend": ("--backend gloo", "gloo"),
    "share_gpu": ("--share-gpu", True),
    "one_process": ("--one-process", True),
    "stage0": ("--stage0 mine:First", "mine:First"),
    "stage1": ("--stage1 mine:Second", "mine:Second"),
    "options": (
        "--workload synthetic --stage0-ms 30,10 --stage1-ms 60 --payload-mb 2 --jitter 0.1",
        {"encode_ms": 30.0, "decode_ms": 10.0, "stage1_ms": 60.0, "payload_mb": 2.0, "jitter": 0.1},
    ),
    "timeout_s": ("--timeout-s 20", 20.0),
    "stall_s": ("--stall-s 9", 9.0),
    "freeze_s": ("--freeze-s 9", 9.0),
    "threads_per_rank": ("--threads 2", 2),
    "max_message_bytes": ("--max-message-mb 1.5", 3 << 19),
    "tolerance": ("--tolerance 0.1", 0.1),
    "keep_outputs": ("--keep-outputs", True),
    "strict": ("--strict", True),
    "heartbeat_s": ("--heartbeat-s 2", 2.0),
    "compare_collectives": ("--compare-collectives -1", -1),
    "check_buffers": ("--check-buffers -1", -1),
    "digests": ("--digests", True),
    "verify": ("--verify", True),
}
LEFT_TO_PYTHON = {
    "fault": "`ppwork fault run` injects faults, with what each case needs of a plan",
    "frame_bytes": "it goes with the schema of user stages, which are chosen in Python",
}


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Return the plan that ``ppwork run`` with these options would launch."""
    plans = []

    def launch(plan, *_, **__):
        plans.append(plan)
        return Run(tmp_path, 0)

    monkeypatch.setattr(main, "launch_on_terminal", launch)

    def run(options):
        answer = CliRunner().invoke(main.app, ["run", "--json", *options.split()])
        assert answer.exit_code == 0, answer.output
        return plans.pop()

    return run


def test_every_field_of_a_plan_has_its_option_or_a_reason_why_not():
    assert sorted([*OPTIONS, *LEFT_TO_PYTHON]) == sorted(Plan.__struct_fields__)


@pytest.mark.parametrize("field", OPTIONS)
def test_an_option_reaches_its_field(planned, field):
    options, value = OPTIONS[field]
    assert getattr(planned(options), field) == value
    assert getattr(Plan(), field) != value
    # What a refusal of the field tells one to look at.
    assert option_of(field) in [*options.split(), "--option"]


def test_what_the_shipped_video_is_asked_for_is_in_its_options(planned):
    asked = planned("--size 320x192 --noise 10 --input clip.mp4 --frames-per-chunk 2").options
    assert asked == {"width": 320, "height": 192, "noise": 10.0, "input": "clip.mp4", "frames_per_chunk": 2}
    assert sorted(asked) == sorted(VideoOptions.__struct_fields__)
    assert planned("").options == {}


@pytest.mark.parametrize(
    ("options", "said", "instead"),
    [
        (
            "--stage0 mine:First --stage1 mine:Second --input long.txt",
            "--input is heeded only by the",
            "-o KEY",
        ),
        ("--workload synthetic --size 64x32", "--size is heeded only by the shipped denoiser", "-o KEY"),
        ("--stage1-ms 3", "--stage1-ms is heeded only by --workload synthetic", "--workload synthetic, or"),
    ],
)
def test_an_option_that_nobody_would_heed_is_refused(options, said, instead, tmp_path):
    answer = CliRunner().invoke(main.app, ["run", *options.split(), "--out", str(tmp_path / "run")])
    assert said in str(answer.exception)
    assert answer.exception.check_first.startswith(instead)
    assert not (tmp_path / "run").exists()


def test_a_message_without_a_bound_is_refused_in_words(tmp_path):
    answer = CliRunner().invoke(main.app, ["run", "--max-message-mb", "inf", "--out", str(tmp_path / "run")])
    assert isinstance(answer.exception, PlanError)
    assert "largest message was inf MiB" in answer.exception.what
    assert not (tmp_path / "run").exists()


def test_options_of_own_stages_are_json_or_text(planned):
    options = planned(
        "-o rate=0.5 -o steps=3 -o fast=true --option name=a=b -o shape=[2,3] -o nan=NaN"
    ).options
    assert options == {
        "rate": 0.5, "steps": 3, "fast": True, "name": "a=b", "shape": [2, 3], "nan": "NaN"
    }  # fmt: skip
    assert planned("--workload synthetic -o cache=true").options["cache"] is True


def test_options_come_from_a_file_and_a_pair_comes_before_it(planned, tmp_path):
    file = tmp_path / "model.json"
    file.write_text('{"rate": 0.5, "model": {"width": 64, "layers": [1, 2]}}')
    options = planned(f"--options {file} -o rate=1").options
    assert options == {"rate": 1, "model": {"width": 64, "layers": [1, 2]}}


@pytest.mark.parametrize(
    ("text", "said"), [("[1]", "no JSON object"), ("{", "no JSON object"), (None, "be read")]
)
def test_a_file_that_holds_no_options_is_refused(tmp_path, text, said):
    file = tmp_path / "model.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PlanError, match=said):
        options_of([], file)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {2: 3}]}, r"options\['model'\]\['a'\]\[1\]"),
        (object(), "model"),
        ([float("nan")], r"\[0\]"),
    ],
)
def test_an_option_that_no_file_can_hold_is_refused_by_its_place(value, place):
    with pytest.raises(PlanError, match=place):
        Plan(options={"model": value})


def test_an_option_is_kept_as_the_ranks_will_read_it():
    plan = Plan(options={"sizes": (1, 2), "deep": {"x": None}})
    assert plan.options == {"sizes": [1, 2], "deep": {"x": None}}
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("pairs", [["rate"], ["=3"], ["rate=1", "rate=2"]])
def test_an_option_of_another_form_is_refused(pairs):
    with pytest.raises(PlanError, match="KEY=VALUE, each key once"):
        options_of(pairs)


def test_the_version_is_said():
    answer = CliRunner().invoke(main.app, ["--version"])
    assert (answer.exit_code, answer.output) == (0, f"ppwork {__version__}\n")


@pytest.mark.parametrize(
    "words", ["run --out", "simulate --out", "slides --out", "fault run F07 --keep", "claims --markdown"]
)
def test_an_empty_path_is_not_the_working_folder(tmp_path, monkeypatch, words):
    """As of a variable that is not set; `.` says the working folder."""
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main.app, [*words.split(), ""])
    assert answer.exit_code == 2
    assert "variable unset" in answer.output
    assert list(tmp_path.iterdir()) == []


def test_without_options_a_plan_is_the_default_one(planned):
    assert planned("") == Plan()


def test_help_of_run_begins_with_own_stages_and_keeps_the_clips_options_apart():
    said = CliRunner().invoke(main.app, ["run", "--help"], terminal_width=120).output
    panels = [
        "Your stages",
        "Stream",
        "Ranks and overlap",
        "Checks",
        "Bounds",
        "Output",
        "Only by the shipped",
    ]
    places = [said.index(panel) for panel in panels]
    assert places == sorted(places)
    assert said.index("--stage0 ") < said.index("--chunks") < said.index("--verify") < said.index("--out")
    for of_the_clip in ("--input", "--noise", "--size", "--frames-per-chunk"):
        assert said.index(of_the_clip) > places[-1]


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_an_option_of_2_to_the_20_bytes_says_so(command):
    """The same word stood for 1e6 bytes in messages, and for 2**20 here."""
    options = get_command(main.app).commands[command].params
    sizes = [option for option in options if option.name.endswith("_mb")]
    assert sizes
    assert [option.name for option in sizes if "MiB" not in option.help] == []
