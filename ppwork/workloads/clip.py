"""Reading and writing clips: PyAV and numpy, no torch.

Frames are scaled to cover the wanted size (area filter when shrinking) and then cropped in the middle,
so that nothing is stretched. A stream longer than the clip runs it forwards and backwards in turn,
without repeating the frames at the turns: 0 1 2 3 2 1 0 1 ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import Interpolation

from ppwork.errors import PlanError, UnreadableError
from ppwork.records.files import temporary

if TYPE_CHECKING:
    from numpy.typing import NDArray

Frame: TypeAlias = "NDArray[np.uint8]"
"""``[height, width, 3]`` uint8, RGB."""

BACKWARD_BLOCK = 64
"""Frames held at a time when running backwards."""
FALLBACK_FPS = Fraction(25)


@dataclass(frozen=True)
class ClipInfo:
    """Facts of a clip from a whole decode.

    Attributes:
        frames: Frames that really decode.
        width: Of the video itself, in pixels.
        height: Of the video itself, in pixels.
        fps: Frames per second.
    """

    frames: int
    width: int
    height: int
    fps: float


def probe(path: str | Path) -> ClipInfo:
    """Decode the whole clip once and say what is in it.

    Raises:
        PlanError: The file is missing, empty, no video, damaged, or ends early (the launcher).
    """
    path = Path(path)
    _check_file(path)
    frames = 0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise PlanError(
                    f"The input {path} holds no video, only {_stream_kinds(container)}.",
                    check_first="the option --input; `ffprobe` shows what is in a file",
                )
            stream = container.streams.video[0]
            claimed, fps = stream.frames, stream.average_rate or FALLBACK_FPS
            width, height = stream.codec_context.width, stream.codec_context.height
            for _ in container.decode(stream):
                frames += 1
    except FFmpegError as error:
        raise PlanError(
            f"The input {path} could not be decoded after {frames} frames: {error.strerror}.",
            check_first="is it a video, and complete? compare its size with the source's",
        ) from error
    if frames == 0:
        raise PlanError(
            f"The input {path} has a video stream, but not one frame of it decodes.",
            check_first="is the file complete? compare its size with the source's",
        )
    if frames < claimed - max(2, claimed // 50):  # a few frames short is what an odd edit list does
        raise PlanError(
            f"The input {path} claims {claimed} frames, but only {frames} decode: it is truncated.",
            check_first="compare the file's size with the source's, and copy it again",
        )
    return ClipInfo(frames, width, height, float(fps))


def read_frames(
    path: str | Path, width: int, height: int, start: int = 0, count: int | None = None
) -> Iterator[Frame]:
    """Yield frames of the stream that runs the clip forwards and backwards, scaled and cropped.

    Holds one frame at a time on the way forwards, ``BACKWARD_BLOCK`` on the way back (each block
    is decoded from the clip's start, so the way back of a long film is slow).

    Args:
        path: A clip that ``probe`` accepts.
        width: In pixels.
        height: In pixels.
        start: Place in the stream of the first frame to yield, from 0.
        count: Number of frames; ``None`` for no end.

    Yields:
        ``[height, width, 3]`` uint8, RGB.

    Raises:
        UnreadableError: The file cannot be opened or decoded, or holds no frame.
    """
    stop = None if count is None else start + count
    return islice(_ping_pong(Path(path), width, height), start, stop)


class VideoWriter:
    """Writes an H.264 mp4 frame by frame, under a temporary name until it is complete.

    Leaving the context normally renames it; leaving by an exception removes it.

    Args:
        path: Final name, ending in ``.mp4``.
        width: In pixels, even.
        height: In pixels, even.
        fps: Frames per second.
        crf: Quality of x264, lower is better; 18 is visually near-lossless.
    """

    def __init__(self, path: str | Path, width: int, height: int, fps: float, *, crf: int = 18) -> None:
        self.path = Path(path)
        self._part = temporary(self.path)
        self._container = av.open(str(self._part), "w", format="mp4")
        rate = Fraction(fps).limit_denominator(1001)
        self._stream = self._container.add_stream("libx264", rate=rate)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        # One thread: the pipeline's ranks already use every core.
        self._stream.options = {"crf": str(crf), "threads": "1"}
        self._open = True

    def write(self, frame: Frame) -> None:
        """Add one frame, ``[height, width, 3]`` uint8, RGB."""
        for packet in self._stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
            self._container.mux(packet)

    def close(self) -> None:
        """Finish the file and give it its name, or remove it if that fails; a second call does nothing."""
        if self._open:
            try:
                for packet in self._stream.encode():
                    self._container.mux(packet)
                self._container.close()
                self._part.replace(self.path)
            except BaseException:
                self.discard()
                raise
            self._open = False

    def discard(self) -> None:
        """Close without keeping anything; does nothing after ``close``."""
        if self._open:
            self._open = False
            try:
                self._container.close()
            finally:
                self._part.unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _check_file(path: Path) -> None:
    try:
        exists = path.exists()
    except OSError as error:  # of another user, or too long
        raise PlanError(
            f"The input {path} cannot be read: {error.strerror}.", check_first="the option --input"
        ) from error
    if not exists:
        raise PlanError(f"The input {path} does not exist.", check_first="the option --input")
    if not path.is_file():
        raise PlanError(f"The input {path} is not a file.", check_first="the option --input")
    if path.stat().st_size == 0:
        raise PlanError(
            f"The input {path} is empty (0 bytes).",
            check_first="was it copied to the end? compare its size with the source's",
        )


def _stream_kinds(container: av.container.InputContainer) -> str:
    return ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"


def _ping_pong(path: Path, width: int, height: int) -> Iterator[Frame]:
    total = 0
    for frame in _decode(path, width, height):
        total += 1
        yield frame
    if total == 0:
        raise UnreadableError(f"The input {path} holds no frame.", check_first="the option --input")
    while True:
        end = total - 1
        while end > 1:
            begin = max(1, end - BACKWARD_BLOCK)
            block = list(islice(_decode(path, width, height), begin, end))
            yield from reversed(block)
            end = begin
        yield from _decode(path, width, height)


def _decode(path: Path, width: int, height: int) -> Iterator[Frame]:
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                yield _fit(frame, width, height)
    except (FFmpegError, IndexError) as error:
        raise UnreadableError(
            f"The input {path} could not be decoded: {error}", check_first="is it a video, and complete?"
        ) from error


def _fit(frame: av.VideoFrame, width: int, height: int) -> Frame:
    scale = max(width / frame.width, height / frame.height)
    wide = max(width, round(frame.width * scale))
    high = max(height, round(frame.height * scale))
    kind = Interpolation.AREA if scale < 1 else Interpolation.BICUBIC
    scaled = frame.reformat(wide, high, "rgb24", interpolation=kind).to_ndarray()
    x, y = (wide - width) // 2, (high - height) // 2
    return np.ascontiguousarray(scaled[y : y + height, x : x + width])
