"""The state machine of a session as a picture, drawn from its table; and the table in words.

States have their places here, and nothing else: which arrows there are, and what they say, is read from
``states.TRANSITIONS``.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ppwork.states import TRANSITIONS, Event, State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

PLACES = {
    State.STARTING: (1.3, 3.4, 90),
    State.READY: (4.7, 5.3, 90),
    State.BUSY: (6.8, 3.2, 0),
    State.DRAINING: (10.5, 3.7, 0),
    State.CLOSED: (10.5, 5.3, 0),
    State.ERROR: (4.7, 0.9, 180),
}
"""Middle of each state, in inches from the lower left, and the side of its own loop, in degrees."""
WIDTH, HEIGHT = 11.8, 6.6
BOX = (1.5, 0.6)
"""Width and height of a state, in inches."""
BACK = 0.24
"""Bend of two arrows between the same two states."""
WELL, ILL = "#0072B2", "#D55E00"
"""Of arrows and of what they lead to; Okabe and Ito's. The second kind is dashed, too."""

Arrow = tuple[State, State, tuple[Event, ...]]


def arrows() -> list[Arrow]:
    """Return the table as arrows: from, to, and the events that share it."""
    return [
        (state, after, tuple(event for event, _ in found))
        for state, events in TRANSITIONS.items()
        for after, found in groupby(
            sorted(events.items(), key=lambda item: item[1]), key=lambda item: item[1]
        )
    ]


def plot_states() -> Figure:
    """Draw the states and what moves a session from one to the next."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, HEIGHT)
    axes.set_axis_off()
    boxes = {state: _state(axes, state) for state in TRANSITIONS}
    every = arrows()
    pairs = {(state, after) for state, after, _ in every}
    for state, after, events in every:
        if state is after:
            _loop(axes, state, events)
        else:
            _arrow(axes, boxes, (state, after, events), bend=BACK if (after, state) in pairs else 0.0)
    return figure


def _state(axes: Axes, state: State) -> FancyBboxPatch:
    from matplotlib.patches import FancyBboxPatch

    x, y, _ = PLACES[state]
    bad, last = state is State.ERROR, not TRANSITIONS[state]
    place = (x - BOX[0] / 2, y - BOX[1] / 2)
    style: dict[str, Any] = {
        "facecolor": "#FBE3D6" if bad else "white",
        "edgecolor": ILL if bad else "black",
        "linewidth": 3.5 if last or bad else 1.5,
    }
    box = FancyBboxPatch(place, *BOX, boxstyle="round,pad=0.04", zorder=3, gid=state, **style)
    axes.add_patch(box)
    axes.text(x, y, state, fontsize=14, fontweight="bold", ha="center", va="center", zorder=5)
    return box


def _arrow(axes: Axes, boxes: dict[State, FancyBboxPatch], arrow: Arrow, *, bend: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    state, after, events = arrow
    (x, y, _), (to_x, to_y, _) = PLACES[state], PLACES[after]
    axes.add_patch(
        FancyArrowPatch(
            (x, y),
            (to_x, to_y),
            connectionstyle=f"arc3,rad={bend}",
            patchA=boxes[state],
            patchB=boxes[after],
            gid=f"{state}-{after}",
            **_line(after),
        )
    )
    middle = ((x + to_x) / 2 + bend * (to_y - y) / 2, (y + to_y) / 2 - bend * (to_x - x) / 2)
    _say(axes, middle, events, after)


def _loop(axes: Axes, state: State, events: tuple[Event, ...]) -> None:
    from matplotlib.patches import FancyArrowPatch

    x, y, side = PLACES[state]
    out = (math.cos(math.radians(side)), math.sin(math.radians(side)))
    across = (-out[1], out[0])
    reach = BOX[0] / 2 if side in (0, 180) else BOX[1] / 2
    edge = (x + out[0] * (reach + 0.04), y + out[1] * (reach + 0.04))
    tail, head = ((edge[0] + turn * across[0] * 0.16, edge[1] + turn * across[1] * 0.16) for turn in (-1, 1))
    path = "arc3,rad=1.9"
    axes.add_patch(FancyArrowPatch(tail, head, connectionstyle=path, gid=f"{state}-{state}", **_line(state)))
    beyond = 0.78 if side in (0, 180) else 0.45
    _say(axes, (edge[0] + out[0] * beyond, edge[1] + out[1] * beyond), events, state)


def _line(after: State) -> dict[str, Any]:
    bad = after is State.ERROR
    style = {"color": ILL if bad else WELL, "linestyle": "--" if bad else "-", "linewidth": 1.8}
    return {"arrowstyle": "-|>", "mutation_scale": 18, "zorder": 2, **style}


def _say(axes: Axes, place: tuple[float, float], events: tuple[Event, ...], after: State) -> None:
    white = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    style: dict[str, Any] = {"color": ILL if after is State.ERROR else WELL, "fontsize": 12}
    axes.text(*place, "\n".join(events), ha="center", va="center", zorder=4, bbox=white, **style)


def states_table() -> str:
    """Return the table as fixed-width text: a line per state and next state."""
    lines = [f"{'state':<10} {'next':<10} on"]
    lines += [f"{state:<10} {after:<10} {', '.join(events)}" for state, after, events in arrows()]
    return "\n".join(lines + [f"{state:<10} {'-':<10} nothing" for state, e in TRANSITIONS.items() if not e])


def states_finding() -> str:
    """State in one sentence how many ways there are, and where a failure leads."""
    ways = sum(len(events) for events in TRANSITIONS.values())
    failing = sum(events.get(Event.FAILED) is State.ERROR for events in TRANSITIONS.values())
    back = sum(after is not State.ERROR for after in TRANSITIONS[State.ERROR].values())
    return (
        f"{len(TRANSITIONS)} states and {ways} transitions: a failure leads from {failing} of the states to "
        f"{State.ERROR}, and {back or 'no'} way leads out of it."
    )
