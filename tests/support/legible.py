"""What a figure's text must be: large enough, on the paper, and nowhere on top of other text."""

from __future__ import annotations

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

SMALLEST = 9


def assert_legible(figure: Figure) -> None:
    """Look at every text that is drawn; matplotlib keeps ticks beyond the axes, which are not."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = set()
    for axes in figure.axes:
        for labels, (low, high), side in (
            (axes.get_xticklabels(), axes.get_xlim(), 0),
            (axes.get_yticklabels(), sorted(axes.get_ylim()), 1),
        ):
            last = axes.axison and (
                axes is figure.axes[-1] or side == 1
            )  # axes above each other share their lowest ticks
            hidden |= {label for label in labels if not last or not low <= label.get_position()[side] <= high}
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    shown = [text for text in shown if text not in hidden]
    assert min(text.get_fontsize() for text in shown) >= SMALLEST
    page = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown]
    for text, box in boxes:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
    for (text, box), (other, far) in itertools.combinations(boxes, 2):
        apart = box.x1 <= far.x0, far.x1 <= box.x0, box.y1 <= far.y0, far.y1 <= box.y0
        assert any(apart), (text, other)
