"""Sliders over the simulator: move one, and see what the pipeline would do; nothing is launched.

In a notebook the sliders come first and their figure follows every move, with arrow keys too. Below them
stays what the numbers were at the beginning, as a figure and as text: all that there is where no widget can
be shown, and what the page keeps when it is opened again without a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ppwork.lab.live import in_notebook
from ppwork.pictures.picture import Picture
from ppwork.pictures.scenarios import scenario
from ppwork.pictures.tables import APART
from ppwork.plan import SCHEDULES, Plan
from ppwork.timeline.costs import Costs
from ppwork.timeline.scenario import Played, Scenario

TIMES_MS = {
    "encode_ms": ("rank 0: encode, ms", 100.0, 1.0),
    "decode_ms": ("rank 0: decode, ms", 100.0, 1.0),
    "stage1_ms": ("mesh: stage 1, ms", 200.0, 1.0),
    "hop_ms": ("one hop, ms", 20.0, 0.5),
}
"""Sliders by the field they move: what they are called, how far they go, and in which steps."""
COUNTS = {"depth": ("in_flight_depth", 8), "mesh_size": ("mesh size", 8)}


@dataclass(frozen=True, repr=False, kw_only=True)
class WhatIf(Picture):
    """A scenario, its picture and its numbers."""

    played: Played
    """The scenario with its simulation."""

    @classmethod
    def of(cls, played: Played, reach_ms: float = 0.0) -> WhatIf:
        """Return what came of a scenario; ``reach_ms`` is that of ``pictures.scenario``."""
        picture = scenario(played, reach_ms=reach_ms)
        return cls(picture.finding, picture.draw, picture.table, played=played)

    def __repr__(self) -> str:
        return f"{self.finding}\n{self.table}"

    def _repr_html_(self) -> str:
        return super()._repr_html_() + (self.table.html(APART) if self.table is not None else "")


class Panel:
    """The sliders, and below them the figure of what they say.

    Args:
        start: Where they stand at first.
    """

    def __init__(self, start: Scenario) -> None:
        import ipywidgets as widgets

        self._reach_ms = reach_of(start)
        wide = {"style": {"description_width": "12em"}, "layout": {"width": "36em"}}
        quiet: dict[str, Any] = {"continuous_update": False, **wide}
        self.controls: dict[str, Any] = {}
        for name, (label, most, step) in TIMES_MS.items():
            at = getattr(start, name)
            look = {"description": label, "readout_format": ".1f", **quiet}
            self.controls[name] = widgets.FloatSlider(min=0, max=max(most, at), step=step, value=at, **look)
        for name, (label, most) in COUNTS.items():
            at = getattr(start, name)
            slider = widgets.IntSlider(min=1, max=max(most, at), value=at, description=label, **quiet)
            self.controls[name] = slider
        choice = {"options": SCHEDULES, "value": start.schedule, "description": "schedule"}
        self.controls["schedule"] = widgets.Dropdown(**choice, **wide)
        self.picture = widgets.HTML()
        self.box = widgets.VBox([*self.controls.values(), self.picture], _dom_classes=["ppwork-what-if"])
        for control in self.controls.values():
            control.observe(self._moved, names="value")
        self._moved()

    def _moved(self, _change: object = None) -> None:
        asked = Scenario(**{name: control.value for name, control in self.controls.items()})
        self.picture.value = WhatIf.of(asked.play(), self._reach_ms)._repr_html_()


def reach_of(start: Scenario) -> float:
    """Return the longest bound that the pictures of one panel make room for, in milliseconds."""
    return max(msgspec.structs.replace(start, depth=1).bounds_ms.values())


def what_if(plan: Plan | None = None, costs: Costs | None = None) -> WhatIf:
    """Ask the simulator: what would the period be, if?

    Args:
        plan: Where depth, mesh size and schedule begin; ``None``: depth 2, a mesh of 2, overlap.
        costs: Where the times begin, such as ``Costs.from_run`` of a run; ``None``: balanced stages of 30 ms
            and 1 ms a hop.

    Returns:
        The beginning, as figure and text. In a notebook the sliders are shown above it, unless
        ``PPWORK_NONINTERACTIVE`` is set.
    """
    start = Scenario.of(plan or Plan(in_flight_depth=2), costs)
    if in_notebook():
        from IPython.display import display

        display(Panel(start).box)
    return WhatIf.of(start.play(), reach_of(start))
