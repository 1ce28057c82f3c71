"""The summary of a run, which rank 0 writes at its end: measures, the stage's own figures, versions, plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from ppwork.errors import RecordError
from ppwork.plan import Plan
from ppwork.records.files import read_json, write_whole
from ppwork.records.run import STREAM_ENDED, SUMMARY_FILE, stream_ended
from ppwork.records.spans import read_entries
from ppwork.timeline.measures import dropped_chunks, measure, metrics_of, stage1_ms_of
from ppwork.version import __version__

Kept = dict[str, dict[int, torch.Tensor | dict[str, torch.Tensor]]]
"""For each file of the run's folder tensors by chunk index, and by name if a chunk has several."""


def write_summary(
    plan: Plan,
    run_dir: Path,
    device: str,
    figures: Mapping[str, object] | None = None,
    kept: Kept | None = None,
) -> None:
    """Write ``summary.json``, and the tensors that were kept.

    Args:
        plan: The run's plan.
        run_dir: The run's folder; its spans of rank 0 are measured.
        device: ``cpu`` or ``cuda``.
        figures: Figures that ``finish`` returned.
        kept: Tensors, for files of the folder.

    Raises:
        RecordError: The summary cannot be written (rank 0).
        OSError: The tensors cannot be written.
    """
    for name, chunks in (kept or {}).items():
        from safetensors.torch import save_file

        tensors = {
            f"{index:06d} {name}".rstrip(): tensor.contiguous().cpu()
            for index, of_chunk in chunks.items()
            for name, tensor in (of_chunk if isinstance(of_chunk, dict) else {"": of_chunk}).items()
        }
        save_file(tensors, run_dir / name)
    entries = read_entries(run_dir, 0)
    measures = measure(entries, stage1_ms_of(entries), depth=plan.in_flight_depth)
    versions = {"ppwork": __version__, "torch": str(torch.__version__), "python": sys.version.split()[0]}
    summary = {
        **msgspec.to_builtins(measures),
        "dropped_chunks": dropped_chunks(entries),
        "figures": dict(figures or {}),
        "metrics": metrics_of(entries),
        "backend": "copies" if plan.one_process else "nccl" if device == "cuda" else "gloo",
        "device": device,
        **({STREAM_ENDED: asked} if (asked := stream_ended(entries)) else {}),
        "versions": versions,
        "plan_digest": plan.digest,
        "plan": read_json(run_dir / Plan.FILE_NAME, dict[str, Any]) or plan.to_dict(),
    }
    path = run_dir / SUMMARY_FILE
    try:
        write_whole(path, msgspec.json.format(msgspec.json.encode(summary), indent=2))
    except OSError as error:
        what = f"All chunks have come back, and {path} could not be written: {error.strerror}."
        raise RecordError(what, where={"rank": 0}, check_first="was its folder removed meanwhile?") from error


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a dtype that safetensors keeps: of complex numbers the two parts."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128))
    return tensor.double() if tensor.dtype is torch.float8_e8m0fnu else tensor
