"""The project's promises about itself: set-up files agree, imports are quick and torch-free, no pickle."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = re.compile(r"[A-Za-z0-9_.-]+")


def own(requirements: list[str]) -> set[str]:
    return {requirement for requirement in requirements if not requirement.startswith("ppwork")}


def test_environment_yml_is_true_to_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    listed = next(item["pip"] for item in environment if isinstance(item, dict))
    wanted = own(PROJECT["project"]["dependencies"]) | own(PROJECT["project"]["optional-dependencies"]["lab"])
    assert own([item for item in listed if not item.startswith("-")]) == wanted
    assert f"python{PROJECT['project']['requires-python']}" in environment


def test_every_direct_dependency_is_pinned_and_the_pin_is_allowed():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pins = dict(line.lower().split("==") for line in lines)
    optional = PROJECT["project"]["optional-dependencies"]
    direct = own(PROJECT["project"]["dependencies"]).union(*map(own, optional.values()))
    for requirement in direct:
        name, floor = requirement.lower().split(">=")
        assert name in pins, name
        assert tuple(map(int, re.findall(r"\d+", pins[name]))) >= tuple(map(int, floor.split("."))), name
    assert pins["torch"] == "2.13.0"


def test_import_ppwork_touches_nothing_that_takes_long():
    heavy = ("torch", "numpy", "av", "matplotlib", "IPython", "ipywidgets", "nbformat", "safetensors", "rich")
    script = f"import sys, ppwork; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_public_names_are_what_the_package_promises():
    import ppwork

    assert sorted(ppwork.__all__) == ppwork.__all__ or set(ppwork.__all__) == set(dir(ppwork)) & set(
        ppwork.__all__
    )
    assert all(hasattr(ppwork, name) for name in ppwork.__all__)
    assert ppwork.__version__ == PROJECT["project"]["version"]


def test_no_module_of_the_package_imports_pickle_or_object_collectives():
    """R11; ruff's S301 watches calls, this watches the names; claims try what others do."""
    forbidden = re.compile(r"import pickle|_object_list|all_gather_object|gather_object|torch\.load\b")
    for path in set((ROOT / "ppwork").rglob("*.py")) - set((ROOT / "ppwork" / "claims").rglob("*.py")):
        assert not forbidden.search(path.read_text()), path


def test_readme_names_the_two_commands_that_do_all_the_set_up():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text()
