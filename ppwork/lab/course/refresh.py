"""Notebooks in the repository: executed, with outputs, and normalised so that a diff shows what changed."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import nbformat
from nbclient import NotebookClient

from ppwork.errors import PlanError, text_of
from ppwork.lab.course.lessons import Ran
from ppwork.lab.parameters import declared
from ppwork.launcher.checks import choose_backend
from ppwork.launcher.view import QUIET_VARIABLE
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE
from ppwork.version import __version__

CELL_LIMIT_S = 120
KEPT_CELL_METADATA = ("tags", "ppwork")
KEPT_METADATA = ("ppwork",)
CHECK_TAG = "check"
"""A cell of a lesson that only holds its numbers to the prose: folded away."""
_UNNAMED = re.compile(r"cell-\d+|[0-9a-f]{8}(-[0-9a-f-]+)?")
"""Ids that nobody chose: ours, and those that Jupyter draws."""


def refresh(path: Path) -> None:
    """Execute a notebook in its own folder and write it back normalised.

    Raises:
        PlanError: It is no notebook; nothing was run.
        nbclient.exceptions.CellExecutionError: A cell failed; the file is left as it was.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise PlanError(
            f"The notebook {path} does not read: {text_of(error)}", check_first="is it an .ipynb file?"
        ) from error
    runs = path.parent / "runs"
    before = set(runs.glob("*"))
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_LIMIT_S, kernel_name="python3", resources=where)
    client.execute(env={**os.environ, QUIET_VARIABLE: "1"})
    if "ranks" in notebook.metadata.get("ppwork", {}):
        summaries = [run_dir / SUMMARY_FILE for run_dir in set(runs.glob("*")) - before]
        notebook.metadata.ppwork["ran"] = msgspec.to_builtins(ran(notebook, summaries))
    path.write_text(dump(normalised(_relative(notebook, path.parent.resolve()))))


def ran(notebook: Any, summaries: Iterable[Path]) -> Ran:  # noqa: ANN401
    """Return the origin of a lesson's outputs, for the foot of its slides.

    Args:
        notebook: The lesson, as it was just executed.
        summaries: Of its runs, as far as they have one. Where none has, because all its programs are its own,
            it is the backend of its parameter, or what ``auto`` takes on this machine for so many ranks.
    """
    devices = {}
    for path in filter(Path.is_file, summaries):
        summary = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        devices[summary["backend"]] = summary["device"]
    if not devices:
        parameters = declared((cell.source, cell.metadata.get("tags", ())) for cell in notebook.cells)
        wanted = str(parameters["backend"].default) if "backend" in parameters else "auto"
        backend = choose_backend(Plan(backend=wanted, mesh_size=max(1, notebook.metadata.ppwork.ranks - 1)))
        devices[backend] = "cuda" if backend == "nccl" else "cpu"
    return Ran(
        ppwork=__version__,
        torch=version("torch"),
        python=platform.python_version(),
        backend=" and ".join(sorted(devices)),
        device=" and ".join(sorted(set(devices.values()))),
    )


def normalised(notebook: Any) -> Any:  # noqa: ANN401  an untyped library's node
    """Return the notebook without what differs from run to run: timings, counts, kernel details."""
    notebook.metadata = nbformat.from_dict(
        {
            **{key: notebook.metadata[key] for key in KEPT_METADATA if key in notebook.metadata},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        if _UNNAMED.fullmatch(cell["id"]):
            cell["id"] = f"cell-{number:02d}"
        kept = {name: value for name, value in cell.metadata.items() if name in KEPT_CELL_METADATA}
        if CHECK_TAG in kept.get("tags", ()):
            kept["jupyter"] = {"source_hidden": True}
        cell.metadata = nbformat.from_dict(kept)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
    return notebook


def _relative(notebook: Any, folder: Path) -> Any:  # noqa: ANN401
    """Return the notebook with paths in its folder as a reader of another copy finds them."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        shown = output if output["output_type"] == "stream" else output.get("data", {})
        for kind, value in shown.items():
            if isinstance(value, str) and not kind.startswith("image/"):
                shown[kind] = value.replace(f"{folder}/", "")
    return notebook


def _joined(outputs: Iterable[Any]) -> list[Any]:
    """Join neighbours of one stream: where the kernel cut what was printed differs from run to run."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" and output.get("name") == last.get("name"):
            last["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def dump(notebook: Any) -> str:  # noqa: ANN401
    """Return the notebook as it stands in the repository."""
    return str(nbformat.writes(notebook)) + "\n"
