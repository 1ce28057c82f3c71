"""The page of a sequence chart: where ranks and moments are, and texts clear of all that is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.topology import STAGE0_RANK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

    from ppwork.call_story import CallStory

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 12.0, 3.2, 2.2, 1.0, 0.6
"""Of the figure and its margins, in inches; a lifeline stands at each margin."""
TALL, MOST_APART = 5.0, 3.6
"""Height of the time axis, and distance of two lifelines at most, in inches."""
BOX, NARROW, LINE = 1.3, 0.95, 0.23
"""Width of a box of work (the second where lifelines are close), and height of a line of text, in inches."""
SHIFTS = tuple(sorted((n / 25 for n in range(-40, 41)), key=abs))
"""How far a text may move up or down to be clear of what is there, in inches, the least first."""
CLEAR = 0.03
"""Room around a text, in inches."""
TEXT = 12
"""Size of most texts, in points: the chart is shown on slides at about half its size."""
CLOSE, CROWDED = 2.6, 1.9
"""Lifelines nearer than this leave less room for texts, or none for rank and role in one line, in inches."""

Place = tuple[float, float]
"""In inches from the upper left."""


class Page:
    """Where everything of one call stands, in inches from the upper left; time runs downward."""

    def __init__(self, story: CallStory) -> None:
        world = story.topology.world_size
        self.apart = min(MOST_APART, (WIDTH - LEFT - RIGHT) / (world - 1))
        self.close, self.crowded = self.apart < CLOSE, self.apart < CROWDED
        self.box = NARROW if self.close else BOX
        self.width = LEFT + self.apart * (world - 1) + RIGHT
        self.foot = TOP + TALL
        owed = max((len(names) + 2 for names in story.undone.values()), default=0)
        self.height = self.foot + LINE * owed + BOTTOM + (LINE if story.last_words else 0)
        self._per_ms = TALL / (story.length_ms * 1.03)
        self._texts: list[tuple[float, float, str, dict[str, Any]]] = []
        self._drawn: list[Path] = []

    def x(self, rank: int) -> float:
        """Return where the lifeline of a rank stands."""
        return LEFT + self.apart * rank

    def y(self, ms: float) -> float:
        """Return where a moment stands, in milliseconds from the start of the call."""
        return TOP + ms * self._per_ms

    def keep_clear(self, *points: Place) -> None:
        """Note a line or an area, which no text may touch."""
        from matplotlib.path import Path

        self._drawn.append(Path(points))

    def along(self, sender: int, towards: int, y: float, text: str, colour: str) -> None:
        """Note the text of a message: it begins beyond the box of its sender."""
        side = 1 if towards > sender else -1
        place = self.x(sender) + side * (self.box / 2 + 0.12)
        self._texts.append((y, place, text, {"ha": "left" if side > 0 else "right", "color": colour}))

    def beside(self, rank: int, y: float, text: str, **style: Any) -> None:  # noqa: ANN401  of matplotlib
        """Note a text beside a lifeline: rank 0's on its left, clear of arrows, the others' on the right."""
        if rank == STAGE0_RANK:
            self._texts.append((y, self.x(rank) - self.box / 2 - 0.07, text, {"ha": "right", **style}))
        else:
            self._texts.append((y, self.x(rank) + 0.22, text, {"ha": "left", **style}))

    def write(self, axes: Axes) -> None:
        """Write the texts from the top down, each as near to its place as it is clear of everything."""
        from matplotlib.transforms import Bbox

        inches = axes.transData.inverted()
        white = {"boxstyle": "round,pad=0.06", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        written: list[Bbox] = []
        for wanted, x, text, style in sorted(self._texts, key=lambda item: item[0]):
            shown = axes.text(x, wanted, text, va="center", zorder=7, **{"fontsize": TEXT, **style})
            found = inches.transform_bbox(shown.get_window_extent())
            box = Bbox.from_extents(found.xmin, found.ymin, found.xmax, found.ymax).padded(CLEAR)
            places = ((shift, box.translated(0, shift)) for shift in SHIFTS)
            shift, box = next((one for one in places if self._free(one[1], written)), (0.0, box))
            shown.set(y=wanted + shift, bbox=white)
            written.append(box)

    def _free(self, box: Bbox, written: list[Bbox]) -> bool:
        inside = box.ymin >= TOP - 0.1 and box.ymax <= self.foot + 0.05
        apart = all(not box.overlaps(other) for other in written)
        return inside and apart and not any(path.intersects_bbox(box) for path in self._drawn)
