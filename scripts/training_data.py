"""Random moving crops to train the denoiser on: the clip's first frames and still pictures from packages.

The clip's last 32 frames (100 to 131) are never read into the training set, and frames 90 to 99 are kept for
validation. Of the unseen clips used for evaluation nothing is read here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  the usual name

from ppwork.workloads.clip import read_frames

TRAIN_FRAMES = 90
VALIDATION_FRAMES = range(90, 100)
CLIP_HEIGHTS = (96, 112, 144, 192, 288)
"""The clip is offered at these heights, so that crops hold much detail and little."""
CLIP_SHARE = 0.55
FRAMES = 8
SIGMAS = (5.0, 50.0)
SKIMAGE_PICTURES = (
    "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png",
    "motorcycle_right.png", "retina.jpg", "rocket.jpg", "ihc.png", "camera.png", "brick.png", "grass.png",
    "gravel.png", "coins.png", "moon.png",
)  # fmt: skip


class Sampler:
    """Draws batches of clean crops.

    Args:
        clip: The original clip (its first 90 frames are read).
        seed: Of every random choice.
        crop: Side of a crop in pixels.
    """

    def __init__(self, clip: Path, seed: int, crop: int) -> None:
        self.random = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.crop = crop
        self.videos = [read_clip(clip, height, range(TRAIN_FRAMES)) for height in CLIP_HEIGHTS]
        self.stills = still_pictures(smallest=2 * crop + 32)

    def batch(self, size: int) -> torch.Tensor:
        """Return ``[size, FRAMES, 3, crop, crop]`` float32 in [0, 1]."""
        crops = [self._video() if self.random.random() < CLIP_SHARE else self._still() for _ in range(size)]
        return torch.stack([self._colour(self._turn(crop)) for crop in crops])

    def spoil(self, clean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add noise of a random level per crop; return the noisy crops and the levels (1/255)."""
        low, high = np.log(SIGMAS[0]), np.log(SIGMAS[1])
        sigma = torch.exp(torch.rand(len(clean), generator=self.generator) * (high - low) + low)
        usual = torch.rand(len(clean), generator=self.generator) < 0.4
        sigma = torch.where(usual, torch.tensor(25.0), sigma)
        noise = torch.randn(clean.shape, generator=self.generator)
        return clean + noise * (sigma / 255.0).view(-1, 1, 1, 1, 1), sigma

    def _video(self) -> torch.Tensor:
        video = self.videos[self.random.integers(len(self.videos))]
        step = int(self.random.choice([1, 1, 1, 2]))
        frames, _, high, wide = video.shape
        first = self.random.integers(frames - (FRAMES - 1) * step)
        top, left = (
            self.random.integers(high - self.crop + 1), self.random.integers(wide - self.crop + 1)
        )  # fmt: skip
        cut = video[first : first + FRAMES * step : step]
        cut = cut[:, :, top : top + self.crop, left : left + self.crop].float() / 255.0
        return cut.flip(0) if self.random.random() < 0.5 else cut

    def _still(self) -> torch.Tensor:
        """Pan over a still picture, in half pixels, sometimes with another picture's piece moving over it."""
        scene = self._pan()
        if self.random.random() < 0.4:  # an occluding object with its own motion
            other, side = self._pan(), self.crop
            centre, speed = self.random.uniform(0, side, 2), self.random.normal(0, 1.5, 2)
            radii = self.random.uniform(0.12, 0.4, 2) * side
            y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
            for t in range(FRAMES):
                cy, cx = centre + speed * t
                inside = ((y - cy) / radii[0]) ** 2 + ((x - cx) / radii[1]) ** 2 < 1
                scene[t] = torch.where(inside, other[t], scene[t])
        return scene

    def _pan(self) -> torch.Tensor:
        picture = self.stills[self.random.integers(len(self.stills))]
        side = 2 * self.crop
        velocity = self.random.normal(0, 2.0, 2) if self.random.random() < 0.85 else np.zeros(2)
        room = np.array(picture.shape[1:]) - side
        path = np.arange(FRAMES)[:, None] * velocity + self.random.uniform(0, 1, 2) * room
        path = np.clip(np.round(path), 0, room).astype(int)
        cuts = torch.stack([picture[:, y : y + side, x : x + side] for y, x in path]).float()
        return F.avg_pool2d(cuts, 2) / 255.0

    def _turn(self, crop: torch.Tensor) -> torch.Tensor:
        turned = torch.rot90(crop, int(self.random.integers(4)), (2, 3))
        return turned.flip(3) if self.random.random() < 0.5 else turned

    def _colour(self, crop: torch.Tensor) -> torch.Tensor:
        if self.random.random() < 0.5:
            crop = crop[:, torch.from_numpy(self.random.permutation(3))]
        if self.random.random() < 0.15:
            crop = crop.mean(1, keepdim=True).expand_as(crop)
        gain, offset = self.random.uniform(0.75, 1.25), self.random.uniform(-0.1, 0.1)
        return ((crop - 0.5) * gain + 0.5 + offset).clamp(0, 1)


def read_clip(clip: Path, height: int, frames: range) -> torch.Tensor:
    """Return ``[frame, 3, height, height * 5 / 3]`` uint8 of some frames of the clip."""
    width = height * 5 // 3
    read = read_frames(clip, width, height, frames.start, len(frames))
    return torch.from_numpy(np.stack(list(read))).permute(0, 3, 1, 2).contiguous()


def still_pictures(smallest: int) -> list[torch.Tensor]:
    """Return the packages' pictures, each also at smaller scales, as ``[3, height, width]`` uint8."""
    import skimage.data
    import sklearn.datasets
    from PIL import Image

    skimage_dir = Path(skimage.data.__file__).parent
    sklearn_dir = Path(sklearn.datasets.__file__).parent / "images"
    paths = [skimage_dir / name for name in SKIMAGE_PICTURES]
    paths += [sklearn_dir / "china.jpg", sklearn_dir / "flower.jpg"]
    pictures = []
    for path in paths:
        picture = Image.open(path).convert("RGB")
        for scale in (1.0, 0.7, 0.5):
            size = round(picture.width * scale), round(picture.height * scale)
            if min(size) >= smallest:
                small = picture.resize(size, Image.Resampling.BOX) if scale < 1 else picture
                pictures.append(torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1))
    return pictures
