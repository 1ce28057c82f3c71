"""Scenarios against the law of the period, their picture and sentence, and the sliders without a browser."""

from __future__ import annotations

import sys

import ipywidgets
import pytest

import ppwork as pp
from ppwork.lab.what_if import Panel
from ppwork.pictures.scenarios import scenario
from ppwork.timeline.costs import Costs, Hop, law_period_ms
from ppwork.timeline.scenario import BOUNDS, Scenario

ROUND_TRIP = BOUNDS[-1]
what_if_module = sys.modules["ppwork.lab.what_if"]


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "times", [(15.0, 15.0, 30.0, 1.0), (5.0, 10.0, 60.0, 2.0), (30.0, 30.0, 20.0, 0.0), (0.0, 0.0, 10.0, 4.0)]
)
def test_an_overlapped_scenario_has_the_period_of_the_law(times, depth):
    names = ("encode_ms", "decode_ms", "stage1_ms", "hop_ms")
    asked = Scenario(**dict(zip(names, times, strict=True)), depth=depth)
    law_ms = law_period_ms(asked.stage0_ms, asked.stage1_ms, asked.transport_ms, depth)
    assert asked.play().period_ms == pytest.approx(law_ms, rel=0.005)
    assert max(asked.bounds_ms.values()) == law_ms


@pytest.mark.parametrize(
    ("changes", "said", "idle_ms"),
    [
        ({"depth": 1}, ROUND_TRIP, 33.0),
        ({"depth": 2}, ROUND_TRIP, 1.5),
        ({"depth": 3}, "stage 0 and stage 1", 0.0),
        ({"depth": 3, "stage1_ms": 40.0}, "stage 1", 0.0),
        ({"depth": 3, "decode_ms": 40.0}, "stage 0", 25.0),
        ({"depth": 4, "schedule": "send-after-decode"}, "would allow 30.0 ms: send-after-decode", 18.0),
        ({"depth": 8, "mesh_size": 8, "hop_ms": 20.0}, "one link is busy for 60.0 ms", 30.0),
    ],
)
def test_what_makes_the_period_is_named(changes, said, idle_ms):
    played = Scenario(**changes).play()
    assert said in played.holds
    assert played.idle_ms == pytest.approx(idle_ms, abs=0.1)
    assert played.numbers["which bound"] == played.holds
    assert f"every {played.period_ms:.1f} ms" in played.finding
    assert f"idles {played.idle_ms:.1f} ms before each, on average." in played.finding
    assert ("schedule send-after-decode" in played.finding) == ("schedule" in changes)


def test_a_broadcast_takes_a_hop_for_each_round_of_its_tree():
    assert [Scenario(hop_ms=2.0, mesh_size=n).transport_ms for n in (1, 2, 4, 8)] == [4.0, 6.0, 8.0, 10.0]


def test_a_scenario_of_measured_costs_keeps_their_means_and_their_transport():
    costs = Costs(
        encode_ms=(3.0, 10.0, 17.0, 10.0),
        preflight_ms=1.0,
        decode_ms=8.0,
        stage1_ms=20.0,
        down=Hop(2.0),
        up=Hop(1.0),
    )
    plan = pp.Plan(mesh_size=4, in_flight_depth=3, schedule="send-after-decode")
    found = Scenario.of(plan, costs)
    assert (found.encode_ms, found.decode_ms, found.stage1_ms) == (11.0, 8.0, 20.0)
    assert found.transport_ms == pytest.approx(costs.transport_ms(4))
    assert (found.depth, found.mesh_size, found.schedule) == (3, 4, "send-after-decode")


def bars(figure):
    return {p.get_gid(): p for p in figure.axes[0].patches}


def test_the_bound_that_holds_is_hatched_and_the_axes_stay_as_they_are():
    short, long = (scenario(Scenario(depth=depth), reach_ms=100.0).figure for depth in (3, 1))
    assert [name for name, bar in bars(short).items() if bar.get_hatch()] == [
        "bound.stage 0",
        "bound.stage 1",
    ]
    assert [name for name, bar in bars(long).items() if bar.get_hatch()] == [f"bound.{ROUND_TRIP}"]
    for above, below in zip(short.axes, long.axes, strict=True):
        assert above.get_xlim() == below.get_xlim()
    assert (
        scenario(Scenario(depth=1, stage1_ms=200.0).play(), reach_ms=100.0).figure.axes[0].get_xlim()[1] > 230
    )
    late = scenario(Scenario(schedule="send-after-decode")).figure
    assert not any(bar.get_hatch() for bar in bars(late).values())
    assert "no bound" in late.axes[0].get_title(loc="left")


def test_what_is_left_without_widgets_says_the_same_as_figure_and_as_text():
    found = pp.what_if(pp.Plan(in_flight_depth=3))
    assert repr(found).splitlines()[1:3] == ["period         30.0 ms", "which bound    stage 0 and stage 1"]
    page = found._repr_html_()
    assert f'<img alt="{found.played.finding}"' in page
    assert ">mesh idle</th>" in page
    assert ">30.0 ms</td>" in page


def test_sliders_show_another_picture_when_they_are_moved():
    panel = Panel(Scenario(depth=2))
    first = panel.picture.value
    assert "depth 2: a chunk comes every 31.5 ms" in first
    panel.controls["depth"].value = 3
    assert "depth 3: a chunk comes every 30.0 ms" in panel.picture.value
    panel.controls["schedule"].value = "send-after-decode"
    assert "schedule send-after-decode" in panel.picture.value
    assert panel.picture.value != first
    assert all(c.description for c in panel.controls.values())
    sliders = [c for c in panel.controls.values() if not isinstance(c, ipywidgets.Dropdown)]
    assert not any(slider.continuous_update for slider in sliders)


def test_a_slider_reaches_as_far_as_it_begins():
    panel = Panel(Scenario(stage1_ms=900.0, depth=12))
    assert panel.controls["stage1_ms"].value == 900.0
    assert panel.controls["depth"].value == 12


def test_in_a_notebook_the_sliders_come_first(monkeypatch):
    shown = []
    monkeypatch.setattr(what_if_module, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    found = pp.what_if()
    (box,) = shown
    assert "ppwork-what-if" in box._dom_classes
    assert found.played.scenario.depth == 2
