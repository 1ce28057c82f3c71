"""Notebooks in the repository: executed, with outputs, and normalised so that a diff shows what changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient

if TYPE_CHECKING:
    from pathlib import Path

CELL_LIMIT_S = 120
KEPT_CELL_METADATA = ("tags", "slideshow", "ppwork")
KEPT_METADATA = ("ppwork",)


def refresh(path: Path) -> None:
    """Execute a notebook in its own folder and write it back normalised.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed; the file is left as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ["PPWORK_NONINTERACTIVE"] = "1"
    NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    path.write_text(dump(normalised(notebook)))


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
        cell["id"] = f"cell-{number:02d}"
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA}
        )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
    return notebook


def dump(notebook: Any) -> str:  # noqa: ANN401
    """Return the notebook as it stands in the repository."""
    return str(nbformat.writes(notebook)) + "\n"
