"""Transports of other packages, where they are installed: xDiT's coordinator of a pipeline.

``pip install --no-deps xfuser==0.7.0`` (1 MB). The package itself wants an accelerator, diffusers and more;
its transport does not. So one file of it is loaded, ``core/distributed/group_coordinator.py``, beside
stand-ins for the two modules that the file asks about the machine and for its log. Nothing of how it sends is
replaced but ``torch.cuda.synchronize``, which there is no card for. vLLM's ``send_tensor_dict``, which xDiT's
was made from, is not measured on its own: its package brings a torch of its own.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

FILE = Path("core", "distributed", "group_coordinator.py")


def xdit_version() -> str | None:
    """Return the version of xfuser that is installed, or None."""
    try:
        return metadata.version("xfuser")
    except metadata.PackageNotFoundError:
        return None


def xdit_coordinator(ranks: list[int]) -> Any:  # noqa: ANN401
    """Return xDiT's coordinator of these ranks, on gloo; None where xfuser is not installed.

    Collective: every rank makes its groups.
    """
    package = importlib.util.find_spec("xfuser")
    if package is None or not package.submodule_search_locations:
        return None
    environment = {
        "_is_npu": lambda: False,
        "get_device": lambda _local_rank: torch.device("cpu"),
        "PACKAGES_CHECKER": SimpleNamespace(get_packages_info=lambda: {"has_long_ctx_attn": False}),
    }
    stand_ins = {
        "xfuser": {},
        "xfuser.envs": environment,
        "xfuser.logger": {"init_logger": logging.getLogger},
    }
    for name, names in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(names)
        sys.modules[name] = module
    vars(sys.modules["xfuser"])["envs"] = sys.modules["xfuser.envs"]
    file = Path(package.submodule_search_locations[0]) / FILE
    spec = importlib.util.spec_from_file_location("xfuser_group_coordinator", file)
    if spec is None or spec.loader is None:
        return None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # its pickles name the module
    spec.loader.exec_module(module)
    if not torch.cuda.is_available():
        vars(module)["synchronize"] = lambda: None
    coordinator = module.PipelineGroupCoordinator(
        [ranks], local_rank=ranks[0], torch_distributed_backend="gloo"
    )
    coordinator.set_config(torch.float32)
    return coordinator
