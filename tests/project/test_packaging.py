"""The project's promises about itself: set-up files agree, imports are quick and torch-free, no pickle."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution

import yaml
from checkout import EXAMPLES, ROOT
from packaging.requirements import Requirement

from ppwork.version import WHEEL

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = re.compile(r"[A-Za-z0-9_.-]+")


def own(requirements: list[str]) -> set[str]:
    return {requirement for requirement in requirements if not requirement.startswith("ppwork")}


def test_environment_yml_is_true_to_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    listed = next(item["pip"] for item in environment if isinstance(item, dict))
    wanted = own(PROJECT["project"]["dependencies"])
    for extra in ("run", "lab"):
        wanted |= own(PROJECT["project"]["optional-dependencies"][extra])
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


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_along(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Names of all installed packages that one needs, and that those need in turn."""
    found, waiting = set(), [(name, extras)]
    while waiting:
        name, extras = waiting.pop()
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            if canonical(requirement.name) not in found:
                found.add(canonical(requirement.name))
                waiting.append((requirement.name, tuple(requirement.extras)))
    return found


def test_what_is_brought_along_is_pinned_too():
    """A release over night has turned these tests red: the pins of the kit were of the day before."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pins = {canonical(line.partition("==")[0]) for line in lines}
    extras = tuple(set(PROJECT["project"]["optional-dependencies"]) - {"train"})
    assert brought_along("ppwork", extras) - pins == {"ppwork"}


def test_import_ppwork_touches_nothing_that_takes_long():
    heavy = ("torch", "numpy", "av", "matplotlib", "IPython", "ipywidgets", "nbformat", "safetensors", "rich")
    script = f"import sys, ppwork; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder


class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""


def extras() -> set[str]:
    """Modules of every package that is not among the dependencies."""
    optional = PROJECT["project"]["optional-dependencies"]
    packages = {NAME.match(text)[0].lower() for extra in optional.values() for text in own(extra)}
    packages |= {"scipy", "ipython", "rich", "click", "skimage", "sklearn", "skvideo"}
    return {{"pillow": "PIL"}.get(name, name.replace("-", "_")) for name in packages}


def test_a_program_of_ones_own_needs_torch_numpy_msgspec_and_psutil_only(tmp_path):
    names = {NAME.match(text)[0] for text in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "numpy", "msgspec", "psutil"}
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS.format(absent=extras()))
    program = tmp_path / "prototype.py"
    of_two = (EXAMPLES / program.name).read_text().replace("mesh_size=2", "mesh_size=1")
    program.write_text(of_two)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{EXAMPLES}"}
    answer = subprocess.run(
        [sys.executable, *torchrun, str(program), str(tmp_path / "run")],
        env=environment, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
    for command, code, text in [
        (["ps"], 2, f'pip install "{WHEEL}[run]"'),
        (["diagnose", "--json", "run"], 2, f'pip install "{WHEEL}[run]"'),
        (["diagnose", "nowhere"], 2, "it is not there"),
        (["diagnose", "run"], 0, "Nothing failed"),
        (["--version"], 0, f"ppwork {PROJECT['project']['version']}"),
    ]:
        answer = subprocess.run(
            [sys.executable, "-m", "ppwork", *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert answer.returncode == code, answer.stderr
        assert text in (answer.stderr if code else answer.stdout)


def test_the_page_of_the_package_index_has_nothing_that_breaks_there():
    """Pictures and links that are relative to the repository lead nowhere on another site."""
    page = (ROOT / PROJECT["project"]["readme"]).read_text()
    assert "![" not in page
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")] == []


FACE = """
import sys, types
import ppwork
public = [
    name
    for name, value in vars(ppwork).items()
    if name[0] != "_" and not (isinstance(value, types.ModuleType) and value.__name__.startswith("ppwork."))
]
print(sorted(set(public) - set(ppwork.__all__)))
print(len([name for name in sys.modules if name.split(".")[0] == "ppwork"]))
print("torch" in sys.modules)
"""
HOOKS = ["load_ipython_extension"]
"""Not for people: found by its name."""


def test_the_face_is_31_names_nothing_public_beside_them_and_light():
    """23, three that say where the hosts of a run are, and two for a run that waits in a queue."""
    import ppwork

    assert sorted(ppwork.__all__) == ppwork.__all__
    assert len(ppwork.__all__) == 31
    answer = subprocess.run([sys.executable, "-c", FACE], capture_output=True, text=True, check=True)
    beside, modules, torch = answer.stdout.splitlines()
    assert ast.literal_eval(beside) == HOOKS
    assert int(modules) < 30
    assert torch == "False"
    assert ppwork.__version__ == PROJECT["project"]["version"]


def test_every_name_of_the_face_is_there_whatever_was_imported_before():
    """A verb stays a verb where a room or file is named like it; a room is a module."""
    script = """
import importlib, pkgutil, types
import ppwork
for module in pkgutil.iter_modules(ppwork.__path__):
    if module.name != "__main__":
        importlib.import_module(f"ppwork.{module.name}")
for home in ppwork._HOMES.values():
    importlib.import_module(f"ppwork.{home}")
rooms = [name for name in ppwork.__all__ if isinstance(getattr(ppwork, name), types.ModuleType)]
print(rooms)
print([name for name in ppwork.__all__ if name not in rooms and not callable(getattr(ppwork, name))])
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    rooms, no_verbs = map(ast.literal_eval, answer.stdout.splitlines())
    assert rooms == ["claims", "faults", "lesson", "pictures"]
    assert no_verbs == ["__version__"]


def test_no_module_of_the_package_imports_pickle_or_object_collectives():
    """R11; ruff has S301 for calls, this is for names; what is about others' programs may know them."""
    forbidden = re.compile(r"import pickle|_object_list|all_gather_object|gather_object|torch\.load\b")
    package = ROOT / "ppwork"
    about_others = {
        *(package / "claims").rglob("*.py"),
        *(package / "lab" / "exercises").glob("*.py"),
        package / "diagnosis" / "call_texts.py",
        package / "worker" / "trace.py",
        package / "worker" / "arguments.py",
        package / "pictures" / "style.py",
    }
    for path in set((ROOT / "ppwork").rglob("*.py")) - about_others:
        assert not forbidden.search(path.read_text()), path


def test_readme_names_the_two_commands_that_do_all_the_set_up():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_no_two_files_of_tests_have_one_name():
    """Python takes the second for the first, and ``pytest`` without a path stops before any test."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
