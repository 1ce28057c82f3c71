"""Options that note which of them a stage asked for."""

import copy
import json
import types

import pytest

from ppwork.pictures.run_table import rows_of
from ppwork.plan import Plan
from ppwork.records.notes import note_asked_options
from ppwork.records.run import Run
from ppwork.records.spans import Recorder, span_file
from ppwork.worker.asked_options import AskedOptions

GIVEN = {"rate": 0.5, "name": "fast"}


@pytest.mark.parametrize(
    ("use", "asked"),
    [
        (lambda options: options["rate"], {"rate"}),
        (lambda options: options.get("size", 4), {"size"}),
        (lambda options: options.pop("rate"), {"rate"}),
        (lambda options: options.setdefault("rate", 1), {"rate"}),
        (lambda options: "size" in options, {"size"}),
        (lambda options: types.SimpleNamespace(**options), {*GIVEN}),
        (dict, {*GIVEN}),
        (list, {*GIVEN}),
        (json.dumps, {*GIVEN}),
        (copy.deepcopy, {*GIVEN}),
        (lambda options: {"size": 4} | options, {*GIVEN}),
        (lambda options: options | {"size": 4}, {*GIVEN}),
        (lambda options: options.copy(), {*GIVEN}),
        (lambda options: [*options.values()], {*GIVEN}),
        (lambda options: [*options.items()], {*GIVEN}),
    ],
)
def test_each_way_to_read_an_option_counts(use, asked):
    options = AskedOptions(GIVEN)
    use(options)
    assert options.asked == asked


def test_the_plan_of_a_stage_has_them_and_the_digest_of_the_run():
    plan = Plan(options=GIVEN)
    options = AskedOptions(plan.options)
    of_stage = options.put_into(plan)
    assert of_stage.options is options
    assert (of_stage.digest, options.asked) == (plan.digest, set())


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ([{"rate"}, {"repeat"}], "no stage asked for 'repaet'; did you mean 'repeat'?"),
        ([{"rate"}, set()], "no stage asked for 'repaet'"),
        ([{"rate"}, {"repaet"}], None),
        ([set(), set()], "no stage was seen to read an option; 'rate' and 'repaet' may have had no effect"),
        ([{"rate"}], None),  # of the other rank nothing is known
    ],
)
def test_an_option_that_no_stage_asked_for_has_a_line(tmp_path, asked, line):
    plan = Plan(mesh_size=1, options={"rate": 1, "repaet": 2})
    plan.save(tmp_path)
    for rank in range(2):
        with Recorder(span_file(tmp_path, rank)) as recorder:
            if rank < len(asked):
                note_asked_options(recorder, plan.options, asked[rank])
    assert dict(rows_of(Run(tmp_path, 0))).get("options") == line
