"""Ways to split inference over GPUs: who works on which chunk when, with latency and period."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHUNKS = 3
MARKED = 2
"""The chunk whose latency is marked: one before it and one after it show the period."""
LEFT, LONG, RIGHT = 2.3, 6.8, 0.25
"""Room for the names, length of the time axis and room beside it, in inches."""
ROW, BRACKET, BETWEEN, FOOT = 0.34, 0.32, 0.08, 0.7
"""Height of a GPU's row and of a bracket, room between two strips and below the last, in inches."""
TICK_MS = 20


@dataclass(frozen=True)
class GpuChunk:
    """A chunk on a GPU, in milliseconds from the arrival of chunk 1."""

    gpu: int
    step: str
    """Its first letter: e encode, g generate, d decode."""
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Split:
    """One way: a chunk goes through GPU 0, the GPUs that generate, and GPU 0 again."""

    name: str
    generating: Sequence[int]
    """GPUs that generate, each a slice."""
    times: tuple[float, float, float]
    """To encode, to generate on one GPU, to decode."""
    idle: str = ""
    """Why one more GPU has nothing to do; empty: there is none."""

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return 1 + max(self.generating) + bool(self.idle)

    @property
    def on(self) -> str:
        """Its name in one line."""
        return self.name.replace("\n", " ")

    @property
    def slice_ms(self) -> float:
        """Milliseconds in which all of its GPUs together generate a chunk."""
        return self.times[1] / len(self.generating)

    @property
    def latency_ms(self) -> float:
        """Milliseconds from a chunk's arrival to its last step's end."""
        return self.times[0] + self.slice_ms + self.times[2]

    @property
    def period_ms(self) -> float:
        """Milliseconds between two chunks: what the busiest GPU has to do for each."""
        return self.latency_ms if 0 in self.generating else self.slice_ms

    @property
    def blocks(self) -> Iterator[GpuChunk]:
        """The steps of all chunks; a chunk arrives when the period is over."""
        for chunk in range(1, CHUNKS + 1):
            arrival = (chunk - 1) * self.period_ms
            encoded = arrival + self.times[0]
            generated = encoded + self.slice_ms
            yield GpuChunk(0, "e", chunk, arrival, encoded)
            for gpu in self.generating:
                yield GpuChunk(gpu, "g", chunk, encoded, generated)
            yield GpuChunk(0, "d", chunk, generated, generated + self.times[2])


def splits(*, encode_ms: float, generate_ms: float, decode_ms: float) -> Picture:
    """Return five ways to use GPUs for one stream: one, data parallel, a pipeline, tensor parallel, both.

    Args:
        encode_ms: Milliseconds of a chunk on GPU 0 before it is generated; transfers take no time here.
        generate_ms: Milliseconds of the whole generator on one GPU; n GPUs take an nth of it.
        decode_ms: Milliseconds on GPU 0 afterwards.

    Raises:
        PlanError: A time is not above 0, or half a generator is done before GPU 0 has encoded and decoded a
            chunk: then GPU 0 sets the period, and another drawing is needed.
    """
    times = (encode_ms, generate_ms, decode_ms)
    if min(times) <= 0 or generate_ms / 2 < encode_ms + decode_ms:
        raise PlanError(
            f"The generator has to be slower than GPU 0 also on two GPUs; the times are {times} ms.",
            check_first="generate_ms: at least twice encode_ms + decode_ms, all above 0",
        )
    ways = [
        Split("1 GPU", [0], times),
        Split("2 GPUs,\ndata parallel", [0], times, idle="no work: chunk 2 needs the state of chunk 1"),
        Split("2 GPUs,\npipeline", [1], times),
        Split("2 GPUs,\ntensor parallel", [0, 1], times),
        Split("3 GPUs,\npipeline and\nmesh of 2", [1, 2], times),
    ]
    return Picture(_finding(ways), lambda: _draw(ways), _table(ways))


def _draw(ways: Sequence[Split]) -> Figure:
    strips = [ROW * way.gpus + 2 * BRACKET for way in ways]
    paper, axes = style.page(LEFT + LONG + RIGHT, sum(strips) + BETWEEN * len(ways) + FOOT)
    reach_ms = max(block.end for way in ways for block in way.blocks)
    scale, top = LONG / reach_ms, BETWEEN
    for way, tall in zip(ways, strips, strict=True):
        _strip(axes, way, top, scale)
        top += tall + BETWEEN
    axes.plot([LEFT, LEFT + LONG], [top, top], color="black", linewidth=0.8)
    for ms in range(0, int(reach_ms) + 1, TICK_MS):
        x = LEFT + ms * scale
        axes.plot([x, x], [top, top + 0.06], color="black", linewidth=0.8)
        axes.text(x, top + 0.2, str(ms), fontsize=11, **style.CENTRED)
    words = "milliseconds; e1: encode chunk 1, g generate, d decode"
    axes.text(LEFT + LONG / 2, top + 0.48, words, fontsize=12, **style.CENTRED)
    return paper


def _strip(axes: Axes, way: Split, top: float, scale: float) -> None:
    first = top + BRACKET
    rows = way.gpus
    axes.text(0.1, first + rows * ROW / 2, way.name, fontsize=12, fontweight="bold", va="center")
    for gpu in range(rows):
        y = first + gpu * ROW
        axes.text(LEFT - 0.1, y + ROW / 2, f"GPU {gpu}", fontsize=11, ha="right", va="center")
        axes.plot([LEFT, LEFT + LONG], [y + ROW / 2] * 2, color=style.LINE, linewidth=0.8, zorder=0)
    for block in way.blocks:
        middle = first + (block.gpu + 0.5) * ROW
        start, end = LEFT + block.start * scale, LEFT + block.end * scale
        style.bar(axes, start, end, middle, ROW * 0.9, **_look(block.chunk))
        label = f"{block.step}{block.chunk}"
        axes.text((start + end) / 2, middle, label, fontsize=10, **style.CENTRED)
    if way.idle:
        look: style.Style = {"fontsize": 11, "color": style.DARK, "bbox": style.white_box(), **style.CENTRED}
        axes.text(LEFT + LONG / 2, first + (rows - 0.5) * ROW, way.idle, **look)
    arrival = (MARKED - 1) * way.period_ms
    out = arrival + way.latency_ms
    latency = f"latency of chunk {MARKED}: {way.latency_ms:g} ms"
    _bracket(axes, LEFT + arrival * scale, LEFT + out * scale, first - 0.1, latency, up=True)
    period = f"period: {way.period_ms:g} ms"
    foot = first + rows * ROW + 0.1
    _bracket(axes, LEFT + out * scale, LEFT + (out + way.period_ms) * scale, foot, period, up=False)


def _look(chunk: int) -> style.Style:
    """Return the style of a block: its number says what the colour says, so it needs no hatch."""
    return {"facecolor": style.chunk_style(chunk)[0], "edgecolor": "black", "linewidth": 0.8}


def _bracket(axes: Axes, start: float, end: float, y: float, text: str, *, up: bool) -> None:
    """Draw a bracket above or below what it spans; its text stands where the paper has room."""
    foot = y + 0.09 if up else y - 0.09
    axes.plot([start, start, end, end], [foot, y, y, foot], color="black", linewidth=1.4)
    beside: style.Style = {"x": end + 0.12, "ha": "left"} if up else {"x": start - 0.12, "ha": "right"}
    axes.text(y=y, s=text, fontsize=11, va="center", **beside)


def _table(ways: Sequence[Split]) -> Table:
    rows = [[way.on, f"{way.latency_ms:g}", f"{way.period_ms:g}"] for way in ways]
    return Table(["on", "latency ms", "period ms"], rows)


def _finding(ways: Sequence[Split]) -> str:
    said = [f"latency {way.latency_ms:g} and period {way.period_ms:g} ms on {way.on}" for way in ways]
    return f"A chunk has {'; '.join(said)}."
