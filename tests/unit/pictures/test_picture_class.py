"""Pictures carry their sentence, and stay small enough for a notebook."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ppwork.errors import PlanError
from ppwork.pictures.picture import MAX_BYTES, MAX_WIDTH, show


def embedded(picture) -> Image.Image:
    found = re.search(r'src="data:image/(png|jpeg);base64,([^"]+)"', picture._repr_html_())
    return Image.open(io.BytesIO(base64.b64decode(found[2])))


def test_a_figure_is_embedded_with_its_sentence_escaped():
    figure = Figure()
    figure.subplots().plot([1, 2])
    picture = show(figure, alt='rank 2 idles > 33 % of "the" time')
    assert 'alt="rank 2 idles &gt; 33 % of &quot;the&quot; time"' in picture._repr_html_()
    assert embedded(picture).format == "PNG"


def test_a_figure_keeps_its_colours_in_half_of_the_bytes():
    from made_runs import made

    from ppwork.pictures.style import COLOURS
    from ppwork.pictures.timelines import timeline

    picture = timeline(made())
    _, image = picture.embedded
    assert len(image) < 0.5 * len(picture.png())
    pixels = np.asarray(embedded(picture).convert("RGB")).reshape(-1, 3).astype(int)
    for colour in ("#BBBBBB", "#555555", *COLOURS[1:6]):
        wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        assert np.abs(pixels - wanted).max(axis=1).min() <= 8, colour


def test_a_large_noisy_png_is_embedded_smaller_and_still_the_same_picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    pixels[:, :600] = 0
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").stat().st_size > MAX_BYTES
    image = embedded(show(tmp_path / "noise.png", alt="left half black"))
    assert image.width == MAX_WIDTH
    values = np.asarray(image)
    assert values[:, :400].mean() < 2
    assert values[:, 500:].mean() > 100


def test_a_picture_without_a_sentence_or_a_file_is_refused(tmp_path):
    with pytest.raises(PlanError, match="alternative text"):
        show(Figure(), alt=" ")
    with pytest.raises(PlanError, match="cannot be read"):
        show(tmp_path / "nothing.png", alt="nothing")


def test_a_picture_saves_itself_with_its_sentence_inside(tmp_path):
    from made_runs import made

    from ppwork.pictures.timelines import timeline

    picture = timeline(made())
    picture.save(tmp_path / "timeline.png")
    with Image.open(tmp_path / "timeline.png") as image:
        assert image.info["Description"] == picture.finding
    assert repr(picture) == f"{picture.table}\n{picture.finding}"


def test_a_picture_of_a_file_is_saved_as_it_was_and_has_no_figure(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    picture = show(tmp_path / "a.png", alt="a dot")
    picture.save(tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()
    with pytest.raises(PlanError, match="has no figure"):
        _ = picture.figure
