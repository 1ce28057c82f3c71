"""The shape of the shipped denoiser, and what it asks of a plan.

The launcher reads this before any rank starts, so it knows neither torch nor PyAV.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.protocol.plan import refuse

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
MAX_NOISE = 2550.0
"""Ten times full scale: nothing of the clip is left."""


class VideoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the shipped denoiser reads of a plan's ``options``; a subclass of its stages may have others.

    Attributes:
        input: Path of the clip; empty is the one that ships with the package.
        width: Pixels, to which each frame is scaled.
        height: Pixels.
        frames_per_chunk: Frames.
        noise: Standard deviation of the added noise, in units of 1/255.
    """

    input: str = ""
    width: int = 160
    height: int = 96
    frames_per_chunk: int = 4
    noise: float = 25.0

    def to_dict(self) -> dict[str, Any]:
        """Return those that are not the defaults, as a plan has them."""
        default = msgspec.structs.asdict(VideoOptions())
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value != default[name]}

    @classmethod
    def of(cls, plan: Plan) -> VideoOptions:
        """Read them.

        Raises:
            PlanError: One is of another type, or has a value that cannot work; names it and its value.
        """
        given = {}
        for field in msgspec.structs.fields(cls):
            if field.name in plan.options:
                value = plan.options[field.name]
                try:
                    given[field.name] = msgspec.convert(value, field.type)
                except msgspec.ValidationError as error:
                    refuse(
                        f"options[{field.name!r}]", value, f"of another type: {error}", OPTIONS[field.name]
                    )
        options = cls(**given)
        for name in ("width", "height", "frames_per_chunk"):
            if getattr(options, name) < 1:
                refuse(f"options[{name!r}]", getattr(options, name), "1 or more", OPTIONS[name])
        if not 0 <= options.noise <= MAX_NOISE:  # NaN is neither
            need = f"a number from 0 to {MAX_NOISE:g}, in units of 1/255"
            refuse("options['noise']", options.noise, need, OPTIONS["noise"])
        return options


OPTIONS = {
    "input": "--input",
    "width": "--size",
    "height": "--size",
    "frames_per_chunk": "--frames-per-chunk",
    "noise": "--noise",
}
"""How ``ppwork run`` calls them."""


def default_clip() -> Path:
    """Return the path of the clip that ships with the package (see ``data/CREDIT.md``)."""
    return DATA_DIR / "bigbuckbunny_small.mp4"


def default_weights() -> Path:
    """Return the path of the weights that ship with the package."""
    return DATA_DIR / "denoiser.safetensors"


def mesh_sizes(limit: int = HEADS) -> list[int]:
    """Return the mesh sizes up to ``limit`` that divide both the heads and the MLP's channels."""
    return [size for size in range(1, limit + 1) if HEADS % size == 0 and MLP_HIDDEN % size == 0]


def check_plan(plan: Plan) -> VideoOptions:
    """Refuse a plan that the shipped denoiser cannot compute; return its options.

    What is wrong for any workload, a plan refuses by itself; the input file is ``clip.probe``'s to check.

    Raises:
        PlanError: As ``VideoOptions.of``; a size is not a multiple of ``LATENT_STRIDE``, a chunk is larger
            than a message may be, or the mesh size does not divide the heads and the MLP's channels (the
            launcher, before any rank starts).
    """
    asked = VideoOptions.of(plan)
    sides = (asked.width, asked.height)
    size = f"The size {asked.width}x{asked.height} was asked for"
    if any(side % LATENT_STRIDE for side in sides):
        near = (max(1, round(side / LATENT_STRIDE)) * LATENT_STRIDE for side in sides)
        raise PlanError(
            f"{size}, but the codec takes only multiples of {LATENT_STRIDE} pixels.",
            check_first=f"the option --size; the nearest size that works is {'x'.join(map(str, near))}",
        )
    frames = asked.frames_per_chunk + (CONTEXT_FRAMES if plan.recompute_every else 0)
    latents = asked.width * asked.height // SHIPPED.codec_stride**2
    chunk_bytes = 4 * SHIPPED.latent_channels * latents * frames
    if max(sides) > MAX_SIDE or chunk_bytes > plan.max_message_bytes:
        raise PlanError(
            f"{size}: a side is at most {MAX_SIDE} pixels, and a chunk of {asked.frames_per_chunk} frames at "
            f"most {plan.max_message_bytes >> 20} MiB of latents; this one has {chunk_bytes >> 20}.",
            check_first="the options --size and --frames-per-chunk",
        )
    for name, value in (("attention heads", HEADS), ("MLP channels", MLP_HIDDEN)):
        if value % plan.mesh_size:
            raise PlanError(
                f"The {value} {name} of the denoiser cannot be split over a mesh of {plan.mesh_size}.",
                check_first=f"the option --mesh-size; possible are {mesh_sizes()}",
            )
    return asked
