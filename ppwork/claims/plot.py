"""What came of the claims, as a map, a table and a sentence: a row per theme, a tile per claim.

The map shows the whole catalogue, and what was not run is seen to be missing.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from ppwork.claims.catalogue import CLAIMS
from ppwork.claims.claim import Verdict
from ppwork.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppwork.claims.runs import ClaimReport

NOT_RUN = "not run here"
STYLES: dict[str, dict[str, Any]] = {
    Verdict.HOLDS: {"facecolor": "#0072B2", "edgecolor": "#0072B2"},
    Verdict.DOES_NOT_HOLD: {"facecolor": "#E69F00", "edgecolor": "black", "hatch": "////"},
    Verdict.NOT_TESTABLE: {"facecolor": "#DDDDDD", "edgecolor": "#555555"},
    Verdict.ERROR: {"facecolor": "white", "edgecolor": "#D55E00", "hatch": "xxxx"},
    NOT_RUN: {"facecolor": "white", "edgecolor": "#555555", "linestyle": ":"},
}
"""Okabe and Ito's colours; hatch, outline or darkness tells them apart as well."""
ON_DARK = (Verdict.HOLDS,)
ACROSS = 12
"""Tiles in a row; a theme with more goes on below."""
WIDTH, LEFT, TILE, GAP, BOTTOM = 12.0, 2.9, 0.46, 0.26, 0.62
"""Of the figure, its margin, a tile's height, the gap between themes and the legend, in inches."""


def plot_claims(reports: Iterable[ClaimReport]) -> Figure:
    """Draw every claim of the catalogue as a tile in the row of its theme, by verdict.

    Args:
        reports: What was run here; claims that were not are drawn empty.

    Raises:
        PlanError: Nothing was run.
    """
    from matplotlib.figure import Figure

    found = by_theme(reports)
    lines = [(len(claims) + ACROSS - 1) // ACROSS for claims in found.values()]
    height = sum(lines) * TILE + len(lines) * GAP + BOTTOM
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, (WIDTH - LEFT - 0.1) / WIDTH, 1 - BOTTOM / height))
    axes.set_xlim(0, ACROSS)
    axes.set_ylim(height - BOTTOM, 0)
    axes.set_axis_off()
    below = GAP / 2
    for (theme, claims), count in zip(found.items(), lines, strict=True):
        _words(axes, below + TILE / 2, theme, claims)
        for place, (claim_id, verdict) in enumerate(claims.items()):
            _tile(axes, place % ACROSS, below + place // ACROSS * TILE, claim_id, verdict)
        below += count * TILE + GAP
    _legend(figure, height, found)
    return figure


def _words(axes: Axes, y: float, theme: str, claims: dict[str, str]) -> None:
    """The theme's name and how many of those with a verdict hold, left of the tiles."""
    left = -LEFT / (WIDTH - LEFT - 0.1) * ACROSS * 0.98
    verdicts = list(claims.values())
    holding = verdicts.count(Verdict.HOLDS)
    judged = holding + verdicts.count(Verdict.DOES_NOT_HOLD)
    said = f"{holding} of {judged} hold" if judged else "nothing to say"
    said = NOT_RUN if set(verdicts) == {NOT_RUN} else said
    axes.text(left, y, theme, va="bottom", fontsize=12, fontweight="bold")
    axes.text(left, y + 0.03, said, va="top", fontsize=11)


def _tile(axes: Axes, x: float, y: float, claim_id: str, verdict: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, TILE - 0.08, linewidth=1.2, **STYLES[verdict]))
    dark = verdict in ON_DARK
    box = (
        None if not STYLES[verdict].get("hatch") else {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    )
    axes.text(
        x + 0.5,
        y + TILE / 2,
        claim_id,
        ha="center",
        va="center",
        fontsize=11,
        color="white" if dark else "black",
        fontweight="bold" if verdict != NOT_RUN else "normal",
        bbox=box,
    )


def _legend(figure: Figure, height: float, found: dict[str, dict[str, str]]) -> None:
    from matplotlib.patches import Patch

    present = {verdict for claims in found.values() for verdict in claims.values()}
    figure.legend(
        handles=[Patch(label=str(name), **style) for name, style in STYLES.items() if name in present],
        loc="lower center",
        bbox_to_anchor=(0.5, 0.08 / height),
        ncols=len(STYLES),
        frameon=False,
        fontsize=11,
        handleheight=1.2,
    )


def by_theme(reports: Iterable[ClaimReport]) -> dict[str, dict[str, str]]:
    """Return, for every theme of the catalogue, the verdict of each claim; ``NOT_RUN`` where there is none.

    Raises:
        PlanError: There is no report.
    """
    verdicts = {report.id: report.verdict for report in reports}
    if not verdicts:
        raise PlanError("There is no claim to show.", check_first="were any run?")
    found: dict[str, dict[str, str]] = {}
    for claim in CLAIMS.values():
        found.setdefault(claim.theme, {})[claim.id] = verdicts.get(claim.id, NOT_RUN)
    return found


def claims_table(reports: Iterable[ClaimReport]) -> str:
    """Return the map as text, a line per theme: how many claims hold, do not, or were not run."""
    lines = [f"{'theme':<24} {'hold':>5} {'do not':>7} {'cannot say':>11} {'not run':>8}"]
    for theme, claims in by_theme(reports).items():
        verdicts = list(claims.values())
        counts = [verdicts.count(verdict) for verdict in (Verdict.HOLDS, Verdict.DOES_NOT_HOLD)]
        other = len(verdicts) - sum(counts) - verdicts.count(NOT_RUN)
        row = f"{theme:<24} {counts[0]:>5} {counts[1]:>7} {other:>11} {verdicts.count(NOT_RUN):>8}"
        lines.append(row)
    return "\n".join(lines)


def deviations(reports: Iterable[ClaimReport]) -> str:
    """Return the claims that do not hold here: what was said, and what was seen instead."""
    said = []
    for report in reports:
        if report.verdict is Verdict.DOES_NOT_HOLD:
            for head, text in ((f"{report.id} said", report.statement), ("    here", report.observed)):
                wrapped = textwrap.wrap(text, 100, subsequent_indent=" " * 10)
                said.append(f"{head}: " + "\n".join(wrapped))
    return "\n".join(said)


def claims_finding(reports: Iterable[ClaimReport]) -> str:
    """State in one sentence how many claims were tried, how many hold, and which do not."""
    found = by_theme(reports)
    verdicts = [verdict for claims in found.values() for verdict in claims.values()]
    tried = len(verdicts) - verdicts.count(NOT_RUN)
    said = f"Of {len(verdicts)} claims, {tried} tried here and {verdicts.count(Verdict.HOLDS)} found to hold"
    otherwise = {
        theme: [claim_id for claim_id, verdict in claims.items() if verdict == Verdict.DOES_NOT_HOLD]
        for theme, claims in found.items()
    }
    listed = [f"{', '.join(ids)} ({theme})" for theme, ids in otherwise.items() if ids]
    return f"{said}; these do not: {'; '.join(listed)}." if listed else f"{said}; none was found not to."
