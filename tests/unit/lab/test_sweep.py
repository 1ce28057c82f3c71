"""A grid against a notebook's parameters, and the table and picture of what a sweep has left."""

from __future__ import annotations

import csv
import io
import json

import msgspec
import pytest

from ppwork.errors import PlanError
from ppwork.lab.parameters import only_known_parameters, parameters_of
from ppwork.lab.sweep.picture import MOST_PANELS, sweep_picture
from ppwork.lab.sweep.sweep import (
    FAILED,
    NOT_RUN,
    OK,
    POINT_FILE,
    UNFINISHED,
    Outcome,
    grid_of,
    outcome_of,
    papermill_command,
    sweep_folder,
)
from ppwork.lab.sweep.table import as_csv, as_table, collect
from ppwork.plan import Plan
from ppwork.records.files import write_whole

PARAMETERS = """\
mesh_size: int = 2  # ranks of stage 1
noise: float = 25.0  # in 1/255
name: str = "clip"  # of the clip
verify: bool = False  # compare
"""


def notebook(path, *cells, tags=("parameters",)):
    sources = [(PARAMETERS, list(tags)), *((cell, []) for cell in cells)]
    written = [
        {"cell_type": "code", "source": source.splitlines(True), "metadata": {"tags": tags}, "outputs": []}
        for source, tags in sources
    ]
    path.write_text(json.dumps({"cells": written, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


@pytest.fixture
def lesson(tmp_path):
    return notebook(tmp_path / "05-lesson.ipynb", "print(mesh_size)")


def test_parameters_are_read_with_type_and_default(lesson):
    found = parameters_of(lesson)
    assert [(p.name, p.kind, p.default) for p in found.values()] == [
        ("mesh_size", "int", 2),
        ("noise", "float", 25.0),
        ("name", "str", "clip"),
        ("verify", "bool", False),
    ]


def test_every_combination_is_a_point_of_the_annotated_types(lesson):
    grid = grid_of(lesson, ["mesh_size=1,2", "noise=5,25.5"], ["verify=true", "name=1"])
    assert grid.fixed == {"verify": True, "name": "1"}
    assert [point.text for point in grid.points] == [
        "mesh_size=1, noise=5.0",
        "mesh_size=1, noise=25.5",
        "mesh_size=2, noise=5.0",
        "mesh_size=2, noise=25.5",
    ]
    assert grid.points[3].folder == "04-mesh_size=2,noise=25.5"
    assert grid_of(lesson, ["name=a/../b,c"]).points[0].folder == "01-name=a_.._b"


def test_depth_is_short_for_in_flight_depth_where_that_is_a_parameter(lesson, tmp_path):
    deep = notebook(tmp_path / "deep.ipynb")
    deep.write_text(deep.read_text().replace("mesh_size: int", "in_flight_depth: int"))
    assert grid_of(deep, ["depth=1,2"]).axes == {"in_flight_depth": [1, 2]}
    assert grid_of(deep, ["noise=1,2"], ["depth=4"]).fixed == {"in_flight_depth": 4}
    with pytest.raises(PlanError, match="given twice"):
        grid_of(deep, ["depth=1,2"], ["in_flight_depth=3"])
    with pytest.raises(PlanError, match="no parameter 'depth'"):
        grid_of(lesson, ["depth=1,2"])
    lesson.write_text(lesson.read_text().replace("mesh_size: int", "depth: int"))
    assert grid_of(lesson, ["depth=1,2"]).axes == {"depth": [1, 2]}


@pytest.mark.parametrize(
    ("grid", "fixed", "said"),
    [
        (["mesh_siz=1"], [], "did you mean 'mesh_size'?"),
        (["depth=1"], [], "its parameters are mesh_size, noise, name, verify"),
        (["mesh_size=1"], ["nois=3"], "did you mean 'noise'?"),
        (["mesh_size=1,two"], [], "'two', which is no int"),
        (["mesh_size=1.5"], [], "which is no int"),
        (["verify=1"], [], "which is no bool"),
        (["noise=loud"], [], "which is no float"),
        (["mesh_size"], [], "must be NAME=VALUE"),
        (["mesh_size=1"], ["noise="], "must be NAME=VALUE"),
        (["mesh_size=1,2,1"], [], "has a value twice"),
        (["mesh_size=1", "mesh_size=2"], [], "was given twice"),
        (["mesh_size=1"], ["mesh_size=2"], "was given twice"),
        ([], ["mesh_size=2"], "There was no grid"),
    ],
)
def test_what_the_notebook_does_not_have_is_refused(lesson, grid, fixed, said):
    with pytest.raises(PlanError) as refused:
        grid_of(lesson, grid, fixed)
    assert said in str(refused.value)


def test_a_file_that_is_no_notebook_with_parameters_is_refused(tmp_path):
    (tmp_path / "text").write_text("no notebook")
    (tmp_path / "list.ipynb").write_text("[]")
    bare = notebook(tmp_path / "bare.ipynb", tags=())
    for path, said in ((tmp_path / "none", "cannot be read"), (tmp_path / "text", "is no notebook")):
        with pytest.raises(PlanError, match=said):
            parameters_of(path)
    with pytest.raises(PlanError, match="is no notebook"):
        parameters_of(tmp_path / "list.ipynb")
    with pytest.raises(PlanError, match="has no parameters"):
        parameters_of(bare)


def test_papermill_reads_numbers_and_leaves_texts_alone(lesson, tmp_path):
    words = papermill_command(lesson, {"mesh_size": 3, "name": "1", "verify": True}, tmp_path)
    assert words[-9:] == ["-p", "mesh_size", "3", "-r", "name", "1", "-p", "verify", "True"]


def test_a_name_that_papermill_injected_must_be_a_parameter():
    injected = "# Parameters\nmesh_size = 3\nnoise = 5.0\n"
    only_known_parameters([PARAMETERS, injected, "%%writefile x.py\nnot python at all"])
    only_known_parameters([PARAMETERS, "learners_own = 1"])
    only_known_parameters()
    with pytest.raises(PlanError, match="no parameter 'mesh_siz' in this notebook") as refused:
        only_known_parameters([PARAMETERS, "# Parameters\nmesh_siz = 3\n"])
    assert "did you mean 'mesh_size'?" in str(refused.value)


def test_a_folder_belongs_to_one_sweep(lesson, tmp_path):
    grid = grid_of(lesson, ["mesh_size=1,2"])
    folder = sweep_folder(tmp_path / "sweep", grid)
    notebook(lesson, "print(mesh_size)")
    assert sweep_folder(folder, grid_of(lesson, ["mesh_size=1,2"])) == folder
    with pytest.raises(PlanError, match="is of another sweep"):
        sweep_folder(folder, grid_of(lesson, ["mesh_size=1,3"]))
    notebook(lesson, "print(mesh_size + 1)")
    with pytest.raises(PlanError, match="is of another sweep"):
        sweep_folder(folder, grid_of(lesson, ["mesh_size=1,2"]))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").write_text("keep me")
    with pytest.raises(PlanError, match="nothing was overwritten"):
        sweep_folder(tmp_path / "mine", grid)
    with pytest.raises(PlanError, match="cannot be used"):
        sweep_folder(tmp_path / "mine" / "text", grid)
    with pytest.raises(PlanError, match="is of no sweep"):
        collect(tmp_path / "mine")


def run_in(place, number, plan, period_ms):
    folder = place / "runs" / f"{number}-run"
    folder.mkdir(parents=True)
    (folder / Plan.FILE_NAME).write_bytes(plan.to_json())
    if period_ms is not None:
        found = {"period_ms": period_ms, "stage1_ms": 10.0, "mesh_idle_ms": None, "versions": {}}
        (folder / "summary.json").write_text(json.dumps(found))


@pytest.fixture
def swept(lesson, tmp_path):
    """Four points: two that ended well, one that failed after its first run, one that was not begun."""
    grid = grid_of(lesson, ["noise=5,25", "mesh_size=1,2"], ["name=x,y"])
    folder = sweep_folder(tmp_path / "sweep", grid)
    for point, periods in zip(grid.points, [(40.0, 20.0, None), (50.0, 21.0, None), (60.0,)], strict=False):
        place = folder / point.folder
        size = point.values["mesh_size"]
        for number, period_ms in enumerate(periods):
            plan = Plan(mesh_size=size, in_flight_depth=number + 1, fault="F07" if number == 2 else "")
            run_in(place, number, plan, period_ms)
        state = OK if len(periods) == 3 else FAILED
        why = "" if state == OK else "ValueError: no"
        write_whole(place / POINT_FILE, msgspec.json.encode(Outcome(state=state, seconds=3.0, why=why)))
    return folder


def test_the_table_has_every_run_of_every_point(swept):
    table = collect(swept)
    assert [point.outcome.state for point in table.points] == [OK, OK, FAILED, NOT_RUN]
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert len(rows) == 3 + 3 + 1 + 1
    assert rows[4]["param.noise"] == "5.0"
    assert rows[4]["param.mesh_size"] == "2"
    assert rows[4]["param.name"] == "x,y"
    assert (rows[4]["run"], rows[4]["period_ms"], rows[4]["mesh_idle_ms"]) == ("2", "21.0", "")
    assert rows[4]["run_dir"] == "02-noise=5.0,mesh_size=2/runs/1-run"
    assert (rows[2]["finished"], rows[2]["period_ms"]) == ("False", "")
    assert (rows[7]["point_state"], rows[7]["run"]) == (NOT_RUN, "")


def test_a_run_is_called_by_what_tells_it_from_the_others(swept):
    table = collect(swept)
    assert table.legend == [
        "run 1: depth 1",
        "run 2: depth 2",
        "run 3: depth 3, fault F07",
    ]
    screen = as_table(table, "period_ms")
    head, rows = screen.head, screen.rows
    assert head == ["noise", "mesh_size", "state", "run 1", "run 2", "run 3"]
    assert rows[0] == ["5.0", "1", OK, "40", "20", ""]
    assert rows[2] == ["25.0", "1", f"{FAILED}, 1 of 3 runs", "60", "", ""]


def test_runs_are_the_same_step_also_where_one_point_has_more_of_them(lesson, tmp_path):
    """Lesson 05 runs depths 1, 2 and the one asked for: two runs where that is 2, three where it is 4."""
    grid = grid_of(lesson, ["mesh_size=2,4"], [])
    folder = sweep_folder(tmp_path / "sweep", grid)
    for point, depths in zip(grid.points, [(1, 2), (1, 2, 4)], strict=True):
        plans = [Plan(in_flight_depth=depth) for depth in depths]
        plans += [Plan(in_flight_depth=3, verify=True), Plan(in_flight_depth=3, fault="F07")]
        for number, plan in enumerate(plans):
            run_in(folder / point.folder, number, plan, 10.0 * plan.in_flight_depth)
    table = collect(folder)
    assert [[row.run for row in point.runs] for point in table.points] == [[1, 2, 4, 5], [1, 2, 3, 4, 5]]
    assert table.values_of(3, "period_ms") == {2: 40.0}
    assert all(len(set(table.values_of(run, "period_ms").values())) == 1 for run in table.run_numbers)


def test_swept_parameters_do_not_part_runs_and_a_run_like_no_other_has_a_number_of_its_own(lesson, tmp_path):
    """Where depth itself is swept, and where a cut follows from a parameter of another name."""
    deep = notebook(tmp_path / "deep.ipynb")
    deep.write_text(deep.read_text().replace("mesh_size: int", "in_flight_depth: int"))
    grid = grid_of(deep, ["depth=1,2,4"])
    folder = sweep_folder(tmp_path / "sweep", grid)
    for point, depths in zip(grid.points, [(1, 2), (1, 2), (1, 2, 4)], strict=True):
        plans = [Plan(in_flight_depth=depth) for depth in depths]
        cut = 5 if point.number == 1 else 7
        plans += [Plan(in_flight_depth=3, verify=True), Plan(in_flight_depth=3, hard_cuts=(cut,))]
        for number, plan in enumerate(plans):
            run_in(folder / point.folder, number, plan, 10.0)
    table = collect(folder)
    assert [[row.run for row in point.runs] for point in table.points] == [
        [1, 2, 4, 6],
        [1, 2, 4, 5],
        [1, 2, 3, 4, 5],
    ]
    assert [row[1] for row in as_table(table, "period_ms").rows] == [
        f"{UNFINISHED}, 4 of 5 runs",
        f"{UNFINISHED}, 4 of 5 runs",
        UNFINISHED,
    ]


def test_a_point_without_its_record_was_interrupted(swept):
    point = grid_points(swept)[0]
    (swept / point.folder / POINT_FILE).unlink()
    assert outcome_of(swept, point).state == UNFINISHED


def grid_points(folder):
    from ppwork.lab.sweep.sweep import read_grid

    return read_grid(folder).points


def test_the_finding_says_what_changes_most_and_what_is_missing(swept):
    table = collect(swept)
    assert sweep_picture(table).finding == (
        "period_ms at 3 of 4 points of noise and mesh_size, for 2 runs of 05-lesson. It changes most in run "
        "1 (depth 1): from 40 at noise=5.0, mesh_size=1 to 60 at noise=25.0, mesh_size=1, 1.5 times. Not "
        "ended well: noise=25.0, mesh_size=1 failed; noise=25.0, mesh_size=2 not run."
    )
    with pytest.raises(PlanError, match="No run of the sweep has efficiency"):
        sweep_picture(table, "efficiency")


def test_the_picture_has_a_panel_for_each_run_and_a_bar_for_each_point(swept):
    figure = sweep_picture(collect(swept)).figure
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == ["run 1: depth 1", "run 2: depth 2"]
    assert [bar.get_height() for bar in panels[0].patches] == [40.0, 50.0, 60.0]
    assert [bar.get_height() for bar in panels[1].patches] == [20.0, 21.0]
    assert [text.get_text() for text in panels[1].texts].count("none") == 2
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["5.0", "25.0"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mesh_size 1", "mesh_size 2"]
    hatches = {bar.get_hatch() for bar in panels[0].patches}
    assert len(hatches) == 2  # never by colour alone


def test_a_notebook_of_many_runs_is_drawn_in_part_and_says_so(lesson, tmp_path):
    grid = grid_of(lesson, ["mesh_size=1"])
    folder = sweep_folder(tmp_path / "many", grid)
    for number in range(14):
        run_in(folder / grid.points[0].folder, number, Plan(seed=number), 10.0)
    table = collect(folder)
    assert len([run for run in table.run_numbers if table.values_of(run, "period_ms")]) == 14
    assert len([axes for axes in sweep_picture(table).figure.axes if axes.axison]) == MOST_PANELS == 12
    assert "The first 12 runs are drawn." in sweep_picture(table).finding


def test_a_plan_below_a_points_folder_that_does_not_read_is_no_run_of_it(swept):
    place = swept / "01-noise=5.0,mesh_size=1"
    for number, text in enumerate(("{}", "garbage", '{"mesh_size": "many"}')):
        (place / f"copied-{number}").mkdir()
        (place / f"copied-{number}" / Plan.FILE_NAME).write_text(text)
    first = collect(swept).points[0]
    assert [row.run_dir.rpartition("/")[2] for row in first.runs if "copied" not in row.run_dir] == [
        "0-run",
        "1-run",
        "2-run",
    ]


@pytest.mark.parametrize("line", ["%matplotlib inline", "out: str = os.getcwd()"])
def test_a_parameters_cell_that_is_more_than_typed_values_is_refused_with_its_notebook(
    tmp_path, monkeypatch, line
):
    monkeypatch.setitem(globals(), "PARAMETERS", f"{PARAMETERS}{line}\n")
    path = notebook(tmp_path / "mine.ipynb")
    with pytest.raises(PlanError, match=r"parameters of .*mine\.ipynb cannot be read"):
        parameters_of(path)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_a_number_that_json_does_not_have_is_refused_before_a_folder_is_made(lesson, text):
    with pytest.raises(PlanError, match=f"parameter noise was '{text}'"):
        grid_of(lesson, [f"noise=5,{text}"])


def test_a_long_value_makes_a_name_that_a_folder_can_have(lesson, tmp_path):
    grid = grid_of(lesson, ["name=" + ",".join(letter * 300 for letter in "a\u00e9\u6f22")])
    folder = sweep_folder(tmp_path / "sweep", grid)
    assert [outcome_of(folder, point).state for point in grid.points] == [NOT_RUN] * 3
    assert len({point.folder for point in grid.points}) == 3
