"""Measures: against depth, a time for each chunk, the broadcast by the mesh's size, a message by its own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ppwork.errors import PlanError, listed
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = dict[str, dict[int, float]]
"""Bars by name, each a number by depth or chunk."""
STANDS_OUT = 1.5
"""Medians from which on a chunk stands out."""
MEASURES = {"overlap_score": "overlap score", "efficiency": "efficiency"}
MODELS = ((style.VERMILION, "--", "s"), (style.GREEN, ":", "^"))
"""Of the models of a mesh, in order: colour, line and marker."""
SPREAD = 0.4
"""Width over which the chunks of a run stand beside each other, in mesh sizes."""


def depths(summaries: Mapping[int, Mapping[str, Any]], law: Mapping[int, float] | None = None) -> Picture:
    """Return overlap score and efficiency against ``in_flight_depth``.

    Args:
        summaries: The summary of one run per depth.
        law: The efficiency that the law of the period allows, by depth; drawn as a line over the bars.

    Raises:
        PlanError: There is no run, or one was too short to be measured.
    """
    series: Series = {
        title: {depth: _measured(summary[key], depth) for depth, summary in sorted(summaries.items())}
        for key, title in MEASURES.items()
    }
    _refuse_nothing(series)
    scores, shares = ([f"{value:.2f}" for value in values.values()] for values in series.values())
    columns = {**series, **({} if law is None else {"by the law": {d: law[d] for d in sorted(summaries)}})}
    return Picture(
        f"At depth {listed(sorted(summaries))} the overlap score is {listed(scores)}, and the efficiency is "
        f"{listed(shares)}.",
        lambda: _draw_depths(series, law),
        _table("depth", columns, ".2f"),
    )


def _draw_depths(series: Series, law: Mapping[int, float] | None) -> Figure:
    paper, axes = _bars(series)
    axes.set_xlabel("in_flight_depth", fontsize=12)
    axes.set_ylabel("1 is all that is possible", fontsize=12)
    axes.set_ylim(0, 1.2)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    if law is not None:
        heights = [law[depth] for depth in next(iter(series.values()))]
        starts = [float(number) for number in range(len(heights))]
        look: style.Style = {"colors": "black", "linewidth": 2.5, "label": "efficiency by the law"}
        axes.hlines(heights, starts, [start + 0.4 for start in starts], **look)
    style.legend_above(paper, axes)
    return paper


def chunks(series: Mapping[str, Mapping[int, float]], *, what: str) -> Picture:
    """Return a time for each chunk of one or more runs.

    Args:
        series: Milliseconds by chunk index, by the name of the run.
        what: Name of the time, such as ``stage 1``.

    Raises:
        PlanError: There is nothing to draw.
    """
    bars = {name: dict(values) for name, values in series.items()}
    _refuse_nothing(bars)
    sentences = []
    for name, values in bars.items():
        worst = max(values, key=lambda k: values[k])
        times = values[worst] / statistics.median(values.values())
        none, some = "no chunk stands out, the longest took", f"chunk {worst} took longest,"
        sentences.append(f"{name}: {some if times > STANDS_OUT else none} {times:.1f} times the median")
    table = _table("chunk", bars, ".1f", above=f"{what}, milliseconds")
    return Picture("; ".join(sentences) + ".", lambda: _draw_chunks(bars, what), table)


def _draw_chunks(series: Series, what: str) -> Figure:
    paper, axes = _bars(series, numbers=False)
    axes.set_xlabel("chunk", fontsize=12)
    axes.set_ylabel(f"{what}, ms", fontsize=12)
    style.legend_above(paper, axes)
    return paper


def mesh(measured: Mapping[int, Mapping[int, float]], models: Mapping[str, Mapping[int, float]]) -> Picture:
    """Return the time of a chunk's broadcast against the size of the mesh.

    Args:
        measured: Milliseconds by chunk, by mesh size; each chunk is a dot, the median a bar.
        models: Milliseconds that a model says, by mesh size, by its name; larger sizes than were measured,
            too. One or two models.

    Raises:
        PlanError: There is nothing to draw.
    """
    _refuse_nothing(measured)
    medians = {size: statistics.median(times.values()) for size, times in sorted(measured.items())}
    texts = ", ".join(f"{ms:.1f} ms at {size}" for size, ms in medians.items())
    ends = ", ".join(f"{name} {model[max(model)]:.1f} ms at {max(model)}" for name, model in models.items())
    columns = {"measured, median": medians, **{name: dict(model) for name, model in models.items()}}
    return Picture(
        f"Median time of the broadcast by mesh size: {texts}; the models say: {ends}.",
        lambda: _draw_mesh(measured, medians, models),
        _table("mesh size", columns, ".1f", above="broadcast of a chunk, milliseconds"),
    )


def _draw_mesh(
    measured: Mapping[int, Mapping[int, float]],
    medians: Mapping[int, float],
    models: Mapping[str, Mapping[int, float]],
) -> Figure:
    paper = style.figure(9.0, 4.6, layout="constrained")
    axes = paper.subplots()
    look: style.Style = {"color": style.BLUE, "edgecolor": "black", "hatch": "///", "alpha": 0.55}
    axes.bar(list(medians), list(medians.values()), 0.5, label="measured, median", zorder=2, **look)
    dots = [
        (size + SPREAD * (number / len(times) - 0.5), ms)
        for size, times in measured.items()
        for number, ms in enumerate(times.values())
    ]
    look = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 5}
    axes.plot(*zip(*dots, strict=True), zorder=4, label="measured, each chunk", **look)
    for (name, model), (colour, line, shape) in zip(models.items(), MODELS, strict=False):
        look = {"color": colour, "linestyle": line, "linewidth": 2, "marker": shape, "markersize": 8}
        axes.plot(*zip(*sorted(model.items()), strict=True), zorder=3, label=name, **look)
    by_models = [(size, ms) for model in models.values() for size, ms in model.items()]
    sizes = sorted({*medians, *(size for size, _ in by_models)})
    axes.set_xticks(sizes, [f"{n}\n{medians[n]:.1f} ms" if n in medians else f"{n}" for n in sizes])
    axes.set_ylim(0, 1.15 * max(ms for _, ms in (*by_models, *dots)))
    axes.set_xlabel("mesh size, and the median that was measured", fontsize=12)
    axes.set_ylabel("broadcast of a chunk, ms", fontsize=12)
    axes.tick_params(labelsize=12)
    style.open_frame(axes, left=False)
    style.legend_above(paper, axes, columns=2, fontsize=12)
    return paper


def sizes(
    times: Mapping[int, float], *, through: int | None = None, rested_us: float | None = None
) -> Picture:
    """Return the time of a message against its size, and the law that two of the sizes give.

    Args:
        times: Microseconds of one message, by its bytes.
        through: The size that gives the bandwidth; default: the largest. The smallest gives the latency.
        rested_us: Microseconds of a small message after a rest of both ranks: the law with this latency is
            drawn, too.

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
    columns = {"measured": dict(times), "by the law": by_law}
    finding = (
        f"{few:,} B take {latency_us:.0f} us, {many:,} B take {times[many]:.0f} us: a latency of "
        f"{latency_us:.0f} us, a bandwidth of {mb_per_s:.0f} MB/s. Both parts are equal at "
        f"{latency_us * mb_per_s / 1000:.0f} kB."
    )
    if rested_us is not None:
        equal_mb = rested_us * mb_per_s / 1e6
        finding += (
            f" After a rest the latency is {rested_us:.0f} us, and they are equal at {equal_mb:.1f} MB."
        )
    if many != most:
        finding += f" {most:,} B take {times[most]:.0f} us, {times[most] / by_law[most]:.1f} times that law."
    return Picture(
        finding,
        lambda: _draw_sizes(times, latency_us, mb_per_s, rested_us),
        _table("bytes", columns, ".0f", above="one message, microseconds"),
    )


def _draw_sizes(
    times: Mapping[int, float], latency_us: float, mb_per_s: float, rested_us: float | None
) -> Figure:
    paper = style.figure(8.0, 4.2, layout="constrained")
    axes = paper.subplots()
    few, many = min(times), max(times)
    fine = [few * (many / few) ** (step / 100) for step in range(101)]
    look: style.Style = {"color": style.VERMILION, "linewidth": 2, "label": "latency + size / bandwidth"}
    axes.plot(fine, [latency_us + (size - few) / mb_per_s for size in fine], **look)
    if rested_us is not None:
        look |= {"linestyle": "--", "label": "the same, after a rest"}
        axes.plot(fine, [rested_us + (size - few) / mb_per_s for size in fine], **look)
    grey: style.Style = {"color": style.GREY, "linestyle": ":"}
    axes.axvline(latency_us * mb_per_s, label="latency * bandwidth", **grey)
    if rested_us is not None:
        axes.axvline(rested_us * mb_per_s, **grey)
    look = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 7, "label": "measured"}
    axes.plot(*zip(*sorted(times.items()), strict=True), **look)
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
    style.legend_above(paper, axes, columns=2 if rested_us is not None else 0)
    return paper


def whole_decades(values: Iterable[float]) -> tuple[float, float]:
    """Return the powers of ten below and above all values: the ends of an axis."""
    logs = [math.log10(value) for value in values]
    low = math.floor(min(logs))
    return 10.0**low, 10.0 ** max(math.ceil(max(logs)), low + 1)


def _refuse_nothing(series: Mapping[Any, Any]) -> None:
    if not series or not all(series.values()):
        raise PlanError("There is nothing to draw.", check_first="did the runs finish?")


def _table(first: str, columns: Series, digits: str, above: str = "") -> Table:
    keys = sorted({key for values in columns.values() for key in values})
    rows = [
        [str(key), *(f"{v[key]:{digits}}" if key in v else "-" for v in columns.values())] for key in keys
    ]
    return Table([first, *columns], rows, above=above)


def _bars(series: Series, *, numbers: bool = True) -> tuple[Figure, Axes]:
    keys = sorted({key for values in series.values() for key in values})
    paper = style.figure(8.0, 4.2, layout="constrained")
    axes = paper.subplots()
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        at = [keys.index(key) - 0.4 + width * (number + 0.5) for key in values]
        axes.bar(at, list(values.values()), width, label=name, **style.solid(number))
        if numbers:  # at the foot of the bars, clear of the hatches and of the law's line
            for x, value in zip(at, values.values(), strict=True):
                axes.text(x, 0.07, f"{value:.2f}", fontsize=12, bbox=style.white_box(0.2), **style.CENTRED)
    axes.set_xticks(range(len(keys)), [str(key) for key in keys], fontsize=12)
    axes.tick_params(axis="y", labelsize=11)
    style.open_frame(axes, left=False)
    return paper, axes


def _measured(value: float | None, depth: int) -> float:
    if value is None:
        raise PlanError(
            f"The run at depth {depth} has no measures.",
            check_first="has it two chunks or more, and stages of 1 ms or more?",
        )
    return value
