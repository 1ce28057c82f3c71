"""The shipped stages: stage 0 reads, spoils, encodes and decodes a clip; the generator denoises its latents.

A chunk is self-contained: besides the latents its tensors hold the noise level, so the mesh needs nothing
but what travels. Nothing here depends on how the stream is cut into chunks or on results coming back late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from ppwork.stage import Emission, StageContext, Tensors
from ppwork.workloads.clip import Frame, VideoWriter, probe, read_frames
from ppwork.workloads.dit import KVCache
from ppwork.workloads.picture import FrameComparison, psnr_db
from ppwork.workloads.spec import check_plan, default_clip
from ppwork.workloads.weights import load_autoencoder, load_dit

SEED_STRIDE = 1_000_003
"""Spreads the seeds of the frames: frame f draws its noise from ``seed * SEED_STRIDE + f``."""


def frame_noise(shape: torch.Size, seed: int, frame: int) -> torch.Tensor:
    """Return unit noise of one frame: the same for a seed and a frame, however chunks are cut."""
    generator = torch.Generator().manual_seed((seed * SEED_STRIDE + frame) % 2**63)
    return torch.randn(shape, generator=generator)


class VideoSource:
    """Stage 0: the clip in, the denoised clip and its figures out.

    Gaussian noise is added to pixels in [0, 1] and the sum is neither clamped nor rounded before it is
    encoded. For PSNR, both the noisy and the denoised frames are clamped to [0, 1] first: what a viewer
    would see. Chunks that a flush dropped are missing from the video and the figures, which are over the
    frames that were emitted.
    """

    first_frame = 0
    """Where in the clip the stream starts; a subclass may look at a part only."""

    def __init__(self, context: StageContext) -> None:
        plan = context.plan
        options = self._options = check_plan(plan)
        self._plan, self._device, self._run_dir = plan, context.device, context.run_dir
        path = Path(options.input) if options.input else default_clip()
        info = probe(path)
        self._fps = info.fps
        self._frames: Iterator[Frame] = read_frames(path, options.width, options.height, self.first_frame)
        self._codec = load_autoencoder().to(self._device)
        self._keep = self._codec.spec.context_frames
        self._before: torch.Tensor | None = None
        self._tail: torch.Tensor | None = None
        self._in_flight: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._sums = {"noisy": 0.0, "denoised": 0.0}
        self._emitted = 0
        self._writer: VideoWriter | None = None
        total = info.frames if plan.chunks is None else plan.chunks * options.frames_per_chunk
        self._picture = FrameComparison(total)
        with torch.inference_mode():  # the first call of a convolution prepares it
            blank = torch.zeros(options.frames_per_chunk, 3, options.height, options.width)
            self._codec(blank.to(self._device))

    @torch.inference_mode()
    def encode(self, chunk_index: int) -> Tensors:
        """Read, spoil and encode the next frames.

        Returns:
            ``latents``: ``[frame, channel, h, w]`` float32, and ``sigma``: ``[1]`` float32 in 1/255 of
            full scale; both on the stage's device.
        """
        options, seed = self._options, self._plan.seed
        taken = list(islice(self._frames, options.frames_per_chunk))
        clean = torch.from_numpy(np.stack(taken)).permute(0, 3, 1, 2).float() / 255.0
        first = self.first_frame + chunk_index * options.frames_per_chunk
        noise = torch.stack([frame_noise(clean.shape[1:], seed, first + i) for i in range(len(taken))])
        noisy = clean + noise * (options.noise / 255.0)
        self._in_flight[chunk_index] = (clean, noisy.clamp(0, 1))
        latents = self._codec.encode(noisy.to(self._device)).contiguous()
        self._before = self._tail
        past = latents if self._tail is None else torch.cat((self._tail, latents))
        self._tail = past[-self._keep :].clone()
        return {"latents": latents, "sigma": self._sigma()}

    def context_frames(self, chunk_index: int) -> Tensors:
        """Return the noisy latents of the last frames before this chunk; nothing before the first.

        Returns:
            ``context.latents``: ``[frame, channel, h, w]`` float32, at most as many frames as the
            generator's cache holds, and ``context.sigma``: ``[1]`` float32.
        """
        if chunk_index == 0 or self._before is None:
            return {}
        return {"context.latents": self._before, "context.sigma": self._sigma()}

    @torch.inference_mode()
    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        """Decode one chunk, add it to the video and measure it.

        Returns:
            ``[frame, 3, height, width]`` float32 in [0, 1] on the CPU, with ``psnr_noisy_db`` and
            ``psnr_denoised_db`` of this chunk.
        """
        clean, noisy = self._in_flight[chunk_index]
        # Results come in order: what is older was dropped by a flush and never comes.
        self._in_flight = {k: kept for k, kept in self._in_flight.items() if k > chunk_index}
        denoised = self._codec.decode(tensors["latents"].to(self._device))
        denoised = denoised.float().clamp(0, 1).cpu().contiguous()
        per_frame = {
            "noisy": (noisy - clean).square().mean((1, 2, 3)),
            "denoised": (denoised - clean).square().mean((1, 2, 3)),
        }
        for name, values in per_frame.items():
            self._sums[name] += float(values.double().sum())
        if self._run_dir is not None:
            self._write(denoised)
            self._picture.offer(chunk_index * self._options.frames_per_chunk, clean, noisy, denoised)
        self._emitted += len(denoised)
        metrics = {f"psnr_{name}_db": psnr_db(float(v.mean())) for name, v in per_frame.items()}
        return Emission(denoised, metrics)

    def finish(self) -> Mapping[str, object]:
        """Complete the video and the picture; return the figures over all frames.

        PSNR is taken from the mean squared error over all frames, not from the mean of their PSNRs.
        """
        if self._writer is not None:
            self._writer.close()
        if self._run_dir is not None and self._emitted:
            self._picture.save(self._run_dir / "side_by_side.png")
        count = max(1, self._emitted)
        return {
            **{f"psnr_{name}_db": psnr_db(total / count) for name, total in self._sums.items()},
            "frames": self._emitted,
            "width": self._options.width,
            "height": self._options.height,
            "fps": self._fps,
        }

    def _sigma(self) -> torch.Tensor:
        return torch.tensor([self._options.noise], dtype=torch.float32, device=self._device)

    def _write(self, frames: torch.Tensor) -> None:
        assert self._run_dir is not None, "only called when there is a folder"  # noqa: S101
        if self._writer is None:
            self._writer = VideoWriter(
                self._run_dir / "denoised.mp4", self._options.width, self._options.height, self._fps
            )
        for frame in (frames * 255.0).round().byte().permute(0, 2, 3, 1).contiguous().numpy():
            self._writer.write(frame)


class VideoDenoiser:
    """The generator: the causal video DiT with this rank's share of heads and channels."""

    def __init__(self, context: StageContext) -> None:
        check_plan(context.plan)
        self._dit = load_dit(context.tp).to(context.device)
        self._caches: list[KVCache] | None = None

    def replicated(self) -> Tensors:
        """Return the DiT's weights that are not split over the mesh."""
        return self._dit.replicated()

    def reset_cache(self) -> None:
        """Forget the past: the next chunk starts a new stream (a hard cut)."""
        self._caches = None

    @torch.inference_mode()
    def recompute(self, context_frames: Tensors) -> None:
        """Rebuild the cache by one forward over the context alone; leaves it empty without context.

        The result is not the cache that streaming had built: that one had itself seen frames before the
        context.

        Collective:
            The DiT's all-reduces; none without context or at mesh size 1.
        """
        self.reset_cache()
        if "context.latents" in context_frames:
            latents, sigma = context_frames["context.latents"], context_frames["context.sigma"]
            _, self._caches = self._dit(latents[None], sigma, None)

    @torch.inference_mode()
    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:
        """Run one denoise step; only the last one adds the chunk to the cache.

        A step that is not the last returns to a part of the noise: after step i of n, (1 - (i + 1) / n) of
        the first noise level is left, so the next one refines what this one found.

        Args:
            tensors: ``latents`` ``[frame, channel, h, w]`` and ``sigma`` ``[1]``, float32.
            step_index: From 0.
            num_steps: At least 1.

        Returns:
            ``latents`` of the same shape; before the last step also the ``sigma`` that is left.

        Collective:
            Two all-reduces per block of the DiT; none at mesh size 1.
        """
        noisy, sigma = tensors["latents"], tensors["sigma"]
        streams, caches = self._dit(noisy[None], sigma, self._caches)
        denoised = streams[0].contiguous()
        if step_index == num_steps - 1:
            self._caches = caches
            return {"latents": denoised}
        rest = (num_steps - step_index - 1) / (num_steps - step_index)  # of the noise that is there now
        return {"latents": denoised + (noisy - denoised) * rest, "sigma": sigma * rest}
