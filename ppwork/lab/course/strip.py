"""A strip: who does what from when to when, drawn large from a few lines of text, for a slide.

    axis 0-80 ms
    # depth 2
    rank 0: 0-15 decode 4 | 15-30 encode 6 | 30-40 wait
    rank 1: 0-30 generate 5 | 30-40 idle!
    brace 0-30 work | 30-40 a pause: why?
    arrow rank 0@30 > rank 1@40 envelope 6
    line 40 the timeout

``axis`` comes first, and is drawn if it has a unit. The rest stands from top to bottom as its lines do;
arrows and lines go over all of it. ``!`` at the end of a label says: this is what is wrong.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass, field

from ppwork.errors import PlanError
from ppwork.pictures.style import ALARM, BAD, BAD_PAPER, COLOURS, DARK, LINE, PALE

WIDTH = 1180
"""Of the picture, in the pixels of a slide."""
SIZE, LETTER = 24, 12.4
"""Height of a text, and about the width of a letter."""
BOX, GAP, GAP_OF_ARROWS, EDGE = 50, 14, 40, 24
"""Height of a box, room below it, room below it in a strip with arrows, and room at the picture's sides."""
HEADLINE, BRACE, AXIS, SAID = 46, 56, 62, 40
"""Height of a headline, a brace, the axis, and the text at a line."""
MOST_TICKS = 9
INK, HEAD = "#1a1a1a", "#004b7a"
"""Colours of text and of headings, as in the deck's style sheet."""
FILLS = {
    **dict.fromkeys(("encode", "prepare"), COLOURS[0]),
    **dict.fromkeys(("generate", "compute", "fill"), COLOURS[1]),
    **dict.fromkeys(("decode", "take"), COLOURS[6]),
    **dict.fromkeys(("broadcast", "all_reduce", "barrier"), COLOURS[3]),
    **dict.fromkeys(("transport", "send", "isend", "receive", "recv", "irecv"), COLOURS[4]),
}
"""By the first word of a box's label; any other box is grey."""
SHORT = {"e": "encode", "g": "generate", "d": "decode"}
"""``g5`` is ``generate 5`` where there is no room for it."""
PAUSES = ("wait", "waits", "idle")
"""These have no colour, and a dashed edge."""
_SPAN = r"(?P<start>[\d.]+)-(?P<end>[\d.]+)"
_AXIS = re.compile(rf"axis {_SPAN}(?: (?P<unit>.+))?")
_BRACES = re.compile(r"brace (?P<braces>.+)")
_ARROW = re.compile(
    r"arrow (?P<source>[^@]+)@(?P<start>[\d.]+) > (?P<target>[^@]+)@(?P<end>[\d.]+)(?: (?P<label>.+))?"
)
_LINE = re.compile(r"line (?P<at>[\d.]+) (?P<label>.+)")
_LANE = re.compile(r"(?P<name>[^:]+):(?P<boxes>.*)")
_OTHER = re.compile("#|brace |arrow |line ")
"""A line that is no lane, though it may have a colon."""
_BOX = re.compile(rf"{_SPAN}(?: (?P<label>.+))?")


def strip(text: str) -> str:
    """Return a strip as SVG; its letters are those of the page.

    Raises:
        PlanError: A line is none of these, is outside the axis, or has a label without room.
    """
    first, *rest = [line.strip() for line in text.strip().splitlines() if line.strip()]
    axis = _AXIS.fullmatch(first)
    if axis is None or float(axis["start"]) >= float(axis["end"]):
        raise _refused(first, "the first line: axis 0-80 ms")
    names = [lane["name"] for line in rest if not _OTHER.match(line) and (lane := _LANE.fullmatch(line))]
    drawing = _Drawing(
        start=float(axis["start"]),
        end=float(axis["end"]),
        left=EDGE + LETTER * max(map(len, names), default=0),
        gap=GAP_OF_ARROWS if any(map(_ARROW.fullmatch, rest)) else GAP,
    )
    for line in rest:
        drawing.add(line)
    return drawing.svg(axis["unit"] or "", spoken=" / ".join(rest))


def _refused(line: str, check_first: str) -> PlanError:
    return PlanError(f"A strip has the line {line!r}.", check_first=check_first)


@dataclass
class _Drawing:
    start: float
    end: float
    left: float
    """Where the axis begins."""
    gap: int
    """Room below a box."""
    height: float = 4
    below: list[str] = field(default_factory=list)
    """Elements that lie under the others."""
    above: list[str] = field(default_factory=list)
    lanes: dict[str, float] = field(default_factory=dict)
    """Top of the last lane of each name."""
    lines: list[tuple[float, str, bool]] = field(default_factory=list)
    """Place, label, and whether it is wrong: they go from top to bottom, which is known in the end."""

    def x(self, at: str | float) -> float:
        if not self.start <= float(at) <= self.end:
            raise _refused(str(at), f"the axis, which goes from {self.start:g} to {self.end:g}")
        part = (float(at) - self.start) / (self.end - self.start)
        return self.left + part * (WIDTH - EDGE - self.left)

    def add(self, line: str) -> None:
        if line.startswith("#"):
            self.height += HEADLINE
            self.above.append(_text(0, self.height - 16, line.lstrip("# "), weight=600))
        elif found := _BRACES.fullmatch(line):
            self._braces(line, found["braces"].split("|"))
        elif found := _ARROW.fullmatch(line):
            self._arrow(line, **found.groupdict())
        elif found := _LINE.fullmatch(line):
            self.lines.append((self.x(found["at"]), *_label(found["label"])))
        elif found := _LANE.fullmatch(line):
            self._lane(line, found["name"], found["boxes"])
        else:
            raise _refused(line, "a lane, `# headline`, `brace`, `arrow` or `line`")

    def svg(self, unit: str, spoken: str) -> str:
        bottom = self.height
        for x, label, is_wrong in self.lines:
            colour = ALARM if is_wrong else DARK
            self.above.append(_path(f"M{x:.0f} 4V{bottom:.0f}", colour, 'stroke-dasharray="8 6"'))
            self.above.append(_text(x, bottom + 26, label, anchor=self._anchor(x, label), colour=colour))
        self.height += SAID * bool(self.lines)
        if unit:
            self._axis(unit)
        size = f'viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}" height="{self.height:.0f}"'
        label = html.escape(spoken)
        elements = "".join(self.below + self.above)
        return (
            f'<svg class="strip" role="img" aria-label="{label}" {size} font-size="{SIZE}">{elements}</svg>'
        )

    def _lane(self, line: str, name: str, boxes: str) -> None:
        top = self.lanes[name] = self.height
        self.height += BOX + self.gap
        self.above.append(_text(0, top + BOX / 2 + 8, name))
        ends = self.x(self.start), self.x(self.end)
        self.below.append(_path(f"M{ends[0]:.0f} {top + BOX:.0f}H{ends[1]:.0f}", PALE))
        for box in boxes.split("|"):
            left, right, label, is_wrong = self._placed(line, box, "15-30 encode 6")
            if LETTER * len(label) > right - left - 4:
                room = int((right - left - 4) / LETTER)
                raise _refused(line, f"{label!r}, which has room for {room} letters")
            kind = SHORT[label[0]] if re.fullmatch(r"[egd]\d+", label) else label.partition(" ")[0]
            is_pause = kind in PAUSES
            fill = BAD_PAPER if is_wrong else "none" if is_pause else FILLS.get(kind, PALE)
            edge = f'stroke="{BAD if is_wrong else DARK}" stroke-width="{3 if is_wrong else 1.5}"'
            dashes = ' stroke-dasharray="7 5"' if is_pause else ""
            place = f'x="{left:.1f}" y="{top:.0f}" width="{right - left:.1f}" height="{BOX}"'
            self.below.append(f'<rect {place} fill="{fill}" {edge}{dashes}/>')
            colour, middle = ALARM if is_wrong else DARK if is_pause else INK, (left + right) / 2
            self.above.append(_text(middle, top + BOX / 2 + 8, label, anchor="middle", colour=colour))

    def _braces(self, line: str, braces: list[str]) -> None:
        top = self.height - self.gap + 4
        self.height += BRACE - self.gap
        for brace in braces:
            left, right, label, is_wrong = self._placed(line, brace, "0-40 one period")
            if not label:
                raise _refused(line, f"{brace.strip()!r}: as in 0-40 one period")
            colour, middle = ALARM if is_wrong else HEAD, (left + right) / 2
            shape = f"M{left + 1:.1f} {top:.0f}v12H{right - 1:.1f}v-12"
            self.above.append(_path(shape, colour, 'stroke-width="2.5"'))
            anchor = self._anchor(middle, label)
            self.above.append(_text(middle, top + 40, label, anchor=anchor, colour=colour))

    def _placed(self, line: str, part: str, example: str) -> tuple[float, float, str, bool]:
        """Return where a part of a line begins and ends, its label, and whether that is wrong."""
        if (found := _BOX.fullmatch(part.strip())) is None:
            raise _refused(line, f"{part.strip()!r}: as in {example}")
        return self.x(found["start"]), self.x(found["end"]), *_label(found["label"] or "")

    def _arrow(self, line: str, source: str, start: str, target: str, end: str, label: str | None) -> None:
        if unknown := {source, target} - set(self.lanes):
            raise _refused(line, f"{unknown.pop()!r}: a lane above the arrow")
        words, is_wrong = _label(label or "")
        colour = ALARM if is_wrong else INK
        down = self.lanes[target] > self.lanes[source]
        x1, y1 = self.x(start), self.lanes[source] + (BOX if down else 0)
        x2, y2 = self.x(end), self.lanes[target] + (0 if down else BOX)
        turn = math.atan2(y2 - y1, x2 - x1)
        head = "".join(
            f"L{x2 - 16 * math.cos(turn + side):.1f} {y2 - 16 * math.sin(turn + side):.1f}M{x2:.1f} {y2:.1f}"
            for side in (0.4, -0.4)
        )
        self.above.append(_path(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}{head}", colour, 'stroke-width="3"'))
        if words:
            self.above.append(_text(max(x1, x2) + 10, (y1 + y2) / 2 + 8, words, colour=colour, halo=True))

    def _axis(self, unit: str) -> None:
        step = _step((self.end - self.start) / MOST_TICKS)
        top = self.height
        self.height += AXIS
        self.below.append(_path(f"M{self.left:.0f} {top:.0f}H{WIDTH - EDGE}", LINE, 'stroke-width="2"'))
        for number in range(math.ceil(self.start / step), math.floor(self.end / step) + 1):
            x = self.x(number * step)
            self.below.append(_path(f"M{x:.1f} {top:.0f}v8", LINE, 'stroke-width="2"'))
            self.above.append(_text(x, top + 34, f"{number * step:g}", anchor="middle", colour=DARK))
        self.above.append(_text(0, top + 34, unit, colour=DARK))

    def _anchor(self, x: float, label: str) -> str:
        half = LETTER * len(label) / 2
        return "start" if x - half < 0 else "end" if x + half > WIDTH else "middle"


def _label(text: str) -> tuple[str, bool]:
    """Return a label, and whether it says what is wrong."""
    return text.removesuffix("!").strip(), text.endswith("!")


def _step(least: float) -> float:
    """Return the least of 1, 2, 5, 10, 20 ... that is not below this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def _path(drawn: str, colour: str, more: str = "") -> str:
    return f'<path d="{drawn}" fill="none" stroke="{colour}" {more}/>'


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = INK,
    weight: int = 400,
    halo: bool = False,
) -> str:
    behind = ' stroke="#fff" stroke-width="8" paint-order="stroke"' if halo else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-weight="{weight}"{behind}>{html.escape(words)}</text>'
