"""A small convolutional autoencoder: frames to latents, four times smaller in each direction, and back.

It is near-lossless on purpose: 48 channels hold all the numbers of a 4x4x3 patch, so what it does not
pass on is little, and noise goes through it too. Denoising is the mesh's work, not the decoder's.

Shape letters: N frames, C channels, H and W pixels, h and w latents.
"""

# ruff: noqa: N803, N812  names end in the shape; F is the usual name

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ppwork.workloads.spec import ModelSpec

GAIN = 4.0
"""Pixels in [0, 1] become about unit-sized numbers: ``(x - 0.5) * GAIN``."""


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a skip."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(channels, hidden, 3, padding=1)
        self.narrow = nn.Conv2d(hidden, channels, 3, padding=1)
        nn.init.normal_(self.narrow.weight, std=0.005)
        nn.init.zeros_(self.narrow.bias)  # type: ignore[arg-type]  # it has a bias

    def forward(self, x_NChw: torch.Tensor) -> torch.Tensor:
        """Return the input plus what the convolutions add; same shape and dtype."""
        narrowed: torch.Tensor = self.narrow(F.gelu(self.widen(x_NChw)))
        return x_NChw + narrowed


class Autoencoder(nn.Module):
    """Encoder and decoder of rank 0.

    Args:
        spec: Sizes; ``codec_stride``, ``latent_channels`` and ``codec_hidden`` are used.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        stride, channels, hidden = spec.codec_stride, spec.latent_channels, spec.codec_hidden
        self.spec = spec
        self.patch = nn.Conv2d(3, channels, stride, stride=stride)
        self.encoder = ResidualBlock(channels, hidden)
        self.decoder = nn.Sequential(ResidualBlock(channels, hidden), ResidualBlock(channels, hidden))
        self.unpatch = nn.ConvTranspose2d(channels, 3, stride, stride=stride)
        # Both start as one rotation and its inverse, so training starts from (almost) the identity.
        nn.init.orthogonal_(self.patch.weight.data.view(channels, -1))
        with torch.no_grad():
            self.unpatch.weight.copy_(self.patch.weight)
        for conv in (self.patch, self.unpatch):
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]  # both have a bias

    def encode(self, frames_NCHW: torch.Tensor) -> torch.Tensor:
        """Encode frames one by one (no frame sees another).

        Args:
            frames_NCHW: ``[frame, 3, height, width]`` float, about [0, 1] and not clamped; height and
                width are multiples of the stride.

        Returns:
            ``[frame, latent_channels, height / stride, width / stride]``, same dtype and device.
        """
        x = (frames_NCHW - 0.5) * GAIN
        x = x.contiguous(memory_format=torch.channels_last)
        latents: torch.Tensor = self.encoder(self.patch(x))
        return latents

    def decode(self, latents_NChw: torch.Tensor) -> torch.Tensor:
        """Decode latents one frame at a time.

        Args:
            latents_NChw: ``[frame, latent_channels, h, w]`` float.

        Returns:
            ``[frame, 3, h * stride, w * stride]``, about [0, 1] and not clamped.
        """
        x = latents_NChw.contiguous(memory_format=torch.channels_last)
        pixels: torch.Tensor = self.unpatch(self.decoder(x))
        return pixels / GAIN + 0.5

    def forward(self, frames_NCHW: torch.Tensor) -> torch.Tensor:
        """Return the frames after encoding and decoding."""
        return self.decode(self.encode(frames_NCHW))
