"""What may travel: the tensors that a rank refuses before it sends anything."""

import pytest
import torch

from ppwork.errors import LocalProtocolError
from ppwork.runtime.tensors import spec_of


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_by_its_name_with_what_to_send_in_its_place(layout):
    """It was torch's own "Internal error", without name and line: torch has no sizes for it."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(LocalProtocolError, match="The tensor 'words' was nested") as caught:
        spec_of("words", nested, torch.device("cpu"))
    assert "`.unbind()`" in caught.value.check_first
