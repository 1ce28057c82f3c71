"""What a student's file may be: refused with a reason, or read as promised."""

import errno
import json
import subprocess
import sys
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from ppwork.errors import PlanError
from ppwork.workloads.clip import VideoWriter, probe, read_frames
from ppwork.workloads.spec import default_clip


@pytest.fixture
def ramp(tmp_path):
    """A clip of ten 64x32 frames that get brighter."""
    path = tmp_path / "ramp.mp4"
    write(path, (np.full((32, 64, 3), 20 * index, np.uint8) for index in range(10)))
    return path


def write(path, frames, width=64):
    with VideoWriter(path, width, 32, 25) as writer:
        for frame in frames:
            writer.write(frame)


def brightness(frames):
    return [round(float(frame.mean()) / 20) for frame in frames]


def test_probe_of_the_shipped_clip_counts_all_its_frames():
    info = probe(default_clip())
    assert (info.frames, info.width, info.height, info.fps) == (132, 320, 180, 25.0)


def test_shipped_clip_is_small():
    assert default_clip().stat().st_size < 1_000_000


@pytest.mark.parametrize("where", ["missing.mp4", "."])
def test_probe_refuses_what_is_no_file(tmp_path, where):
    with pytest.raises(PlanError, match=r"does not exist|is not a file") as caught:
        probe(tmp_path / where)
    assert caught.value.check_first


def test_probe_refuses_an_empty_file(tmp_path):
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(PlanError, match="empty"):
        probe(tmp_path / "empty.mp4")


@pytest.mark.parametrize("content", [b"just some text\n" * 50, bytes(5000), b"\x00\x00\x00\x18ftypmp42"])
def test_probe_refuses_a_file_that_is_no_video(tmp_path, content):
    path = tmp_path / "not-a-video.mp4"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="not-a-video") as caught:
        probe(path)
    assert caught.value.check_first


def test_probe_refuses_sound_without_video(tmp_path):
    import wave

    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        sound.writeframes(bytes(16000))
    with pytest.raises(PlanError, match="holds no video, only audio"):
        probe(path)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("index_first", [False, True])
def test_probe_refuses_a_truncated_file(tmp_path, share, index_first):
    whole = tmp_path / "whole.mp4"
    whole.write_bytes(default_clip().read_bytes())
    if index_first:  # then the container opens and only the frames are missing
        import av

        whole = tmp_path / "index-first.mp4"
        options = {"movflags": "faststart"}
        with av.open(str(default_clip())) as old, av.open(str(whole), "w", options=options) as new:
            stream = new.add_stream_from_template(old.streams.video[0])
            for packet in old.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    new.mux(packet)
    path = tmp_path / "truncated.mp4"
    content = whole.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(PlanError, match="truncated"):
        probe(path)


def test_probe_refuses_a_damaged_clip_or_still_counts_its_frames(tmp_path):
    content = bytearray(default_clip().read_bytes())
    content[60_000:200_000] = bytes(140_000)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="damaged"):
        probe(path)


def test_a_stream_longer_than_the_clip_runs_it_forwards_and_backwards(ramp):
    seen = brightness(read_frames(ramp, 64, 32, 0, 25))
    there, back = list(range(10)), list(range(8, 0, -1))
    assert seen == (there + back + there)[:25]


def test_a_stream_may_start_anywhere(ramp):
    assert brightness(read_frames(ramp, 64, 32, 7, 5)) == [7, 8, 9, 8, 7]


def test_frames_are_read_as_they_are_asked_for(ramp):
    frames = read_frames(ramp, 32, 16)
    assert [frame.shape for frame in islice(frames, 40)] == [(16, 32, 3)] * 40


def test_frames_are_cropped_in_the_middle_not_stretched(tmp_path):
    picture = np.zeros((32, 96, 3), np.uint8)
    picture[:, 32:64] = 255  # only the middle third is white
    write(tmp_path / "wide.mp4", [picture] * 3, width=96)
    (frame,) = read_frames(tmp_path / "wide.mp4", 32, 32, 0, 1)
    assert frame[:, 2:-2].min() > 200


def test_written_video_reads_back(tmp_path, ramp):
    info = probe(ramp)
    assert (info.frames, info.width, info.height, info.fps) == (10, 64, 32, 25.0)
    assert [path.name for path in tmp_path.iterdir()] == ["ramp.mp4"]


def test_an_interrupted_writer_leaves_nothing_behind(tmp_path):
    def frames():
        yield np.zeros((32, 64, 3), np.uint8)
        raise KeyError

    with pytest.raises(KeyError):
        write(tmp_path / "out.mp4", frames())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "without"),
    [("ppwork.workloads.spec", ["torch", "av", "numpy"]), ("ppwork.workloads.clip", ["torch"])],
)
def test_the_launcher_can_check_a_plan_and_a_clip_without_torch(module, without):
    code = f"import sys, json, {module}; print(json.dumps([m for m in {without} if m in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []


def test_a_writer_that_finds_no_space_at_its_end_leaves_nothing_behind(tmp_path):
    writer = VideoWriter(tmp_path / "out.mp4", 64, 32, 25)
    writer.write(np.zeros((32, 64, 3), np.uint8))
    container = writer._container

    def full(packet):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer._container = SimpleNamespace(mux=full, close=container.close)
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    assert list(tmp_path.iterdir()) == []
    writer.close()


def test_probe_refuses_a_name_that_no_file_can_have(tmp_path):
    with pytest.raises(PlanError, match="the option --input"):
        probe(tmp_path / ("a" * 300))
