"""Every field of a plan is an option of ``ppwork run``, or is left to Python for a reason."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ppwork.cli import main
from ppwork.cli.options import options_of
from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.records.run import Run
from ppwork.version import __version__

OPTIONS = {
    "mesh_size": ("--mesh-size 3", 3),
    "chunks": ("--chunks 5", 5),
    "frames_per_chunk": ("--frames-per-chunk 2", 2),
    "input": ("--input clip.mp4", "clip.mp4"),
    "width": ("--size 320x192", 320),
    "height": ("--size 320x192", 192),
    "noise": ("--noise 10", 10.0),
    "seed": ("--seed 7", 7),
    "hard_cuts": ("--hard-cut-at 2 --hard-cut-at 4", (2, 4)),
    "flushes": ("--flush-at 3", (3,)),
    "denoise_steps": ("--steps 2", 2),
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
    "heartbeat_s": ("--heartbeat-s 2", 2.0),
    "compare_collectives": ("--compare-collectives -1", -1),
    "digests": ("--digests", True),
    "verify": ("--verify", True),
}
LEFT_TO_PYTHON = {
    "stall_s": "it follows from --timeout-s",
    "freeze_s": "the detection of stopped processes is shortened by tests and the fault catalogue only",
    "fault": "`ppwork fault run` injects faults, with what each case needs of a plan",
    "frame_bytes": "it goes with the schema of user stages, which are chosen in Python",
    "max_message_bytes": "it goes with the sizes of user stages, which are chosen in Python",
    "threads_per_rank": "ranks share the cores of this machine; more than one each is for measurements",
    "tolerance": "it belongs to the arithmetic of a stage, not to a run of it",
}


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Return the plan that ``ppwork run`` with these options would launch."""
    plans = []

    def launch(plan, **_):
        plans.append(plan)
        return Run(tmp_path, 0)

    monkeypatch.setattr(main, "launch", launch)

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


def test_options_of_own_stages_are_numbers_truths_or_text(planned):
    options = planned("-o rate=0.5 -o steps=3 -o fast=true --option name=a=b").options
    assert options == {"rate": 0.5, "steps": 3, "fast": True, "name": "a=b"}
    assert planned("--workload synthetic -o cache=true").options["cache"] is True


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
