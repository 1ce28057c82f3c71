"""Pipelines by ``torch.distributed.pipelining``, forward only."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ppwork.claims.rank import World

WIDTH = 8


def _layers(world: World) -> list[nn.Module]:
    """Two layers, the same on every rank."""
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH).to(world.device) for _ in range(2)]


def _batch(world: World, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, WIDTH, generator=generator).to(world.device)


def _pipeline(world: World, microbatches: int) -> ScheduleGPipe:
    stage = PipelineStage(_layers(world)[world.rank], world.rank, 2, world.device)
    return ScheduleGPipe(stage, n_microbatches=microbatches)


def forward_only(world: World) -> None:
    """A layer per rank, four micro-batches, no loss; against both layers in one process."""
    schedule, batch = _pipeline(world, 4), _batch(world, 8)
    with torch.inference_mode():
        output = schedule.step(batch) if world.rank == 0 else schedule.step()
        if world.rank == 1:
            wanted = nn.Sequential(*_layers(world))(batch)
            world.note(rows=len(output), difference=(output - wanted).abs().max().item())


def another_batch_size(world: World) -> None:
    """A batch of 8, then one of 12: the micro-batches have another shape."""
    schedule = _pipeline(world, 4)
    with torch.inference_mode():
        for rows in (8, 12):
            output = schedule.step(_batch(world, rows)) if world.rank == 0 else schedule.step()
            world.note(**{f"after_{rows}": 0 if output is None else len(output)})


def a_schedule_for_each_size(world: World) -> None:
    """The same, with a stage and a schedule of its own for each size."""
    with torch.inference_mode():
        for rows in (8, 12):
            schedule = _pipeline(world, 4)
            output = schedule.step(_batch(world, rows)) if world.rank == 0 else schedule.step()
            world.note(**{f"after_{rows}": 0 if output is None else len(output)})


def eval_of_a_schedule(world: World) -> None:
    """``eval`` of a schedule, as it is: does its output carry the graph for a backward pass?"""
    schedule = _pipeline(world, 2)
    output = schedule.eval(_batch(world, 4)) if world.rank == 0 else schedule.eval()
    world.note(graph=output is not None and output.requires_grad)


def eval_in_inference_mode(world: World) -> None:
    """The same in inference mode."""
    with torch.inference_mode():
        eval_of_a_schedule(world)


def fewer_and_more_microbatches(world: World) -> None:
    """Schedules over two stages, each told to make one, two and four micro-batches."""
    stage = PipelineStage(_layers(world)[world.rank], world.rank, 2, world.device)
    for kind in (ScheduleGPipe, Schedule1F1B):
        refused = []
        for number in (1, 2, 4):
            try:
                kind(stage, n_microbatches=number)
            except ValueError:
                refused.append(number)
        world.note(**{kind.__name__: refused})
