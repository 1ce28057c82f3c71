"""What a chunk's way into the mesh costs against the mesh's size, as a picture and a sentence."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from ppwork.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

MEASURED = "#0072B2"
LINES = (("#D55E00", "--", "s"), ("#009E73", ":", "^"))
"""Of the models, in order: colour, of Okabe and Ito, line and marker."""
SPREAD = 0.4
"""The chunks of a run stand beside each other, over so much of the axis."""


def plot_mesh(
    measured: Mapping[int, Mapping[int, float]], models: Mapping[str, Mapping[int, float]]
) -> Figure:
    """Draw the time of the broadcast against the size of the mesh.

    Args:
        measured: Milliseconds by chunk, by mesh size; each chunk is a dot, the median a bar.
        models: Milliseconds that a model says, by mesh size, by its name; larger sizes than were measured,
            too. One or two models.

    Raises:
        PlanError: There is nothing to draw.
    """
    from matplotlib.figure import Figure

    medians = _medians(measured)
    figure = Figure(figsize=(9.0, 4.6), facecolor="white", layout="constrained")
    axes = figure.subplots()
    bars: dict[str, Any] = {"color": MEASURED, "edgecolor": "black", "hatch": "///", "alpha": 0.55}
    axes.bar(list(medians), list(medians.values()), 0.5, label="measured, median", zorder=2, **bars)
    dots = [
        (size + SPREAD * (place / len(chunks) - 0.5), ms)
        for size, chunks in measured.items()
        for place, ms in enumerate(chunks.values())
    ]
    dot: dict[str, Any] = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 5}
    axes.plot(*zip(*dots, strict=True), zorder=4, label="measured, each chunk", **dot)
    for (name, model), (colour, line, shape) in zip(models.items(), LINES, strict=False):
        style: dict[str, Any] = {"color": colour, "linestyle": line, "marker": shape, "markersize": 8}
        axes.plot(*zip(*sorted(model.items()), strict=True), zorder=3, label=name, linewidth=2, **style)
    said = [ms for model in models.values() for ms in model.values()]
    sizes = sorted({*medians, *(size for model in models.values() for size in model)})
    axes.set_xticks(
        sizes, [f"{size}\n{medians[size]:.1f} ms" if size in medians else f"{size}" for size in sizes]
    )
    axes.set_ylim(0, 1.15 * max(*said, *(ms for _, ms in dots)))
    axes.set_xlabel("mesh size, and the median that was measured", fontsize=12)
    axes.set_ylabel("broadcast of a chunk, ms", fontsize=12)
    axes.tick_params(labelsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=12)
    return figure


def mesh_finding(
    measured: Mapping[int, Mapping[int, float]], models: Mapping[str, Mapping[int, float]]
) -> str:
    """State in one sentence what ``plot_mesh`` shows."""
    said = ", ".join(f"{ms:.1f} ms at {size}" for size, ms in _medians(measured).items())
    ends = ", ".join(f"{name} {model[max(model)]:.1f} ms at {max(model)}" for name, model in models.items())
    return f"Median time of the broadcast by mesh size: {said}; the models say: {ends}."


def _medians(measured: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    if not measured or not all(measured.values()):
        raise PlanError("There is nothing to draw.", check_first="did the runs finish?")
    return {size: statistics.median(chunks.values()) for size, chunks in sorted(measured.items())}
