"""The link on the CPU and the mesh on GPUs: the example, with a mesh rank for each GPU, none for rank 0."""

import pytest
from checkout import EXAMPLES
from plain_torchrun import torchrun

from ppwork.launcher.checks import count_gpus

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(180)
def test_a_mesh_sums_on_its_gpus_beside_a_rank_0_that_has_none():
    gpus = count_gpus()
    assert gpus > 0, "select these tests only where there is a GPU"
    said = torchrun(1 + gpus, EXAMPLES / "cpu_link.py")
    assert said == [f"chunk {k}: {40 * k}, summed on cuda" for k in range(6)]
