"""The map of the claims: every claim of the catalogue once, in its row, told apart by more than colour."""

from __future__ import annotations

import itertools

import pytest
from claim_reports import report
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from ppwork.claims.catalogue import CLAIMS
from ppwork.claims.claim import Verdict
from ppwork.claims.picture import NOT_RUN, STYLES, by_theme, claims_map, deviations
from ppwork.errors import PlanError

TRIED = [
    report("C01", Verdict.DOES_NOT_HOLD, "Each side waits for the other. " * 8),
    report("T04"),
    report("C04", Verdict.DOES_NOT_HOLD),
    report("C08", Verdict.NOT_TESTABLE),
    report("C03", Verdict.ERROR),
]


def tiles(figure):
    """Facecolor and hatch by id: a tile is the rectangle under the id."""
    axes = figure.axes[0]
    ids = {text.get_position(): text.get_text() for text in axes.texts if text.get_text() in CLAIMS}
    found = {}
    for patch in (p for p in axes.patches if isinstance(p, Rectangle)):
        x, y = patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2
        (claim_id,) = [name for (a, b), name in ids.items() if abs(a - x) < 0.01 and abs(b - y) < 0.01]
        found[claim_id] = patch
    return found


def test_every_claim_has_one_tile_and_looks_as_its_verdict():
    found = tiles(claims_map(TRIED).figure)
    assert set(found) == set(CLAIMS)
    verdicts = {one.id: one.verdict for one in TRIED}
    for claim_id, patch in found.items():
        assert patch.get_hatch() == STYLES[verdicts.get(claim_id, NOT_RUN)].get("hatch")
    assert found["T04"].get_facecolor() != found["C01"].get_facecolor()
    assert found["G08"].get_linestyle() == ":"


def test_styles_differ_in_grey_too():
    def grey(colour):
        if not colour.startswith("#"):
            return {"white": 255}[colour]
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.3 * red + 0.59 * green + 0.11 * blue

    looks = [(s.get("hatch"), s.get("linestyle"), grey(s["facecolor"])) for s in STYLES.values()]
    for (hatch, line, shade), (other, dashed, tone) in itertools.combinations(looks, 2):
        assert hatch != other or line != dashed or abs(shade - tone) > 60


def test_a_row_says_how_many_of_those_with_a_verdict_hold():
    said = {text.get_text() for text in claims_map(TRIED).figure.axes[0].texts}
    assert "1 of 2 hold" in said  # point-to-point: T04, and not C01
    assert "0 of 1 hold" in said
    assert "nothing to say" in said  # collectives: C08 only, which is not testable; and C03, an error
    assert NOT_RUN in said


def test_no_text_lies_on_another_or_leaves_the_figure_and_none_is_small():
    figure = claims_map(TRIED).figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    shown = [*figure.axes[0].texts, *figure.legends[0].get_texts()]
    assert min(text.get_fontsize() for text in shown) >= 11
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    width, height = figure.bbox.width, figure.bbox.height
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for _, box in boxes)
    for (one, box), (other, far) in itertools.combinations(boxes, 2):
        apart = box.x1 <= far.x0, far.x1 <= box.x0, box.y1 <= far.y0, far.y1 <= box.y0
        assert any(apart), (one, other)


def test_the_legend_has_what_is_in_the_picture():
    def labels(reports):
        return [text.get_text() for text in claims_map(reports).figure.legends[0].get_texts()]

    assert labels(TRIED) == [str(name) for name in STYLES]
    assert labels([report("T04")]) == ["holds", NOT_RUN]


def test_the_table_counts_every_claim_once():
    rows = {theme: [int(count) for count in counts] for theme, *counts in claims_map(TRIED).table.rows}
    themes = by_theme(TRIED)
    assert {theme: sum(counts) for theme, counts in rows.items()} == {t: len(c) for t, c in themes.items()}
    assert rows["Point-to-point"][:3] == [1, 1, 0]
    assert rows["Collectives"][:3] == [0, 0, 1]


def test_the_finding_counts_and_names_those_that_do_not_hold():
    said = claims_map(TRIED).finding
    assert said == (
        f"Of {len(CLAIMS)} claims, 5 tried here and 1 found to hold; these do not: C01 (Point-to-point); "
        "C04 (Groups)."
    )
    assert claims_map([report("T04")]).finding.endswith(
        "1 tried here and 1 found to hold; none was found not to."
    )


def test_deviations_say_what_was_claimed_and_what_happened_in_short_lines():
    said = deviations(TRIED)
    assert [line[:8] for line in said.splitlines() if line[:3] in CLAIMS] == ["C01 said", "C04 said"]
    assert "here: Each side waits for the other." in said
    assert max(map(len, said.splitlines())) <= 112
    assert deviations([report("T04")]) == ""


def test_nothing_to_draw_is_refused():
    with pytest.raises(PlanError, match="no claim to show"):
        claims_map([])
