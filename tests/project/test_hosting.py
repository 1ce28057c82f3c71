"""What a code host and a host of notebooks read says what the Makefile, the README and pyproject.toml say."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml
from checkout import ROOT

PYTHON = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
MOST_MINUTES = 60


@pytest.fixture(scope="module")
def workflow():
    (path,) = (ROOT / ".github" / "workflows").glob("*.y*ml")
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def container():
    return json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def lowest(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def test_the_workflow_runs_targets_of_the_makefile_and_nothing_else(workflow):
    commands = {step["run"] for step in steps(workflow) if "run" in step}
    assert commands == {"make test", "make site"}
    assert {command.removeprefix("make ") for command in commands} <= TARGETS
    assert all(command in (ROOT / "README.md").read_text() for command in commands)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_what_is_published_is_what_make_site_writes_and_only_after_the_tests(workflow):
    (upload,) = [step for step in steps(workflow) if "upload-pages-artifact" in step.get("uses", "")]
    assert re.search(rf"^site:.* in {upload['with']['path']}$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    publish = workflow["jobs"]["publish"]
    assert set(publish["needs"]) == set(workflow["jobs"]) - {"publish"}
    assert "refs/heads/main" in publish["if"]


def test_jobs_are_bounded_and_may_do_no_more_than_they_need(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    allowed = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert allowed == {"publish": {"pages": "write", "id-token": "write"}}
    assert all(job["timeout-minutes"] <= MOST_MINUTES for job in workflow["jobs"].values())
    assert workflow["concurrency"]["group"]
    triggers = workflow[True]  # what YAML 1.1 makes of the key `on`
    assert set(triggers) == {"push", "pull_request", "workflow_dispatch"}
    kept = [
        step["with"]["persist-credentials"]
        for step in steps(workflow)
        if "/checkout@" in step.get("uses", "")
    ]
    assert kept == [False, False]


def test_every_action_is_pinned_to_a_commit_and_one_commit_each(workflow):
    used = {step["uses"] for step in steps(workflow) if "uses" in step}
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    assert len({action.partition("@")[0] for action in used}) == len(used)


def test_python_is_one_that_the_project_supports_everywhere(workflow, container):
    floor = lowest(PYTHON)
    versions = [
        step["with"]["python-version"] for step in steps(workflow) if "python-version" in step.get("with", {})
    ]
    assert versions
    assert {lowest(version) for version in versions} == {floor}
    image = re.fullmatch(r"[\w./-]+/python:\d+-([\d.]+)-\w+", container["image"])
    assert lowest(image[1]) == floor


@pytest.mark.parametrize("page", ["README.md", "docs/package.md", "CHANGELOG.md"])
def test_the_python_and_the_torch_that_a_page_calls_tested_are_those_of_ci(page, workflow):
    pythons = {
        step["with"]["python-version"] for step in steps(workflow) if "python-version" in step.get("with", {})
    }
    torch = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    text = " ".join((ROOT / page).read_text().split())
    assert [f"Python {python} with torch {torch}" in text for python in pythons] == [True]


def test_torch_comes_as_the_build_for_cpus_on_every_host(workflow, container):
    """By the environment, so that the README's commands stay as they are."""
    assert workflow["env"]["PIP_EXTRA_INDEX_URL"] == CPU_INDEX
    assert container["containerEnv"]["PIP_EXTRA_INDEX_URL"] == CPU_INDEX
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    options = next(item["pip"] for item in listed if isinstance(item, dict))
    assert f"--extra-index-url {CPU_INDEX}" in options
    assert f"PIP_EXTRA_INDEX_URL={CPU_INDEX}" in (ROOT / "docs" / "before-the-workshop.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/before-the-workshop.md", "slides/INSTRUCTOR.md"])
def test_every_target_of_the_makefile_that_a_page_names_is_there(page):
    """In a code block or between backquotes; with variables before and after it."""
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?:^|`)(?:[A-Z_]+=\S+ )*make ([\w-]+)", text, re.MULTILINE))
    assert named
    assert named <= TARGETS


def test_environment_yml_installs_this_checkout_with_its_pins():
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    options = next(item["pip"] for item in listed if isinstance(item, dict))
    assert "-c constraints.txt" in options
    assert "-e .[dev]" in options


def test_the_dev_container_is_made_by_the_command_of_the_readme(container):
    command = container["postCreateCommand"]
    assert command.removeprefix("make ") in TARGETS
    first = re.search(r"## Try it.*?```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert command in first[1]
    interpreter = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter.endswith("/.venv/bin/python")
    assert ".venv/bin/python:" in (ROOT / "Makefile").read_text()
