"""A small causal video DiT: it denoises a chunk of latent frames, seeing a rolling cache of the past.

Each block is windowed attention over space and time and then a convolutional MLP, both modulated by
the noise level (adaLN with one shared conditioning). Attention heads and the MLP's channels are split
over the mesh; each block sums over it exactly twice, after the two output projections.

Attention is bidirectional within a chunk and sees the cached keys and values of the last frames before
it, never a later chunk. Keys are cached before rotation: only time *differences* enter, with the
chunk's first frame as zero, so a stream may run for ever.

Shape letters: B streams, T frames of the chunk, S cached and new frames, C channels, h and w latents,
W windows (of all streams), P places in a window, H heads on this rank, D channels per head.
"""

# ruff: noqa: N803, N806, N812  names end in the shape; F is the usual name

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ppwork.stage import TensorParallel
from ppwork.workloads.spec import ModelSpec
from ppwork.workloads.windows import Geometry, from_windows, make_geometry, rotate, to_windows

SIGMA_FEATURES = 16


class KVCache(NamedTuple):
    """Keys (not rotated) and values of one block's last frames: ``[W, S, P, H, D]`` each."""

    keys: torch.Tensor
    values: torch.Tensor


class Attention(nn.Module):
    """Windowed attention over space and time; this rank's heads only."""

    def __init__(self, spec: ModelSpec, tp: TensorParallel, *, shift: int) -> None:
        super().__init__()
        self.spec, self.tp, self.shift = spec, tp, shift
        inner = spec.heads * spec.head_dim
        self.qkv = nn.Linear(spec.width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, spec.width, bias=False)

    def shard(self) -> None:
        """Keep this rank's heads of the full weights."""
        spec, share = self.spec, self.spec.heads // self.tp.size
        mine = slice(self.tp.group_rank * share, (self.tp.group_rank + 1) * share)
        qkv = self.qkv.weight.view(3, spec.heads, spec.head_dim, spec.width)[:, mine]
        out = self.out.weight.view(spec.width, spec.heads, spec.head_dim)[:, mine]
        self.qkv.weight = nn.Parameter(qkv.reshape(-1, spec.width).clone())
        self.out.weight = nn.Parameter(out.reshape(spec.width, -1).clone())

    def forward(
        self, x_BThwC: torch.Tensor, geometry: Geometry, cache: KVCache | None
    ) -> tuple[torch.Tensor, KVCache]:
        """Attend to the cached frames and to the chunk.

        Returns:
            What to add to the stream, ``[B, T, h, w, C]``, and the trimmed cache with the chunk in it.

        Collective:
            One all-reduce over the mesh; none at mesh size 1.
        """
        window, dim = self.spec.window, self.spec.head_dim
        if self.shift:
            x_BThwC = x_BThwC.roll((-self.shift, -self.shift), dims=(2, 3))
        x = to_windows(x_BThwC, window)
        count, frames, places, _ = x.shape
        query, key, value = self.qkv(x).view(count, frames, places, 3, -1, dim).unbind(3)
        if cache is not None:
            key, value = torch.cat((cache.keys, key), 1), torch.cat((cache.values, value), 1)
        turned = rotate(query, geometry.rotation[-frames:]), rotate(key, geometry.rotation)
        q, k, v = (part.flatten(1, 2).transpose(1, 2) for part in (*turned, value.float()))
        mask = geometry.mask if self.shift else None
        with torch.autocast(q.device.type, enabled=False):  # its bfloat16 backward is slow on a CPU
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        summed = self.out(mixed.transpose(1, 2).reshape(count, frames, places, -1))
        if self.tp.size > 1:
            summed = self.tp.all_reduce(summed)
        y = from_windows(summed, window, x_BThwC.shape)
        if self.shift:
            y = y.roll((self.shift, self.shift), dims=(2, 3))
        keep = self.spec.context_frames
        return y, KVCache(key[:, -keep:], value[:, -keep:])


class ConvMLP(nn.Module):
    """An MLP whose first layer looks at a 3x3 neighbourhood within each frame; this rank's channels only."""

    def __init__(self, spec: ModelSpec, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.widen = nn.Conv2d(spec.width, spec.mlp_hidden, 3, padding=1)
        self.out = nn.Linear(spec.mlp_hidden, spec.width, bias=False)

    def shard(self) -> None:
        """Keep this rank's channels of the full weights."""
        share = self.out.weight.shape[1] // self.tp.size
        mine = slice(self.tp.group_rank * share, (self.tp.group_rank + 1) * share)
        bias = self.widen.bias
        assert bias is not None, "the first layer has a bias"  # noqa: S101  our own invariant
        self.widen.weight = nn.Parameter(self.widen.weight[mine].clone())
        self.widen.bias = nn.Parameter(bias[mine].clone())
        self.out.weight = nn.Parameter(self.out.weight[:, mine].clone())

    def forward(self, x_BThwC: torch.Tensor) -> torch.Tensor:
        """Return what to add to the stream, same shape.

        Collective:
            One all-reduce over the mesh; none at mesh size 1.
        """
        images = x_BThwC.flatten(0, 1).permute(0, 3, 1, 2)  # channels last in memory: no copy
        hidden = F.gelu(self.widen(images)).permute(0, 2, 3, 1)
        summed: torch.Tensor = self.out(hidden).view(x_BThwC.shape)
        return self.tp.all_reduce(summed.contiguous()) if self.tp.size > 1 else summed


class Block(nn.Module):
    """Attention and MLP, each normalised and modulated before and gated after."""

    def __init__(self, spec: ModelSpec, tp: TensorParallel, *, shift: int) -> None:
        super().__init__()
        self.attention = Attention(spec, tp, shift=shift)
        self.mlp = ConvMLP(spec, tp)
        table = torch.zeros(6, spec.width)
        table[[2, 5]] = 0.5  # the gates: neither shut nor wide open at the start
        self.table = nn.Parameter(table)

    def forward(
        self, x_BThwC: torch.Tensor, modulation: torch.Tensor, geometry: Geometry, cache: KVCache | None
    ) -> tuple[torch.Tensor, KVCache]:
        """Return the updated stream and cache; ``modulation`` is ``[B, 6, C]``."""
        width = x_BThwC.shape[-1]
        parts = (modulation + self.table)[:, :, None, None, None].unbind(1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        normal = F.layer_norm(x_BThwC, (width,))
        added, cache = self.attention(normal * (1 + scale_a) + shift_a, geometry, cache)
        x = x_BThwC + gate_a * added
        normal = F.layer_norm(x, (width,))
        return x + gate_m * self.mlp(normal * (1 + scale_m) + shift_m), cache


class VideoDiT(nn.Module):
    """The whole model; holds full weights until ``shard`` is called.

    Args:
        spec: Sizes.
        tp: The mesh; with ``NoTensorParallel`` nothing is ever summed.
    """

    def __init__(self, spec: ModelSpec, tp: TensorParallel) -> None:
        super().__init__()
        self.spec, self.tp = spec, tp
        self.embed = nn.Conv2d(spec.latent_channels, spec.width, 3, padding=1)
        self.condition = nn.Sequential(
            nn.Linear(2 * SIGMA_FEATURES, spec.width), nn.SiLU(), nn.Linear(spec.width, 6 * spec.width)
        )
        shifts = [0 if index % 2 == 0 else spec.window // 2 for index in range(spec.blocks)]
        self.blocks = nn.ModuleList(Block(spec, tp, shift=shift) for shift in shifts)
        self.head = nn.Conv2d(spec.width, spec.latent_channels, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]  # it has a bias
        nn.init.normal_(self.condition[2].weight, std=0.02)  # type: ignore[arg-type]  # a Linear

    def shard(self) -> None:
        """Keep this rank's share of heads and channels; call once, after loading the full weights."""
        if self.tp.size > 1:
            for block in self.blocks:
                block.attention.shard()  # type: ignore[union-attr, operator]  # a Block
                block.mlp.shard()  # type: ignore[union-attr, operator]  # a Block

    def replicated(self) -> dict[str, torch.Tensor]:
        """Return the weights that ``shard`` leaves whole on every rank: all outside attention and MLP."""
        return {
            name: weight
            for name, weight in self.named_parameters()
            if ".attention." not in name and ".mlp." not in name
        }

    def forward(
        self, latents_BTChw: torch.Tensor, sigma: torch.Tensor, caches: list[KVCache] | None = None
    ) -> tuple[torch.Tensor, list[KVCache]]:
        """Denoise one chunk.

        Args:
            latents_BTChw: ``[stream, frame, latent_channels, h, w]`` float; h and w are multiples of
                the window.
            sigma: ``[stream]`` float, the noise's standard deviation in 1/255 of full scale.
            caches: One per block from the previous chunk, or ``None`` at the start of a stream.

        Returns:
            The denoised latents, same shape, and the caches for the next chunk (the given ones are
            not changed).

        Collective:
            Two all-reduces per block over the mesh; none at mesh size 1.
        """
        b, t, _, h, w = latents_BTChw.shape
        past = 0 if caches is None else caches[0].keys.shape[1]
        geometry = make_geometry(
            self.spec.window, frames=t, past=past, size=(h, w), streams=b, device=latents_BTChw.device
        )
        modulation = self.condition(_sigma_features(sigma)).view(b, 6, -1)
        images = latents_BTChw.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        x = self.embed(images).permute(0, 2, 3, 1).unflatten(0, (b, t))
        updated = []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, modulation, geometry, None if caches is None else caches[index])
            updated.append(cache)
        x = F.layer_norm(x, (x.shape[-1],)).flatten(0, 1).permute(0, 3, 1, 2)
        return latents_BTChw + self.head(x).unflatten(0, (b, t)), updated


def _sigma_features(sigma: torch.Tensor) -> torch.Tensor:
    """Turn ``[B]`` noise levels into ``[B, 2 * SIGMA_FEATURES]`` waves over their logarithm."""
    rates = torch.linspace(math.log(0.25), math.log(4.0), SIGMA_FEATURES, device=sigma.device).exp()
    angles = torch.log1p(sigma.float())[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
