"""The state machine of a session, drawn from its table.

States have their places here, and nothing else: the arrows and their texts are read from
``states.TRANSITIONS``.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.protocol.states import TRANSITIONS, Event, State

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
GOOD = style.BLUE
"""Colour of arrows that do not lead to the error."""

Arrow = tuple[State, State, tuple[Event, ...]]


def arrows() -> list[Arrow]:
    """Return the table as arrows: from, to, and the events that share it."""
    return [
        (state, after, tuple(event for event, _ in group))
        for state, events in TRANSITIONS.items()
        for after, group in groupby(
            sorted(events.items(), key=lambda item: item[1]), key=lambda item: item[1]
        )
    ]


def states() -> Picture:
    """Return the states and the events that move a session from one to the next."""
    return Picture(_finding(), _draw, _table())


def _draw() -> Figure:
    paper, axes = style.page(WIDTH, HEIGHT)
    axes.set_ylim(0, HEIGHT)  # upward, as the angles of the loops
    boxes = {state: _state(axes, state) for state in TRANSITIONS}
    every = arrows()
    pairs = {(state, after) for state, after, _ in every}
    for state, after, events in every:
        if state is after:
            _loop(axes, state, events)
        else:
            _arrow(axes, boxes, (state, after, events), bend=BACK if (after, state) in pairs else 0.0)
    return paper


def _state(axes: Axes, state: State) -> FancyBboxPatch:
    from matplotlib.patches import FancyBboxPatch

    x, y, _ = PLACES[state]
    bad, last = state is State.ERROR, not TRANSITIONS[state]
    corner = (x - BOX[0] / 2, y - BOX[1] / 2)
    paper, edge = (style.BAD_PAPER, style.BAD) if bad else ("white", "black")
    look: style.Style = {"facecolor": paper, "edgecolor": edge, "linewidth": 3.5 if last or bad else 1.5}
    box = FancyBboxPatch(corner, *BOX, boxstyle="round,pad=0.04", zorder=3, gid=state, **look)
    axes.add_patch(box)
    axes.text(x, y, state, fontsize=14, fontweight="bold", zorder=5, **style.CENTRED)
    return box


def _arrow(axes: Axes, boxes: dict[State, FancyBboxPatch], arrow: Arrow, *, bend: float) -> None:
    state, after, events = arrow
    (x, y, _), (to_x, to_y, _) = PLACES[state], PLACES[after]
    look: style.Style = {"patchA": boxes[state], "patchB": boxes[after], "gid": f"{state}-{after}"}
    style.arrow(axes, (x, y), (to_x, to_y), connectionstyle=f"arc3,rad={bend}", **look, **_line(after))
    middle = ((x + to_x) / 2 + bend * (to_y - y) / 2, (y + to_y) / 2 - bend * (to_x - x) / 2)
    _write(axes, middle, events, after)


def _loop(axes: Axes, state: State, events: tuple[Event, ...]) -> None:
    x, y, side = PLACES[state]
    out = (math.cos(math.radians(side)), math.sin(math.radians(side)))
    across = (-out[1], out[0])
    reach = BOX[0] / 2 if side in (0, 180) else BOX[1] / 2
    edge = (x + out[0] * (reach + 0.04), y + out[1] * (reach + 0.04))
    tail, head = ((edge[0] + turn * across[0] * 0.16, edge[1] + turn * across[1] * 0.16) for turn in (-1, 1))
    look: style.Style = {"connectionstyle": "arc3,rad=1.9", "gid": f"{state}-{state}", **_line(state)}
    style.arrow(axes, tail, head, **look)
    beyond = 0.78 if side in (0, 180) else 0.45
    _write(axes, (edge[0] + out[0] * beyond, edge[1] + out[1] * beyond), events, state)


def _line(after: State) -> style.Style:
    colour, line = (style.BAD, "--") if after is State.ERROR else (GOOD, "-")
    return {"color": colour, "linestyle": line, "linewidth": 1.8, "mutation_scale": 18, "zorder": 2}


def _write(axes: Axes, middle: tuple[float, float], events: tuple[Event, ...], after: State) -> None:
    colour = style.BAD if after is State.ERROR else GOOD
    look: style.Style = {"fontsize": 12, "zorder": 4, "bbox": style.white_box(0.1), **style.CENTRED}
    axes.text(*middle, "\n".join(events), color=colour, **look)


def _table() -> Table:
    """Return the transitions as a table: a line per state and next state."""
    rows = [[str(state), str(after), ", ".join(events)] for state, after, events in arrows()]
    ends = [[str(state), "-", "nothing"] for state, events in TRANSITIONS.items() if not events]
    return Table(["state", "next", "on"], rows + ends)


def _finding() -> str:
    """State in one sentence how many ways there are, and where a failure leads."""
    ways = sum(len(events) for events in TRANSITIONS.values())
    safe = ", ".join(state for state, events in TRANSITIONS.items() if Event.FAILED not in events)
    back = sum(after is not State.ERROR for after in TRANSITIONS[State.ERROR].values())
    return (
        f"{len(TRANSITIONS)} states and {ways} transitions: a failure (dashed) leads to {State.ERROR} from "
        f"every state but {safe}, and {back or 'no'} way leads out of it. A thick frame is an end."
    )
