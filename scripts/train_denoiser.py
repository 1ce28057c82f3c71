"""Train the shipped denoiser: the autoencoder to pass everything through, the DiT to take the noise away.

First the autoencoder alone learns the identity on clean and noisy frames. Then both are trained together on
unrolled chunks, so that the DiT learns to use its cache; the identity stays part of the loss, so that
the decoder does not learn to denoise on its own.

Run as ``python scripts/train_denoiser.py --clip ORIGINAL --minutes 40 --out weights.safetensors``.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import torch
from training_data import VALIDATION_FRAMES, Sampler, read_clip

from ppwork.stage import NoTensorParallel
from ppwork.workloads.autoencoder import Autoencoder
from ppwork.workloads.dit import VideoDiT
from ppwork.workloads.spec import SHIPPED
from ppwork.workloads.weights import load_autoencoder, load_dit, save

SPLITS = ((4, 4), (4, 4), (4, 4), (2, 2, 4), (1, 3, 4), (8,))
"""How eight frames may fall into chunks; the usual four are the most frequent."""
IDENTITY_WEIGHT = 0.3
CODEC_SHARE = 0.015
"""Part of the time that the autoencoder trains alone."""
WARM_UP = 0.02


def rms(error: torch.Tensor) -> torch.Tensor:
    """Return the mean over samples of each one's root mean square, in 1/255: no sample dominates."""
    return (error.float().square().flatten(1).mean(1) + 1e-8).sqrt().mean() * 255.0


def identity_loss(codec: Autoencoder, frames: torch.Tensor) -> torch.Tensor:
    """Return how far the autoencoder is from passing ``[frame, 3, height, width]`` through."""
    return rms(codec(frames) - frames)


def denoised(
    codec: Autoencoder,
    dit: VideoDiT,
    noisy: torch.Tensor,
    sigma: torch.Tensor,
    split: tuple[int, ...],
    *,
    bfloat16: bool = False,
) -> torch.Tensor:
    """Return ``[stream, frame, 3, height, width]`` after encoding, all chunks in turn, and decoding."""
    streams = len(noisy)
    latents = codec.encode(noisy.flatten(0, 1)).unflatten(0, (streams, -1))
    caches, results = None, []
    # Only the DiT runs in half precision: rounding in the codec would hide what it loses.
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        for chunk in latents.split(split, dim=1):
            result, caches = dit(chunk, sigma, caches)
            results.append(result.float())
    return codec.decode(torch.cat(results, 1).flatten(0, 1)).unflatten(0, (streams, -1))


@torch.inference_mode()
def validate(codec: Autoencoder, dit: VideoDiT, clean: torch.Tensor) -> float:
    """Return the PSNR at sigma 25 on ``[1, frame, 3, height, width]`` in [0, 1]."""
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(7))
    sigma = torch.tensor([25.0])
    split = (4,) * (clean.shape[1] // 4)
    out = denoised(codec, dit, clean + noise * (25.0 / 255.0), sigma, split)
    return -10 * math.log10(float((out.clamp(0, 1) - clean).square().mean()))


class Averages:
    """Exponential moving averages of the weights: what is validated and saved."""

    def __init__(self, *modules: torch.nn.Module, decay: float) -> None:
        self.live = [p for module in modules for p in module.parameters()]
        self.kept = [p.detach().clone() for p in self.live]
        self.decay, self.count = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the live weights (faster at first)."""
        self.count += 1
        weight = 1 - min(self.decay, self.count / (self.count + 10))
        torch._foreach_lerp_(self.kept, self.live, weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the averages and the live weights."""
        for live, kept in zip(self.live, self.kept, strict=True):
            live_copy = live.clone()
            live.copy_(kept)
            kept.copy_(live_copy)


def modules(start: Path | None) -> tuple[Autoencoder, VideoDiT]:
    """Return both modules, fresh or from a file, ready to train."""
    if start:
        codec, dit = load_autoencoder(start), load_dit(path=start)
    else:
        codec, dit = Autoencoder(SHIPPED), VideoDiT(SHIPPED, NoTensorParallel())
    return codec.train().requires_grad_(True), dit.train().requires_grad_(True)


def main() -> None:
    """Train and save."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    sampler = Sampler(options.clip, options.seed, options.crop)
    codec, dit = modules(options.start)
    clean = read_clip(options.clip, 96, VALIDATION_FRAMES)[None, :8].float() / 255.0
    parameters = [*codec.parameters(), *dit.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, weight_decay=0.01, betas=(0.9, 0.98))
    averages = Averages(codec, dit, decay=0.998)
    begin, budget, best, step = time.monotonic(), options.minutes * 60.0, 0.0, 0
    codec_share = 0.0 if options.start else CODEC_SHARE
    next_look = 0.0
    while (done := (time.monotonic() - begin) / budget) < 1:
        rate = options.rate * min(1.0, done / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * done) + 0.01)
        for group in optimizer.param_groups:
            group["lr"] = max(rate, 1e-6)
        original = sampler.batch(options.batch)
        noisy, sigma = sampler.spoil(original)
        some = int(torch.randint(original.shape[1], (1,)))
        identity = identity_loss(codec, torch.cat((original[:, some], noisy[:, some])))
        loss, denoising = identity, torch.tensor(0.0)
        if done >= codec_share:
            split = random.choice(SPLITS)  # noqa: S311
            out = denoised(codec, dit, noisy, sigma, split, bfloat16=options.bfloat16)
            denoising = rms(out - original)
            loss = denoising + IDENTITY_WEIGHT * identity
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 3.0)
        optimizer.step()
        averages.update()
        step += 1
        if step % 20 == 0 and done >= next_look:
            next_look = done + 0.025
            averages.swap()
            psnr = validate(codec, dit, clean)
            if psnr > best:
                best = psnr
                save(options.out, codec, dit, {"seed": str(options.seed), "steps": str(step)})
            averages.swap()
            print(
                f"{done:5.1%} step {step} rate {rate:.1e} identity {identity.item():.2f} "
                f"denoising {denoising.item():.2f} validation {psnr:.2f} dB (best {best:.2f})",
                flush=True,
            )
    averages.swap()
    psnr = validate(codec, dit, clean)
    if psnr >= best - 0.05:  # the last ones have seen most; only a real drop speaks against them
        save(options.out, codec, dit, {"seed": str(options.seed), "steps": str(step)})
    print(f"{step} steps in {options.minutes} minutes, validation {psnr:.2f} dB (best {best:.2f})")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clip", type=Path, required=True, help="the original 1280x720 clip")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("denoiser.safetensors"))
    parser.add_argument("--start", type=Path, help="go on from these weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--bfloat16", action="store_true", help="quicker on CPUs that have it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
