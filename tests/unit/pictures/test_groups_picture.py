"""The picture of ranks and groups: every member at its place, nothing on top of anything, any mesh size."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.text import Text

import ppwork as pp
from ppwork.pictures.groups import COLUMN, GROUPS, HEAD, LEFT, ROW, topology
from ppwork.protocol.topology import GROUP_ORDER, Topology

RING = (1.0, 1.0, 1.0, 1.0)


def discs(figure):
    """Columns of the discs and of the rings, by group."""
    found = {name: ([], []) for name in GROUPS}
    for circle in figure.axes[0].findobj(Circle):
        x, y = circle.center
        name = list(GROUPS)[int((y - HEAD) / ROW)]
        found[name][circle.get_facecolor() == RING].append(int((x - LEFT) / COLUMN))
    return found


def test_groups_are_those_of_the_topology_in_the_order_of_creation():
    assert list(GROUPS) == ["world_pg", *GROUP_ORDER]


@pytest.mark.parametrize("mesh_size", [1, 3, 8])
def test_discs_are_the_members_and_rings_the_others(mesh_size):
    of = Topology(mesh_size)
    for name, (members, others) in discs(topology(of).figure).items():
        assert tuple(members) == of.ranks(name)
        assert set(members) | set(others) == set(range(of.world_size))


def test_number_in_a_disc_is_the_rank_in_the_group():
    figure = topology(Topology(3)).figure
    row = HEAD + (list(GROUPS).index("mesh_pg") + 0.5) * ROW
    numbers = [t.get_text() for t in figure.findobj(Text) if t.get_position()[1] == pytest.approx(row)]
    assert sorted(filter(None, numbers)) == ["0", "1", "2"]


def arrows(figure):
    """From which column to which, of each arrow."""
    patches = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    return [tuple((end[0] - LEFT) / COLUMN - 0.5 for end in patch._posA_posB) for patch in patches]


def test_arrows_lead_to_each_follower_to_the_leader_and_back():
    to_2, to_3, down, up = arrows(topology(Topology(3)).figure)
    assert to_2 == pytest.approx((2, 2))
    assert to_3 == pytest.approx((3, 3))
    assert (down[0], up[0]) == pytest.approx((0, 1))
    assert 0.5 < down[1] < 1
    assert 0 < up[1] < 0.5
    assert len(arrows(topology(Topology(1)).figure)) == 2


def test_large_mesh_leaves_out_ranks_in_the_middle_and_says_so():
    figure = topology(Topology(40)).figure
    said = [text.get_text() for text in figure.findobj(Text)]
    assert {"rank 0", "rank 6", "rank 40", "…"} <= set(said)
    assert "rank 7" not in said
    assert figure.get_size_inches()[0] <= 13


@pytest.mark.parametrize("mesh_size", [1, 2, 8, 20])
def test_no_text_lies_on_another_nothing_is_cut_off_and_all_of_it_is_large(mesh_size):
    figure = topology(Topology(mesh_size)).figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in shown) >= 11
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown]
    whole = figure.bbox
    for text, box in boxes:
        assert whole.x0 <= box.x0, text
        assert box.x1 <= whole.x1, text
        assert whole.y0 <= box.y0, text
        assert box.y1 <= whole.y1, text
    for (one, box), (other, far) in itertools.combinations(boxes, 2):
        apart = box.x1 <= far.x0, far.x1 <= box.x0, box.y1 <= far.y0, far.y1 <= box.y0
        assert any(apart), (one, other)


def test_legend_has_what_the_picture_has():
    """Discs in colours of groups, a ring, a line and an arrow; a line of the picture is of one kind."""
    figure = topology(Topology(2)).figure
    (legend,) = figure.legends
    drawn = [(c.get_facecolor(), c.get_edgecolor()) for c in figure.axes[0].findobj(Circle)]
    shown = [(c.get_facecolor(), c.get_edgecolor()) for c in legend.findobj(Circle)]
    assert len(set(shown)) == 3
    assert set(shown) <= set(drawn)
    assert RING in {face for face, _ in shown}
    assert len(legend.findobj(FancyArrowPatch)) == len(legend.get_lines()) == 1
    assert {line.get_linestyle() for line in figure.axes[0].lines} == {"-"}


def test_groups_differ_in_colour_and_hatch():
    looks = [(colour, hatch) for colour, hatch, _ in GROUPS.values()]
    assert len({colour for colour, _ in looks}) == len({hatch for _, hatch in looks}) == len(looks)


def test_sentence_has_every_group_and_says_who_creates_them():
    said = topology(Topology(2)).finding
    assert said.startswith(
        "Ranks 0, 1 and 2 are in world_pg. mesh_pg, in which rank 1, the leader, broadcasts"
    )
    assert "and tp_pg have ranks 1 and 2. down_pg leads from rank 0 to rank 1, up_pg back." in said
    assert said.endswith(
        "Every rank creates all 4 groups besides world_pg; rank 0 is not in the two of the mesh."
    )
    assert "broadcasts" not in topology(Topology(1)).finding


def test_plan_and_topology_give_one_picture():
    of_plan, of_topology = topology(pp.Plan(mesh_size=2)), topology(pp.Topology(2))
    assert of_plan._repr_html_() == of_topology._repr_html_()
    assert of_plan.finding == topology(Topology(2)).finding
    assert of_plan.png().startswith(b"\x89PNG")


def test_table_has_the_members_of_every_group():
    rows = {row[0]: row[1] for row in topology(Topology(2)).table.rows}
    assert rows == {
        "world_pg": "0, 1 and 2",
        "mesh_pg": "1 and 2",
        "tp_pg": "1 and 2",
        "down_pg": "0 and 1",
        "up_pg": "0 and 1",
    }
