"""Make the shipped clip and its credit from the original one: all frames, 320x180, no sound.

Run as ``python scripts/make_default_clip.py ORIGINAL``.
"""

from __future__ import annotations

import sys

from ppwork.workloads.clip import probe, read_frames, write_video
from ppwork.workloads.spec import default_clip

WIDTH, HEIGHT = 320, 180
CRF = 16


def main(original: str) -> None:
    """Scale the clip and write it into the package."""
    info = probe(original)
    target = default_clip()
    frames = read_frames(original, WIDTH, HEIGHT, 0, info.frames)
    write_video(target, frames, info.fps, crf=CRF)
    print(f"{target.name}: {probe(target)}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
