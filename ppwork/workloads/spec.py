"""The shape of the shipped denoiser, and what it asks of a plan.

The launcher reads this before any rank starts, so it knows neither torch nor PyAV.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppwork.errors import PlanError
from ppwork.plan import Plan

DATA_DIR = Path(__file__).with_name("data")


@dataclass(frozen=True)
class ModelSpec:
    """The sizes of the autoencoder and the DiT; stands in the metadata of the weights file."""

    codec_stride: int = 4
    """Pixels per latent, in each direction."""
    latent_channels: int = 48
    codec_hidden: int = 64
    width: int = 96
    """Channels of the DiT's residual stream."""
    blocks: int = 8
    heads: int = 12
    head_dim: int = 12
    mlp_hidden: int = 144
    window: int = 4
    """Latents per attention window, in each direction."""
    context_frames: int = 4
    """Most frames that the rolling KV cache holds."""

    @property
    def size_multiple(self) -> int:
        """Pixels that width and height must be multiples of: one whole attention window."""
        return self.codec_stride * self.window

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)


SHIPPED = ModelSpec()
LATENT_STRIDE = SHIPPED.size_multiple
HEADS = SHIPPED.heads
MLP_HIDDEN = SHIPPED.mlp_hidden
CONTEXT_FRAMES = SHIPPED.context_frames
MAX_SIDE = 16_384
"""Pixels that the encoder of the output takes in each direction."""


def default_clip() -> Path:
    """Return the path of the clip that ships with the package (see ``data/CREDIT.md``)."""
    return DATA_DIR / "bigbuckbunny_small.mp4"


def default_weights() -> Path:
    """Return the path of the weights that ship with the package."""
    return DATA_DIR / "denoiser.safetensors"


def mesh_sizes(limit: int = HEADS) -> list[int]:
    """Return the mesh sizes up to ``limit`` that divide both the heads and the MLP's channels."""
    return [size for size in range(1, limit + 1) if HEADS % size == 0 and MLP_HIDDEN % size == 0]


def check_plan(plan: Plan) -> None:
    """Refuse a plan that the shipped denoiser cannot compute.

    What is wrong for any workload, a plan refuses by itself; the input file is ``clip.probe``'s to check.

    Raises:
        PlanError: A size is not a multiple of ``LATENT_STRIDE``, a chunk is larger than a message may be, or
            the mesh size does not divide the heads and the MLP's channels (the launcher, before any rank
            starts).
    """
    if plan.width % LATENT_STRIDE or plan.height % LATENT_STRIDE:
        sides = (max(1, round(side / LATENT_STRIDE)) * LATENT_STRIDE for side in (plan.width, plan.height))
        raise PlanError(
            f"The size {plan.width}x{plan.height} was asked for, but the codec takes only "
            f"multiples of {LATENT_STRIDE} pixels.",
            check_first=f"the option --size; the nearest size that works is {'x'.join(map(str, sides))}",
        )
    frames = plan.frames_per_chunk + (CONTEXT_FRAMES if plan.recompute_every else 0)
    latents = plan.width * plan.height // SHIPPED.codec_stride**2
    size = 4 * SHIPPED.latent_channels * latents * frames
    if max(plan.width, plan.height) > MAX_SIDE or size > plan.max_message_bytes:
        raise PlanError(
            f"The size {plan.width}x{plan.height} was asked for: a side is at most {MAX_SIDE} pixels, and a "
            f"chunk of {plan.frames_per_chunk} frames at most {plan.max_message_bytes >> 20} MiB of latents; "
            f"this one has {size >> 20}.",
            check_first="the options --size and --frames-per-chunk",
        )
    for name, value in (("attention heads", HEADS), ("MLP channels", MLP_HIDDEN)):
        if value % plan.mesh_size:
            raise PlanError(
                f"The {value} {name} of the denoiser cannot be split over a mesh of {plan.mesh_size}.",
                check_first=f"the option --mesh-size; possible are {mesh_sizes()}",
            )
