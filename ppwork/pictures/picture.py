"""Pictures: a figure, its table, and the sentence that says what both show.

The only form whose alternative text survives JupyterLab, nbconvert and an untrusted copy is an ``<img>`` in
a ``<figure>``; matplotlib's own PNG output loses it.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_BYTES = 120_000
"""A notebook stays under 300 kB: a larger PNG, such as frames full of noise, is embedded as JPEG."""
MAX_WIDTH = 900
FIGURE_COLOURS = 64
"""A figure has few colours and their edges: a palette makes it a third of its size."""


@dataclass(frozen=True)
class Picture:
    """A figure with its table and its finding, for the end of a cell; drawn when it is first looked at."""

    finding: str
    """Sentence that says what the picture shows; also its alternative text."""
    draw: Callable[[], Figure] | None = None
    """Makes the figure; ``None``: the picture is a file."""
    table: Table | None = None
    """The same numbers as text."""
    file: bytes = b""
    """PNG of a picture that is no figure."""

    @cached_property
    def figure(self) -> Figure:
        """The matplotlib figure.

        Raises:
            PlanError: The picture came from a file.
        """
        if self.draw is None:
            raise PlanError("The picture has no figure.", check_first="is it a file, shown by `pp.show`?")
        import matplotlib as mpl

        # Texts name folders and errors of others: a `$` in one begins no formula.
        with mpl.rc_context({"text.parse_math": False}):
            return self.draw()

    def png(self) -> bytes:
        """Return the picture as a PNG file that carries its finding as description."""
        if self.draw is None:
            return self.file
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=120, metadata={"Description": self.finding})
        return buffer.getvalue()

    def save(self, path: Path | str) -> None:
        """Write ``png`` to a file."""
        Path(path).write_bytes(self.png())

    @cached_property
    def embedded(self) -> tuple[str, bytes]:
        """Kind and bytes of the smaller image that a notebook keeps."""
        return ("png", _with_palette(self.png())) if self.draw is not None else _small(self.file)

    def _repr_html_(self) -> str:
        kind, image = self.embedded
        text = html.escape(self.finding, quote=True)
        data = base64.b64encode(image).decode()
        return (
            f'<figure><img alt="{text}" style="max-width:100%" src="data:image/{kind};base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )

    def __repr__(self) -> str:
        return f"{self.table}\n{self.finding}" if self.table is not None else f"Picture({self.finding!r})"


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
    if not isinstance(picture, str | Path):
        return Picture(alt, lambda: picture)
    try:
        return Picture(alt, file=Path(picture).read_bytes())
    except OSError as error:
        raise PlanError(
            f"The picture {picture} cannot be read: {error.strerror}.", check_first="did the run finish?"
        ) from error


def _with_palette(png: bytes) -> bytes:
    from PIL import Image

    # The octree keeps rare colours, such as those of a legend; a median cut mixes them with their neighbours.
    image = Image.open(io.BytesIO(png)).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(FIGURE_COLOURS, Image.Quantize.FASTOCTREE).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _small(png: bytes) -> tuple[str, bytes]:
    if len(png) <= MAX_BYTES:
        return "png", png
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.thumbnail((MAX_WIDTH, image.height))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=60, optimize=True)
    return "jpeg", buffer.getvalue()
