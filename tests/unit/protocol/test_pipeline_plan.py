"""The frozen plan: what it refuses, that it reads back, and that its digest tells plans apart."""

import math
import resource

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppwork.errors import PlanError
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, VIDEO_STAGE0, VIDEO_STAGE1, Plan
from ppwork.protocol.plan import MAX_DEPTH, MAX_RANKS, PipelinePlan

REFUSED = [
    *[
        (field, value)
        for field in (
            "mesh_size",
            "chunks",
            "steps",
            "in_flight_depth",
            "threads_per_rank",
            "max_message_bytes",
        )
        for value in (0, -3)
    ],
    ("mesh_size", MAX_RANKS),
    ("in_flight_depth", MAX_DEPTH + 1),
    ("seed", -1),
    ("recompute_every", -1),
    *[(field, value) for field in ("timeout_s", "tolerance") for value in (-1.0, math.inf)],
    *[(field, math.nan) for field in ("timeout_s", "tolerance")],
    ("timeout_s", 0.5),
    *[("frame_bytes", value) for value in (0, 511, 513, 448, (1 << 20) + 64)],
    ("backend", "mpi"),
    ("hard_cuts", (0,)),
    ("hard_cuts", (-1,)),
    ("hard_cuts", (3, 3)),
    ("flushes", (0,)),
    ("flushes", (2, 2)),
    ("schedule", "send-before-decode"),
    *[("heartbeat_s", value) for value in (0.0, -1.0, 30.0, math.inf, math.nan)],
    ("stall_s", 0.0),
    ("stall_s", 60.0),
    ("freeze_s", 0.5),
    ("compare_collectives", -2),
    ("check_buffers", -2),
]
WRONG_TYPE = [
    ("mesh_size", "2"),
    ("mesh_size", 2.5),
    ("mesh_size", True),
    ("chunks", "8"),
    ("tolerance", "x"),
    ("verify", 1),
    ("stage1", None),
    ("options", None),
    ("hard_cuts", ("3",)),
]
CHANGED = {
    "in_flight_depth": 3,
    "d_in": 1,
    "d_out": 1,
    "schedule": "send-after-decode",
    "mesh_size": 3,
    "chunks": 7,
    "seed": 1,
    "hard_cuts": (2,),
    "flushes": (2,),
    "steps": 2,
    "recompute_every": 3,
    "backend": "gloo",
    "share_gpu": True,
    "one_process": True,
    "stage0": "a:B",
    "stage1": "a:C",
    "options": {"k": 1},
    "timeout_s": 61.0,
    "heartbeat_s": 5.0,
    "stall_s": 30.0,
    "freeze_s": 6.0,
    "compare_collectives": -1,
    "check_buffers": -1,
    "digests": True,
    "fault": "F07",
    "frame_bytes": 4096,
    "max_message_bytes": 1 << 20,
    "threads_per_rank": 2,
    "verify": True,
    "tolerance": 0.0,
    "keep_outputs": True,
    "strict": True,
}


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=repr)
def test_plan_refuses_a_value_that_cannot_work_and_names_the_field(field, value):
    with pytest.raises(PlanError, match=f"^The plan's {field} was ") as caught:
        Plan(**{field: value})
    assert caught.value.check_first


@pytest.mark.parametrize(("field", "value"), WRONG_TYPE, ids=repr)
def test_plan_refuses_a_wrong_type_in_python_as_the_ranks_would_in_json(field, value):
    with pytest.raises(PlanError, match=f"^The plan's {field} was .* of another type"):
        Plan(**{field: value})


def test_plan_refuses_a_cut_behind_the_last_chunk():
    """R3: a cut is at a known place in the stream."""
    assert Plan(chunks=4, hard_cuts=(3,)).hard_cuts == (3,)
    with pytest.raises(PlanError, match=r"hard_cuts was 4; .* 1\.\.3"):
        Plan(chunks=4, hard_cuts=(4,))


def test_plan_refuses_a_flush_behind_the_last_chunk_or_where_a_cut_is():
    """R3: a flush is a cut, too."""
    assert Plan(chunks=4, flushes=(3,), hard_cuts=(2,)).flushes == (3,)
    with pytest.raises(PlanError, match=r"flushes was 4; .* 1\.\.3"):
        Plan(chunks=4, flushes=(4,))
    with pytest.raises(PlanError, match="not 2 in both"):
        Plan(hard_cuts=(1, 2), flushes=(2, 3))


def test_split_depth_is_summed_up_and_bounds_say_what_applies():
    plan = Plan(d_in=3, d_out=2)
    assert (plan.in_flight_depth, plan.bounds) == (5, (3, 2))
    assert Plan(d_in=3, d_out=2, in_flight_depth=5) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan(in_flight_depth=4).bounds == (4, 4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"d_in": 2}, "d_out was None"),
        ({"d_out": 2}, "d_in was None"),
        ({"d_in": 0, "d_out": 1}, "d_in was 0"),
        ({"d_in": 1, "d_out": -1}, "d_out was -1"),
        (
            {"d_in": 1, "d_out": 1, "in_flight_depth": 3},
            r"in_flight_depth was 3; it must be d_in \+ d_out, 2",
        ),
        ({"d_in": MAX_DEPTH, "d_out": 1}, f"in_flight_depth was {MAX_DEPTH + 1}"),
    ],
    ids=repr,
)
def test_plan_refuses_half_a_split_and_a_sum_that_contradicts(fields, said):
    with pytest.raises(PlanError, match=said):
        Plan(**fields)


def test_replace_lets_the_last_word_on_the_depth_win():
    split = Plan(d_in=1, d_out=2)
    assert split.replace(d_in=4).in_flight_depth == 6
    assert split.replace(seed=1).bounds == (1, 2)
    assert split.replace(in_flight_depth=1).bounds == (1, 1)
    assert Plan(in_flight_depth=5).replace(d_in=1, d_out=1).in_flight_depth == 2
    with pytest.raises(PlanError, match="in_flight_depth was 9"):
        split.replace(d_in=4, in_flight_depth=9)


def test_heartbeat_must_come_twice_within_the_timeout():
    """R12: a peer must hear from rank 0 before its bound passes."""
    assert Plan(timeout_s=2, heartbeat_s=0.9).heartbeat_s == 0.9
    with pytest.raises(PlanError, match=r"heartbeat_s was 1\.0; it must be above 0 and under half"):
        Plan(timeout_s=2, heartbeat_s=1)


def test_plan_refuses_sharing_a_gpu_over_gloo():
    with pytest.raises(PlanError, match="share_gpu was True"):
        Plan(share_gpu=True, backend="gloo")


@pytest.mark.parametrize("field", [{"mesh_size": 2}, {"share_gpu": True}, {"fault": "F07"}], ids=str)
def test_one_process_is_a_mesh_of_one_with_a_gpu_of_its_own_and_no_fault(field):
    (name,) = field
    with pytest.raises(PlanError, match=rf"{name} was .* with one_process"):
        Plan(**{"mesh_size": 1, "one_process": True, **field})


def test_replace_checks_again_and_keeps_the_rest():
    plan = Plan(seed=5).replace(mesh_size=4)
    assert (plan.seed, plan.mesh_size, plan.world_size) == (5, 4, 5)
    with pytest.raises(PlanError, match="mesh_size"):
        plan.replace(mesh_size=0)


def test_plan_knows_its_world_and_whether_it_is_the_video():
    plan = Plan(mesh_size=2, stage0=VIDEO_STAGE0, stage1=VIDEO_STAGE1)
    assert plan.topology.world_size == plan.world_size == 3
    assert plan.is_video
    assert not Plan().is_video  # of a loop of one's own, or not yet the launcher's
    assert not plan.replace(stage0="a:B").is_video
    assert not plan.replace(stage1="a:B").is_video
    assert not plan.is_synthetic
    made = plan.replace(stage0=SYNTHETIC_STAGE0, stage1=SYNTHETIC_STAGE1)
    assert made.is_synthetic
    assert not made.replace(stage1="a:B").is_synthetic


plans = st.builds(
    Plan,
    mesh_size=st.integers(1, MAX_RANKS - 1),
    chunks=st.none() | st.integers(6, 100),
    hard_cuts=st.lists(st.integers(1, 5), unique=True),
    tolerance=st.integers(0, 50) | st.floats(0, 2550),
    seed=st.integers(0, 1 << 70),
    options=st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        max_size=4,
    ),
    timeout_s=st.floats(1, 86_399),
    frame_bytes=st.integers(8, 1 << 14).map(lambda n: 64 * n),
)


@given(plans)
def test_plan_reads_back_equal_with_equal_digest_and_bytes(plan):
    """R5: launcher and ranks hold the same plan, whatever it was written with (25 or 25.0, list or tuple)."""
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert again.digest == plan.digest
    assert type(again.tolerance) is type(plan.tolerance) is float


def test_digest_does_not_depend_on_the_order_of_options():
    assert Plan(options={"a": 1, "b": 2}).digest == Plan(options={"b": 2, "a": 1}).digest


def test_every_field_is_in_the_table_of_changes():
    """A new field must not escape the digest test."""
    assert set(CHANGED) == set(Plan.__struct_fields__)


@pytest.mark.parametrize("field", CHANGED)
def test_digest_changes_with_any_field(field):
    """R5, F04."""
    fields = ("d_in", "d_out") if field in ("d_in", "d_out") else (field,)  # both or none
    before = Plan(mesh_size=1) if field == "one_process" else Plan()
    changed = before.replace(**{name: CHANGED[name] for name in fields})
    assert changed != before
    assert changed.digest != before.digest
    assert len(changed.digest) == 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "truncated"),
        (b'{"ranks": 3}', "ranks"),
        (b'{"mesh_size": "2"}', "mesh_size"),
        (b'{"mesh_size": 0}', "mesh_size"),
        (b"[]", "object"),
        (b"\xff", "invalid|malformed"),
    ],
    ids=repr,
)
def test_from_json_refuses_what_is_not_a_plan(text, said):
    with pytest.raises(PlanError, match=rf"does not read: .*({said})"):
        Plan.from_json(text)


def test_load_reads_the_plan_of_a_run_folder(tmp_path):
    plan = Plan(mesh_size=3, stage0=VIDEO_STAGE0)
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    assert Plan.load(tmp_path) == plan
    assert msgspec.json.decode(plan.to_json()) == msgspec.json.decode(msgspec.json.encode(plan.to_dict()))


def test_a_plan_that_cannot_be_saved_leaves_no_half_of_it(tmp_path):
    """What is left would make the folder one that is not empty, and refused from then on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # stands for a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            Plan().save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_load_names_the_file_that_is_missing_or_broken(tmp_path):
    with pytest.raises(PlanError, match=r"plan\.json cannot be read: No such file"):
        Plan.load(tmp_path)
    (tmp_path / Plan.FILE_NAME).write_bytes(b"nonsense")
    with pytest.raises(PlanError, match="does not read"):
        Plan.load(tmp_path)


def test_a_prototype_needs_a_plan_of_the_pipeline_only():
    """The runtime reads fourteen fields; a whole plan is one of those, with the same checks."""
    fields = {field.name for field in msgspec.structs.fields(PipelinePlan)}
    assert len(fields) == 14
    plan = PipelinePlan(mesh_size=2, d_in=2, d_out=1)
    assert (plan.world_size, plan.in_flight_depth, plan.bounds) == (3, 3, (2, 1))
    assert plan.replace(in_flight_depth=1).bounds == (1, 1)
    with pytest.raises(PlanError, match=r"^The plan's timeout_s was "):
        PipelinePlan(timeout_s=0.5)
    with pytest.raises(PlanError, match="has no field 'chunks'"):
        PipelinePlan(chunks=8)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"timeouts": 10}, "timeout_s"),
        ({"meshsize": 2}, "mesh_size"),
        ({"depth": 2}, "in_flight_depth"),  # as the command line calls it
        ({"limit_s": 2}, "pp.launch(plan, limit_s=...)"),  # of the run, and not of the plan
    ],
)
def test_a_misspelt_field_is_refused_with_the_one_that_was_meant(wrong, field):
    """msgspec says "Unexpected keyword argument" and no more; a copy says it as the constructor does."""
    for made in (lambda: Plan(**wrong), lambda: Plan().replace(**wrong), lambda: PipelinePlan(**wrong)):
        with pytest.raises(PlanError, match=rf"has no field '{next(iter(wrong))}'") as refused:
            made()
        assert refused.value.check_first == f"did you mean {field!r}?"


def test_a_field_that_is_like_no_other_is_refused_with_all_of_them():
    with pytest.raises(PlanError, match="A Plan has no field 'colour'") as refused:
        Plan(colour="red")
    assert "mesh_size, in_flight_depth" in refused.value.check_first
