"""Windows over space and what attention inside them needs to know: rotary positions and a mask.

Shape letters as in ``ppwork.workloads.dit``: B streams, T frames of the chunk, S cached and new frames,
C channels, h and w latents, W windows (of all streams), P places in a window, H heads, D channels per head.
"""

# ruff: noqa: N803  names end in the shape

from __future__ import annotations

from typing import NamedTuple

import torch

TIME_RATES = (0.7, 0.2)
"""Radians per frame of the rotary positions; one pair of a head's channels each."""
SPACE_RATES = (0.8, 0.3)
"""Radians per latent, down and across; one pair of a head's channels each."""
FORBIDDEN = -1e4
"""Added to a score that must not count; finite, so that no row can become NaN."""


class Geometry(NamedTuple):
    """Positions and mask that all blocks of one forward share.

    Attributes:
        rotation: Rotary table ``[S, P, 1, D / 2]`` complex64 for keys; its last T entries are the
            queries'.
        mask: ``[W, 1, T * P, S * P]``, added to the scores of shifted windows, which hold latents from
            opposite borders after the roll.
    """

    rotation: torch.Tensor
    mask: torch.Tensor


def to_windows(x_BThwC: torch.Tensor, window: int) -> torch.Tensor:
    """Cut ``[B, T, h, w, C]`` into ``[W, T, P, C]``."""
    b, t, h, w, c = x_BThwC.shape
    x = x_BThwC.view(b, t, h // window, window, w // window, window, c)
    return x.permute(0, 2, 4, 1, 3, 5, 6).reshape(-1, t, window * window, c)


def from_windows(x_WTPC: torch.Tensor, window: int, shape: torch.Size) -> torch.Tensor:
    """Put ``[W, T, P, C]`` back together as ``[B, T, h, w, C]``."""
    b, t, h, w, _ = shape
    x = x_WTPC.view(b, h // window, w // window, t, window, window, -1)
    return x.permute(0, 3, 1, 4, 2, 5, 6).reshape(b, t, h, w, -1)


def rotate(x_WSPHD: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turn each pair of neighbouring channels by the table's angle; the result is float32."""
    pairs = torch.view_as_complex(x_WSPHD.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def make_geometry(
    window: int, *, frames: int, past: int, size: tuple[int, int], streams: int, device: torch.device
) -> Geometry:
    """Return what all blocks of one forward share.

    Args:
        window: Latents per window, in each direction.
        frames: Of the chunk (T).
        past: Frames in the cache; S is their sum.
        size: Height and width in latents.
        streams: B.
        device: Where the tensors are made.
    """
    axis = torch.arange(window, device=device)
    times = torch.arange(-past, frames, device=device)[:, None, None]
    positions = ((times, TIME_RATES), (axis[:, None], SPACE_RATES), (axis, SPACE_RATES))
    shape = (past + frames, window, window)
    angles = torch.stack(
        [position.expand(shape) * rate for position, rates in positions for rate in rates], dim=-1
    ).reshape(past + frames, window * window, 1, -1)
    # After the roll, the last window of a row or column holds latents of both borders.
    half = window // 2
    rows, columns = ((torch.arange(side, device=device) >= side - half).long() for side in size)
    region = (rows[:, None] * 2 + columns).view(1, 1, *size, 1)
    groups = to_windows(region, window).view(-1, window * window)
    apart = (groups[:, :, None] != groups[:, None, :]).float() * FORBIDDEN
    mask = apart.repeat(streams, frames, past + frames)[:, None]
    return Geometry(torch.polar(torch.ones_like(angles), angles), mask)
