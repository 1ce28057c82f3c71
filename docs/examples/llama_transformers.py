"""A Llama of ``transformers`` in the mesh: split by the plan that its own configuration has, with its cache.

Tiny and random, so nothing is downloaded. Rank 0 has embedding and head, as in ``llama.py``. It needs the
package: ``pip install "ppwork[run,examples]"``. From this folder::

    ppwork run --stage0 llama_transformers:Words --stage1 llama_transformers:Llama --depth 2 --verify
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llama
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from ppwork.ranks import StageContext, Tensors

CONFIG = LlamaConfig(
    vocab_size=llama.WORDS,
    hidden_size=llama.DIM,
    intermediate_size=2 * llama.DIM,
    num_hidden_layers=llama.LAYERS,
    num_attention_heads=llama.HEADS,
    num_key_value_heads=llama.HEADS // 2,
)
WAYS = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
"""What the words of ``base_model_tp_plan`` are called in torch."""


def whole() -> LlamaForCausalLM:
    """Return the same random model in every process."""
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


class Words(llama.Words):
    """Rank 0: the next word of each prompt in turn."""

    def ends(self) -> tuple[nn.Module, nn.Module]:
        """Return embedding and head."""
        model = whole()
        return model.get_input_embeddings(), model.get_output_embeddings()


class Llama:
    """Mesh: the model between them, split, and a cache for each prompt."""

    def __init__(self, context: StageContext) -> None:
        self.model = whole().model
        split = {name: WAYS[way]() for name, way in CONFIG.base_model_tp_plan.items()}
        parallelize_module(self.model, context.tp.device_mesh, split)
        self.past: dict[int, DynamicCache] = {}

    def reset_cache(self) -> None:
        self.past.clear()

    def step(self, tensors: Tensors, step_index: int, num_steps: int, metadata: Mapping[str, Any]) -> Tensors:
        past = self.past.setdefault(metadata["prompt"], DynamicCache())
        ran = self.model(inputs_embeds=tensors["x"][None], past_key_values=past)
        return {"x": ran.last_hidden_state[0]}
