"""Which frames the side-by-side picture shows."""

import torch

from ppwork.workloads.picture import FrameComparison


def rows_of(tmp_path, chunks, frames_per_chunk=2, total=18):
    """Return how many rows the picture has after these chunks of a run were offered."""
    comparison = FrameComparison(total)
    for chunk in chunks:
        frames = torch.full((frames_per_chunk, 3, 8, 8), chunk / 10)
        comparison.offer(chunk * frames_per_chunk, frames, frames, frames)
    comparison.save(tmp_path / "picture.png")
    return sorted(comparison._rows)


def test_one_frame_of_each_third(tmp_path):
    assert rows_of(tmp_path, range(9)) == [3, 9, 15]


def test_a_frame_that_a_flush_dropped_is_replaced_by_the_next_there_is(tmp_path):
    """Frames 2, 3 and 8 to 11 are gone."""
    assert rows_of(tmp_path, [0, 2, 3, 6, 7, 8]) == [4, 12, 15]
