"""Pictures in notebooks, with the sentence that says what they show.

The only form whose alternative text survives JupyterLab, nbconvert and an untrusted copy is an ``<img>`` in
a ``<figure>``; matplotlib's own PNG output loses it.
"""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppwork.errors import PlanError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_BYTES = 120_000
"""A notebook stays under 300 kB: a larger PNG, such as frames full of noise, is embedded as JPEG."""
MAX_WIDTH = 900
FIGURE_COLOURS = 64
"""A figure has few colours and their edges: a palette makes it a third of its size."""


@dataclass(frozen=True)
class Picture:
    """A picture that renders itself in a notebook."""

    data: bytes
    alt: str
    kind: str = "png"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.data).decode()
        text = html.escape(self.alt, quote=True)
        return (
            f'<figure><img alt="{text}" style="max-width:100%" src="data:image/{self.kind};base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )

    def __repr__(self) -> str:
        return f"Picture({self.alt!r})"


def show(picture: Figure | Path | str, *, alt: str) -> Picture:
    """Return a picture for the end of a cell.

    Args:
        picture: A matplotlib figure, or the path of a PNG.
        alt: The finding in one sentence, for those who cannot see it.

    Raises:
        PlanError: ``alt`` is empty, or the file cannot be read.
    """
    if not alt.strip():
        raise PlanError("A picture was shown without alternative text.", check_first="say what it shows")
    if isinstance(picture, str | Path):
        try:
            return _small(Path(picture).read_bytes(), alt)
        except OSError as error:
            raise PlanError(
                f"The picture {picture} cannot be read: {error.strerror}.", check_first="did the run finish?"
            ) from error
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    return Picture(_with_palette(buffer), alt)


def _with_palette(png: io.BytesIO) -> bytes:
    from PIL import Image

    # The octree keeps rare colours, such as those of a legend; a median cut mixes them with their neighbours.
    image = Image.open(png).convert("RGB").quantize(FIGURE_COLOURS, Image.Quantize.FASTOCTREE)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _small(png: bytes, alt: str) -> Picture:
    if len(png) <= MAX_BYTES:
        return Picture(png, alt)
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.thumbnail((MAX_WIDTH, image.height))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=85, optimize=True)
    return Picture(buffer.getvalue(), alt, "jpeg")
