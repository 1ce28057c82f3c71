"""A fault changes a stage in one way only: what it is offered, and what it may return, stay as they are."""

from __future__ import annotations

import pytest
import torch

from ppwork.faults.catalogue import AT_CHUNK, FAULTS, small_plan, with_fault
from ppwork.faults.fault import OUTSIDE
from ppwork.protocol.envelope import ChunkPlan, Ids
from ppwork.records.spans import Recorder
from ppwork.stage import Chunk, Emission, Result
from ppwork.worker.injectors.choose import injector_of
from ppwork.worker.loops import decode_chunk, encode_chunk, run_chunk

SAID, FROM_MESH = {"prompt": "a boat"}, {"seed": 7}


class Source:
    """A stage 0 that takes all that it may."""

    def encode(self, chunk_index):
        return Chunk({"x": torch.ones(2), "y": torch.ones(2)}, metadata=SAID)

    def context_frames(self, chunk_index):
        return {"context.x": torch.ones(2)}

    def decode(self, chunk_index, tensors, metadata, result_metadata):
        return Emission(tensors["x"], {"heard": float((metadata, result_metadata) == (SAID, FROM_MESH))})


class Model:
    """A generator that takes all that it may."""

    def replicated(self):
        return {"w": torch.zeros(2)}

    def step(self, tensors, step_index, num_steps, metadata):
        return Result(tensors, dict(metadata))


CASES = [f"{fault.id}/{case.name}" for fault in FAULTS for case in fault.cases if case.place != OUTSIDE]


@pytest.mark.parametrize("name", CASES)
def test_stages_hear_the_metadata_of_their_chunks_under_every_fault(name):
    plan = with_fault(small_plan(2), name)
    injectors = [injector_of(plan, rank, Recorder(None)) for rank in range(3)]
    source = injectors[0].stage(Source())
    chunk = encode_chunk(source, 0, recompute=True)
    assert chunk.metadata == SAID
    emission = decode_chunk(source, 0, Result(chunk.tensors, FROM_MESH), SAID, verify=False)
    assert emission.metrics == {"heard": 1.0}
    for rank in (1, 2):
        injectors[rank]._ids = Ids(0, 0, 0)  # as its plane says
        model = injectors[rank].stage(Model())
        result, _ = run_chunk(model, ChunkPlan.of(2), {"x": torch.ones(2)}, SAID)
        assert result.metadata == SAID


def test_a_tensor_that_cannot_travel_takes_its_place_in_a_chunk_that_says_more():
    injector = injector_of(with_fault(small_plan(2), "F02/sparse"), 0, Recorder(None))
    source = injector.stage(Source())
    chunk = encode_chunk(source, AT_CHUNK, recompute=False)
    assert chunk.tensors["x"].is_sparse
    assert not chunk.tensors["y"].is_sparse
    assert chunk.metadata == SAID
