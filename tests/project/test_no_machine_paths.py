"""No path of the machine that a text was written on stands in what we ship."""

from __future__ import annotations

import re
import subprocess

import pytest
from checkout import ROOT

TEXTS = {".py", ".md", ".toml", ".yml", ".txt", ".ipynb", ".cfg"}
FOLDER = re.compile("/(?:home|work)/")
PICTURE = re.compile(r'"image/(?:png|jpeg)": "[^"]*"|base64,[\w+/=]*')
"""In a notebook, in letters that may spell anything."""


def paths_in(text: str) -> list[str]:
    return FOLDER.findall(PICTURE.sub("", text))


def test_tracked_text_names_no_home_or_work_folder():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = [ROOT / name for name in listed.splitlines() if (ROOT / name).suffix in TEXTS]
    assert [str(path) for path in texts if paths_in(path.read_text())] == []


@pytest.mark.parametrize("folder", ["home", "work"])
def test_a_path_is_found_beside_a_picture_that_spells_one(folder):
    picture = f'"image/png": "iVBOR/{folder}/=", "text/html": "<img src=data:image/png;base64,AA/{folder}/>"'
    assert paths_in(picture) == []
    assert paths_in(f'{picture}, "text/plain": "/{folder}/someone/run"')
