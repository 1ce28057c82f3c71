"""The map of the claims: a row per theme, a tile per claim, the look of its verdict.

The map shows the whole catalogue, and what was not run is seen to be missing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ppwork.claims.catalogue import CLAIMS
from ppwork.claims.claim import Verdict
from ppwork.claims.report import ClaimReport
from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_RUN = "not run here"
STYLES: dict[str, style.Style] = {
    Verdict.HOLDS: {"facecolor": style.BLUE, "edgecolor": style.BLUE},
    Verdict.DOES_NOT_HOLD: {"facecolor": style.ORANGE, "edgecolor": "black", "hatch": "////"},
    Verdict.NOT_TESTABLE: {"facecolor": style.PALE, "edgecolor": style.DARK},
    Verdict.ERROR: {"facecolor": "white", "edgecolor": style.BAD, "hatch": "xxxx"},
    NOT_RUN: {"facecolor": "white", "edgecolor": style.DARK, "linestyle": ":"},
}
"""Hatch, outline or darkness tells them apart as well as the colour."""
ACROSS = 12
"""Tiles in a row; a theme with more goes on below."""
WIDTH, MARGINS, TILE, GAP = 12.0, (2.9, 0.1, 0.0, 0.62), 0.46, 0.26
"""Of the figure, as ``style.stacked`` takes them, a tile's height, and the gap between themes, in inches."""
HEAD = ("theme", "hold", "do not", "cannot say", "not run")

Verdicts = dict[str, dict[str, str]]
"""Verdict by claim, by theme."""


def claims_map(reports: Iterable[ClaimReport]) -> Picture:
    """Return every claim of the catalogue as a tile in the row of its theme, by verdict.

    Args:
        reports: Claims that were run here; the others are drawn empty.

    Raises:
        PlanError: Nothing was run.
    """
    verdicts = by_theme(reports)
    return Picture(_finding(verdicts), lambda: _draw(verdicts), _table(verdicts))


def _draw(verdicts: Verdicts) -> Figure:
    lines = [(len(claims) + ACROSS - 1) // ACROSS for claims in verdicts.values()]
    height = sum(lines) * TILE + len(lines) * GAP
    paper, (axes,) = style.stacked([height], WIDTH, MARGINS)
    axes.set_xlim(0, ACROSS)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    top = GAP / 2
    for (theme, claims), count in zip(verdicts.items(), lines, strict=True):
        _words(axes, top + TILE / 2, theme, claims)
        for number, (claim_id, verdict) in enumerate(claims.items()):
            _tile(axes, number % ACROSS, top + number // ACROSS * TILE, claim_id, verdict)
        top += count * TILE + GAP
    present = {verdict for claims in verdicts.values() for verdict in claims.values()}
    keys = [style.patch_key(str(name), **look) for name, look in STYLES.items() if name in present]
    style.legend_below(paper, keys, inches=0.08, ncols=len(STYLES), handleheight=1.2)
    return paper


def _words(axes: Axes, y: float, theme: str, claims: dict[str, str]) -> None:
    """Write the theme's name and how many of those with a verdict hold, left of the tiles."""
    verdicts = list(claims.values())
    holding = verdicts.count(Verdict.HOLDS)
    judged = holding + verdicts.count(Verdict.DOES_NOT_HOLD)
    count = f"{holding} of {judged} hold" if judged else "nothing to say"
    count = NOT_RUN if set(verdicts) == {NOT_RUN} else count
    style.beside(axes, style.margin(axes), y, theme, va="bottom", fontsize=12, fontweight="bold")
    style.beside(axes, style.margin(axes), y + 0.03, count, va="top", fontsize=11)


def _tile(axes: Axes, x: float, y: float, claim_id: str, verdict: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, TILE - 0.08, linewidth=1.2, **STYLES[verdict]))
    look: style.Style = {
        "color": "white" if verdict == Verdict.HOLDS else "black",
        "fontweight": "normal" if verdict == NOT_RUN else "bold",
    }
    if "hatch" in STYLES[verdict]:
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(x + 0.5, y + TILE / 2, claim_id, fontsize=11, **look, **style.CENTRED)


def by_theme(reports: Iterable[ClaimReport]) -> Verdicts:
    """Return, for every theme of the catalogue, the verdict of each claim; ``NOT_RUN`` where there is none.

    Raises:
        PlanError: There is no report.
    """
    verdicts = {report.id: report.verdict for report in reports}
    if not verdicts:
        raise PlanError("There is no claim to show.", check_first="were any run?")
    themes: Verdicts = {}
    for claim in CLAIMS.values():
        themes.setdefault(claim.theme, {})[claim.id] = verdicts.get(claim.id, NOT_RUN)
    return themes


def _table(themes: Verdicts) -> Table:
    rows = []
    for theme, claims in themes.items():
        verdicts = list(claims.values())
        counts = [verdicts.count(verdict) for verdict in (Verdict.HOLDS, Verdict.DOES_NOT_HOLD, NOT_RUN)]
        holding, failing, absent = counts
        rows.append([theme, *map(str, (holding, failing, len(verdicts) - sum(counts), absent))])
    return Table(HEAD, rows)


def _finding(themes: Verdicts) -> str:
    verdicts = [verdict for claims in themes.values() for verdict in claims.values()]
    tried = len(verdicts) - verdicts.count(NOT_RUN)
    text = f"Of {len(verdicts)} claims, {tried} tried here and {verdicts.count(Verdict.HOLDS)} found to hold"
    otherwise = {
        theme: [claim_id for claim_id, verdict in claims.items() if verdict == Verdict.DOES_NOT_HOLD]
        for theme, claims in themes.items()
    }
    names = "; ".join(f"{', '.join(ids)} ({theme})" for theme, ids in otherwise.items() if ids)
    return f"{text}; these do not: {names}." if names else f"{text}; none was found not to."


def deviations(reports: Iterable[ClaimReport]) -> str:
    """Return the claims that do not hold here: the statement, and what was seen instead."""
    lines = []
    for report in reports:
        if report.verdict is Verdict.DOES_NOT_HOLD:
            for head, text in ((f"{report.id} said", report.statement), ("    here", report.observed)):
                wrapped = textwrap.wrap(text, 100, subsequent_indent=" " * 10)
                lines.append(f"{head}: " + "\n".join(wrapped))
    return "\n".join(lines)
