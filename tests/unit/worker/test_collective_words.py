"""What the guards compare of each collective of torch: in a process group of one, which is a real one."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

from ppwork.protocol.envelope import Ids
from ppwork.protocol.topology import Role, Topology
from ppwork.worker import collectives
from ppwork.worker.collectives import OnlyGroup, seeing
from ppwork.worker.shared_calls import SEEN, SharedCalls, held
from ppwork.worker.tally import Tally


@pytest.fixture(scope="module")
def groups():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    handles = {"tp_pg": dist.group.WORLD}

    class OfOne(SimpleNamespace):
        def __getitem__(self, name):
            return handles[name]

    yield OfOne(rank=1, role=Role.LEADER, topology=Topology(1), handles=lambda: handles)
    dist.destroy_process_group()


@pytest.fixture
def noted(groups, tmp_path, monkeypatch):
    """What is written down of a call: in a chunk without an exchange, and in one with it."""

    def words(call):
        shared, compared = SharedCalls(groups, tmp_path), []
        monkeypatch.setattr(collectives, "compare", lambda groups, tally, said: compared.append(said))
        with OnlyGroup(groups, "tp_pg"):
            shared.begin(Ids(0, 0, 0))
            try:
                call()
                written = [each.operation for each in shared._own.calls().values()]
            finally:
                shared.close()
            with seeing(groups, Tally(1, "leader", -1)):
                call()
        return written, compared

    return words


def ones(*shape):
    return torch.ones(shape)


CALLS = {
    "all_reduce float32[4]": lambda tp: dist.all_reduce(ones(4), group=tp),
    "broadcast(from rank 1) float32[4]": lambda tp: dist.broadcast(ones(4), 0, group=tp),
    "all_gather float32[8, 3]": lambda tp: dist.all_gather([ones(8, 3)], ones(8, 3), group=tp),
    "all_gather bfloat16[2]": lambda tp: dist.all_gather([ones(2).bfloat16()], ones(2).bfloat16(), group=tp),
    "all_gather_single float32[4]": lambda tp: dist.all_gather_into_tensor(ones(4), ones(4), group=tp),
    "reduce_scatter float32[2, 4]": lambda tp: dist.reduce_scatter(ones(2, 4), [ones(2, 4)], group=tp),
    "reduce_scatter_single float32[8]": lambda tp: dist.reduce_scatter_tensor(ones(8), ones(8), group=tp),
    "all_to_all_single float32[6]": lambda tp: dist.all_to_all_single(ones(6), ones(6), group=tp),
    "all_to_all_single float32": lambda tp: dist.all_to_all_single(ones(6), ones(6), [6], [6], group=tp),
    "gather(to rank 1) int64[5]": lambda tp: dist.gather(ones(5).long(), [ones(5).long()], group=tp),
    "scatter(from rank 1) float32[5]": lambda tp: dist.scatter(ones(5), [ones(5)], group=tp),
}
OLDER = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
"""Names of torch before 2.13. Of a ``gather`` without an exchange the root is not known yet."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("said", CALLS)
def test_a_collective_is_compared_by_dtype_and_by_shape_where_all_ranks_must_pass_the_same(noted, said):
    """An ``all_gather`` of another shape, or dtype, went through: gloo aborted, or the bytes were misread."""
    written, compared = noted(lambda: CALLS[said](dist.group.WORLD))
    name, _, tensor = said.partition(" ")
    assert compared == [said]
    assert written in ([said], [f"{OLDER.get(name, 'gather')} {tensor.removeprefix('rank 1) ')}"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda tp: functional.all_gather_tensor(ones(2, 4), 0, tp),
            "all_gather_into_tensor float32[2, 4]",
        ),
        (lambda tp: functional.all_to_all_single(ones(6), [6], [6], tp), "all_to_all_single float32"),
    ],
)
def test_what_dtensor_calls_is_compared_and_pieces_of_unequal_size_by_their_dtype_alone(noted, call, said):
    assert noted(lambda: functional.wait_tensor(call(dist.group.WORLD))) == ([], [said])


def test_pieces_that_each_rank_takes_in_a_size_of_its_own_are_told_one_by_one():
    uneven = collectives.alike([ones(8, 3), ones(4, 3)], sized=True)
    assert (
        collectives.operation("all_gather", uneven, None, None) == "all_gather float32[8, 3], float32[4, 3]"
    )


def test_each_function_that_is_compared_has_the_parameter_that_is_looked_at():
    known = {name: parameter for name, parameter in SEEN.items() if hasattr(c10d, name)}
    assert len(known) > 10
    for name, parameter in known.items():
        assert not parameter or parameter in inspect.signature(getattr(c10d, name)).parameters


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.tensor(True), "'fresh' bool[] = True"),
        (torch.tensor([3, 4]), "'fresh' int64[2] = [3, 4]"),
        (torch.tensor(0.5), "'fresh' float32[] = 0.5"),
        (torch.zeros(5), "'fresh' float32[5] with digest "),
        (torch.zeros(2, dtype=torch.bfloat16), "'fresh' bfloat16[2] with digest "),
    ],
)
def test_what_is_held_is_shown_by_value_if_it_is_small(tensor, words):
    """Two digests of a flag that differed said less than true and false."""
    assert held("fresh", tensor).startswith(f"compare {words}")
