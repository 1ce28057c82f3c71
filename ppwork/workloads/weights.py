"""Reading and writing the weights file: both modules in one safetensors file, half precision.

The sizes stand in the file's metadata, so a file says by itself what it fits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ppwork.errors import UnreadableError
from ppwork.stage import NoTensorParallel, TensorParallel
from ppwork.workloads.autoencoder import Autoencoder
from ppwork.workloads.dit import VideoDiT
from ppwork.workloads.spec import ModelSpec, default_weights

if TYPE_CHECKING:
    from torch import nn


def read_spec(path: Path) -> ModelSpec:
    """Return the sizes in the file's metadata.

    Raises:
        UnreadableError: The file is missing or is no weights file of ours (any rank that loads it).
    """
    try:
        with safe_open(path, framework="pt") as file:
            return ModelSpec(**json.loads((file.metadata() or {})["spec"]))
    except Exception as error:
        raise UnreadableError(
            f"The weights {path} could not be read: {type(error).__name__}: {error}",
            check_first="the file is part of the package; is the installation complete?",
        ) from error


def load_autoencoder(path: Path | None = None) -> Autoencoder:
    """Return the autoencoder with its weights in float32, in inference mode, on the CPU."""
    path = path or default_weights()
    model = Autoencoder(read_spec(path))
    _fill(model, "autoencoder.", path)
    return model.eval().requires_grad_(False)


def load_dit(tp: TensorParallel | None = None, path: Path | None = None) -> VideoDiT:
    """Return the DiT with this rank's share of the weights in float32, in inference mode, on the CPU.

    Every rank reads the whole file (a few MB) and keeps its part.

    Collective:
        None.
    """
    path = path or default_weights()
    model = VideoDiT(read_spec(path), tp or NoTensorParallel())
    _fill(model, "dit.", path)
    model.shard()
    return model.eval().requires_grad_(False)


def save(path: Path, autoencoder: Autoencoder, dit: VideoDiT, metadata: dict[str, str]) -> None:
    """Write both modules in half precision, with the sizes and ``metadata``, under a temporary name first."""
    tensors = {
        prefix + name: tensor.detach().to(torch.float16).contiguous().clone()
        for prefix, module in (("autoencoder.", autoencoder), ("dit.", dit))
        for name, tensor in module.state_dict().items()
    }
    part = path.with_name(path.name + ".part")
    save_file(tensors, part, {**metadata, "spec": json.dumps(dit.spec.to_dict())})
    part.chmod(0o644)  # safetensors writes for the owner alone, but the file ships with the package
    part.replace(path)


def _fill(module: nn.Module, prefix: str, path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  not a dict
        module.load_state_dict({n.removeprefix(prefix): file.get_tensor(n).float() for n in names})
