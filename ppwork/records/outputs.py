"""The outputs that a run kept, read back; no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ppwork.errors import PlanError, UnreadableError
from ppwork.records.run import OUTPUTS_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray

Output: TypeAlias = "NDArray[Any] | dict[str, NDArray[Any]]"
"""What a stage emitted for a chunk, or the tensor of a loop's result; by name if it had several."""

NUMPY_NAMES = {"BOOL": "bool", "C64": "complex64", "F16": "float16", "F32": "float32", "F64": "float64"}
NUMPY_NAMES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}
NUMPY_NAMES |= {f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)}
"""Dtypes of a safetensors file, as numpy names them."""


def read_outputs(run_dir: Path) -> dict[int, Output]:
    """Return rank 0's outputs, by chunk index, in their own dtype; bfloat16 comes as float32.

    Raises:
        PlanError: The outputs were not kept.
        UnreadableError: The file does not read as outputs, or numpy lacks a dtype.
    """
    from safetensors import SafetensorError, deserialize

    path = run_dir / OUTPUTS_FILE
    if not path.is_file():
        raise PlanError(
            f"The run {run_dir} kept no outputs.", check_first="Plan(keep_outputs=True), or --keep-outputs"
        )
    outputs: dict[int, Output] = {}
    try:
        views = [(*key.partition(" ")[::2], view) for key, view in deserialize(path.read_bytes())]  # type: ignore[no-untyped-call]
        for index, name, view in sorted(views, key=lambda each: each[:2]):
            values = _values(path, view)
            if name:
                outputs[int(index)] = {**outputs.get(int(index), {}), name: values}  # type: ignore[dict-item]
            else:
                outputs[int(index)] = values
    except (SafetensorError, ValueError) as error:
        raise UnreadableError(
            f"The outputs of {run_dir} do not read: {error}.",
            check_first=f"{path}: was it copied whole? did anything else write there?",
        ) from error
    return outputs


def _values(path: Path, view: dict[str, Any]) -> NDArray[Any]:
    import numpy as np

    if view["dtype"] == "BF16":  # the upper half of a float32
        halves = np.frombuffer(view["data"], np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(view["shape"])
    if (dtype := NUMPY_NAMES.get(view["dtype"])) is None:
        raise UnreadableError(
            f"The outputs of {path.parent} are {view['dtype']}, which numpy does not have.",
            check_first=f"safetensors.torch.load_file({str(path)!r})",
        )
    return np.frombuffer(view["data"], dtype).reshape(view["shape"])
