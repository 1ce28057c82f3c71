"""Python's garbage collector, kept away from what is imported once and stays.

torch is some 165,000 objects. Collections while they are made, and the full ones at the exit of the process,
look at each of them and free none: a third of the time that a rank lives around its work. In mid-run a full
collection is a pause of more than 100 ms, longer than most chunks.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing inside, and never look again at what is there at the end.

    Objects are still freed when nobody refers to them. Only cycles made inside, or before, stay for good.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
