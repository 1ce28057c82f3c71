"""Make the shipped clip and its credit from the original one: all frames, 320x180, no sound.

Run as ``python scripts/make_default_clip.py ORIGINAL``.
"""

from __future__ import annotations

import sys

from ppwork.workloads.clip import VideoWriter, probe, read_frames
from ppwork.workloads.spec import default_clip

WIDTH, HEIGHT = 320, 180
CRF = 16


def main(original: str) -> None:
    """Scale the clip and write it into the package."""
    info = probe(original)
    target = default_clip()
    with VideoWriter(target, WIDTH, HEIGHT, info.fps, crf=CRF) as writer:
        for frame in read_frames(original, WIDTH, HEIGHT, 0, info.frames):
            writer.write(frame)
    print(f"{target.name}: {probe(target)}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
