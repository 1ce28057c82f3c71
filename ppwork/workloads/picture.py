"""The side-by-side picture: clean, noisy and denoised, of three frames of a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppwork.records.files import write_whole

if TYPE_CHECKING:
    import torch

TITLES = ("clean", "noisy", "denoised")
TINY_MSE = 1e-10
"""Keeps a perfect result at 100 dB instead of infinity, which JSON does not know."""


def psnr_db(mse: float) -> float:
    """Return the peak signal-to-noise ratio of full scale 1."""
    return float(-10.0 * np.log10(max(mse, TINY_MSE)))


class FrameComparison:
    """Keeps the three frames that the picture shows, as they come by.

    Args:
        total: Frames that the whole run will have; the picture takes one from each third's middle.
    """

    def __init__(self, total: int) -> None:
        self._wanted = sorted({(2 * third + 1) * total // 6 for third in range(3)})
        self._rows: dict[int, tuple[np.ndarray, ...]] = {}

    def offer(self, first: int, *versions: torch.Tensor) -> None:
        """Keep what is wanted of a chunk; in place of a frame that was dropped, the next there is.

        Args:
            first: Place in the run of the chunk's first frame.
            versions: Clean, noisy and denoised, each ``[frame, 3, height, width]`` float32 in [0, 1]
                on the CPU.
        """
        for wanted in [frame for frame in self._wanted if frame < first + len(versions[0])]:
            self._wanted.remove(wanted)
            frame = max(wanted, first)
            picked = (version[frame - first].permute(1, 2, 0) for version in versions)
            self._rows[frame] = tuple(image.numpy().copy() for image in picked)

    def save(self, path: Path) -> None:
        """Draw the picture as PNG, under a temporary name first.

        Collective:
            None.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        high, wide, _ = next(iter(self._rows.values()))[0].shape
        rows = len(self._rows)
        figure = Figure(figsize=(12, rows * (4 * high / wide + 0.35) + 0.1), layout="constrained")
        axes = figure.subplots(rows, 3, squeeze=False)
        for line, (frame, images) in zip(axes, sorted(self._rows.items()), strict=True):
            for axis, title, image in zip(line, TITLES, images, strict=True):
                axis.imshow(image, interpolation="nearest")
                axis.set_axis_off()
                label = f"frame {frame}, {title}"
                if title != "clean":
                    label += f", PSNR {psnr_db(np.square(image - images[0]).mean()):.1f} dB"
                axis.set_title(label, fontsize=12)
        buffer = io.BytesIO()
        FigureCanvasAgg(figure).print_png(buffer)
        write_whole(path, buffer.getvalue())
