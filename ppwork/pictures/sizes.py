"""The time of a message against its size: what was measured, and the law of latency and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Law(NamedTuple):
    """``time = latency + size / bandwidth``, through two sizes that were measured."""

    few: int
    latency_us: float
    mb_per_s: float

    @classmethod
    def of(cls, times: Mapping[int, float], many: int) -> Law | None:
        """Return the law through the smallest size and ``many``; ``None`` if ``many`` took no longer."""
        few = min(times, default=0)
        if not 0 < few < many or many not in times or times[few] >= times[many]:
            return None
        return cls(few, times[few], (many - few) / (times[many] - times[few]))

    def us(self, size: float) -> float:
        """Return the microseconds of a message of this size."""
        return self.latency_us + (size - self.few) / self.mb_per_s

    @property
    def equal_bytes(self) -> float:
        """The size at which latency and bytes cost the same."""
        return self.latency_us * self.mb_per_s

    def __str__(self) -> str:
        return (
            f"{self.latency_us:.0f} us for a message, and {self.mb_per_s:.0f} MB/s for its bytes, which cost "
            f"more from {_size(self.equal_bytes)} on"
        )


def sizes(
    times: Mapping[int, float], *, through: int | None = None, rested: Mapping[int, float] | None = None
) -> Picture:
    """Return the time of a message against its size, and the law that two of the sizes give.

    Args:
        times: Microseconds of one message, by its bytes.
        through: The size that gives the bandwidth; default: the largest. The smallest gives the latency.
        rested: Microseconds of messages after a rest of both ranks, by bytes, a small one and one of
            ``through`` among them: their law is drawn, too, from the one to the other.

    Raises:
        PlanError: Fewer than two sizes, one of them 0 bytes, ``through`` is not among them, or it took no
            longer than the smallest.
    """
    most = max(times, default=0)
    many = most if through is None else through
    if (law := Law.of(times, many)) is None:
        raise PlanError(
            "The times give no law: latency + size / bandwidth.",
            check_first="are there two sizes, and did the larger one take longer?",
        )
    rows = [[str(size), f"{times[size]:.0f}", f"{law.us(size):.0f}"] for size in sorted(times)]
    finding, rested = f"{law}.", rested or {}
    if (after := Law.of(rested, many)) is not None:
        beyond = ", more than was measured" if after.equal_bytes > max(rested) else ""
        finding = f"Without a rest: {law}. After a rest: {after}{beyond}."
    if many != most:
        off = times[most] / law.us(most)
        finding += f" {most:,} B take {times[most]:.0f} us, {off:.1f} times the solid line."
    return Picture(
        finding,
        lambda: _draw_sizes(times, rested, many, law, after),
        Table(["bytes", "measured", "by the law"], rows, above="one message, microseconds"),
    )


def _size(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _draw_sizes(
    times: Mapping[int, float], rested: Mapping[int, float], through: int, law: Law, after: Law | None
) -> Figure:
    paper = style.figure(8.0, 4.2, layout="constrained")
    axes = paper.subplots()
    few, many = min(times), max(times)
    fine = [few * (many / few) ** (step / 100) for step in range(101)]
    look: style.Style = {"color": style.VERMILION, "linewidth": 2, "label": "latency + size / bandwidth"}
    axes.plot(fine, [law.us(size) for size in fine], **look)
    if after is not None:  # nothing was measured beyond ``through`` that it could be held against
        look |= {"color": style.BLUE, "linestyle": "--", "label": "the same, after a rest"}
        near = [after.few, *(size for size in fine if after.few < size < through), through]
        axes.plot(near, [after.us(size) for size in near], **look)
    # Each law has its own size at which both parts are equal, in its colour and with its number; one beyond
    # ``through`` would stand where its law is not drawn.
    for each, color in ((law, style.VERMILION), (after, style.BLUE)):
        if each is None or (each is after and each.equal_bytes > through):
            continue
        label = "equal, after a rest" if each is after else "both parts equal"
        axes.axvline(each.equal_bytes, color=color, linestyle=":", label=label)
        above: style.Style = {"xy": (each.equal_bytes, 1.0), "xycoords": ("data", "axes fraction")}
        above |= {
            "xytext": (0, 3 if each is law else 17),
            "textcoords": "offset points",
            "ha": "center",
            "color": color,
        }
        axes.annotate(_size(each.equal_bytes), fontsize=11, **above)
    look = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 7, "label": "measured"}
    axes.plot(*zip(*sorted(times.items()), strict=True), **look)
    if rested:
        look |= {"label": "measured, after a rest", "markerfacecolor": "white", "color": style.BLUE}
        axes.plot(*zip(*sorted(rested.items()), strict=True), **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(*whole_decades([*times.values(), *rested.values()]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_formatter("")
    axes.set_xlabel("size of the message, bytes", fontsize=12)
    axes.set_ylabel("one way, us", fontsize=12)
    axes.tick_params(labelsize=11)
    style.open_frame(axes, left=False)
    handles, labels = axes.get_legend_handles_labels()
    # In three columns, so that each law stands above its like after a rest.
    paper.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=11)
    return paper


def whole_decades(values: Iterable[float]) -> tuple[float, float]:
    """Return the powers of ten below and above all values: the ends of an axis."""
    logs = [math.log10(value) for value in values]
    low = math.floor(min(logs))
    return 10.0**low, 10.0 ** max(math.ceil(max(logs)), low + 1)
