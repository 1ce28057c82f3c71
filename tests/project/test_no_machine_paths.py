"""Nothing of a machine's own paths stands in what we ship."""

from __future__ import annotations

import subprocess
from pathlib import Path

from checkout import ROOT


def test_tracked_text_names_no_home_or_work_folder():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yml", ".txt", ".ipynb", ".cfg"} and path != Path(
            __file__
        ):
            text = path.read_text()
            assert "/home/" not in text, name
            assert "/work/" not in text, name
