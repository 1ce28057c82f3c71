"""A slide: its parts, one below the other, and what the speaker says."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from functools import cached_property

from PIL import Image

TALL = 2.1
"""A picture that is not so many times as wide as it is high has its sentence beside it, not below."""
_PICTURE = re.compile(r'<img [^>]*src="data:image/\w+;base64,([^"]+)"')


@dataclass(frozen=True)
class SlidePart:
    """Part of a slide: its title, a text, a picture."""

    html: str

    @cached_property
    def ratio(self) -> float | None:
        """Width of its picture by height; ``None`` without one."""
        if (picture := _PICTURE.search(self.html)) is None:
            return None
        width, height = Image.open(io.BytesIO(base64.b64decode(picture[1]))).size
        return float(width / height)


@dataclass(frozen=True)
class Slide:
    """One slide."""

    parts: list[SlidePart]
    notes: list[str]
    """HTML."""
