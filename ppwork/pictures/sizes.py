"""The time of a message against its size: what was measured, and the law of latency and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sizes(
    times: Mapping[int, float], *, through: int | None = None, rested_us: float | None = None
) -> Picture:
    """Return the time of a message against its size, and the law that two of the sizes give.

    Args:
        times: Microseconds of one message, by its bytes.
        through: The size that gives the bandwidth; default: the largest. The smallest gives the latency.
        rested_us: Microseconds of a small message after a rest of both ranks: the law with this latency is
            drawn, too, up to ``through``: nothing was measured beyond it that it could be held against.

    Raises:
        PlanError: Fewer than two sizes, one of them 0 bytes, ``through`` is not among them, or it took no
            longer than the smallest.
    """
    few, most = min(times, default=0), max(times, default=0)
    many = most if through is None else through
    if not 0 < few < many or many not in times or times[few] >= times[many]:
        raise PlanError(
            "The times give no law: latency + size / bandwidth.",
            check_first="are there two sizes, and did the larger one take longer?",
        )
    latency_us = times[few]
    mb_per_s = (many - few) / (times[many] - latency_us)
    by_law = {size: latency_us + (size - few) / mb_per_s for size in sorted(times)}
    rows = [[str(size), f"{times[size]:.0f}", f"{us:.0f}"] for size, us in by_law.items()]
    finding = (
        f"{few:,} B take {latency_us:.0f} us, {many:,} B take {times[many]:.0f} us: a latency of "
        f"{latency_us:.0f} us, a bandwidth of {mb_per_s:.0f} MB/s. Both parts are equal at "
        f"{latency_us * mb_per_s / 1000:.0f} kB."
    )
    if rested_us is not None:
        equal_mb = rested_us * mb_per_s / 1e6
        far = "they are equal" if equal_mb * 1e6 <= many else "they would be equal only"
        finding += f" After a rest the latency is {rested_us:.0f} us, and {far} at {equal_mb:.1f} MB."
    if many != most:
        off = times[most] / by_law[most]
        finding += f" {most:,} B take {times[most]:.0f} us, {off:.1f} times the solid line."
    return Picture(
        finding,
        lambda: _draw_sizes(times, many, latency_us, mb_per_s, rested_us),
        Table(["bytes", "measured", "by the law"], rows, above="one message, microseconds"),
    )


def _draw_sizes(
    times: Mapping[int, float], through: int, latency_us: float, mb_per_s: float, rested_us: float | None
) -> Figure:
    paper = style.figure(8.0, 4.2, layout="constrained")
    axes = paper.subplots()
    few, many = min(times), max(times)
    fine = [few * (many / few) ** (step / 100) for step in range(101)]
    look: style.Style = {"color": style.VERMILION, "linewidth": 2, "label": "latency + size / bandwidth"}
    axes.plot(fine, [latency_us + (size - few) / mb_per_s for size in fine], **look)
    if rested_us is not None:
        look |= {"color": style.BLUE, "linestyle": "--", "label": "the same, after a rest"}
        near = [size for size in fine if size < through] + [through]
        axes.plot(near, [rested_us + (size - few) / mb_per_s for size in near], **look)
    # Each law has its own size at which both parts are equal, in its colour and with its number.
    laws = {latency_us: style.VERMILION, **({} if rested_us is None else {rested_us: style.BLUE})}
    for law_us, color in laws.items():
        if law_us != latency_us and law_us * mb_per_s > through:
            continue  # beyond its line
        equal, label = law_us * mb_per_s, "latency * bandwidth" if law_us == latency_us else ""
        axes.axvline(equal, color=color, linestyle=":", label=label)
        above: style.Style = {"xy": (equal, 1.0), "xycoords": ("data", "axes fraction"), "fontsize": 11}
        text = f"{equal / 1e6:.1f} MB" if equal >= 1e5 else f"{equal / 1e3:.0f} kB"
        axes.annotate(text, xytext=(0, 3), textcoords="offset points", ha="center", color=color, **above)
    look = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 7, "label": "measured"}
    axes.plot(*zip(*sorted(times.items()), strict=True), **look)
    if rested_us is not None:
        look |= {"label": "measured, after a rest", "markerfacecolor": "white", "color": style.BLUE}
        axes.plot([few], [rested_us], **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(*whole_decades(times.values()))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_formatter("")
    axes.set_xlabel("size of the message, bytes", fontsize=12)
    axes.set_ylabel("one way, us", fontsize=12)
    axes.tick_params(labelsize=11)
    style.open_frame(axes, left=False)
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if rested_us is not None else len(labels)
    paper.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=11)
    return paper


def whole_decades(values: Iterable[float]) -> tuple[float, float]:
    """Return the powers of ten below and above all values: the ends of an axis."""
    logs = [math.log10(value) for value in values]
    low = math.floor(min(logs))
    return 10.0**low, 10.0 ** max(math.ceil(max(logs)), low + 1)
