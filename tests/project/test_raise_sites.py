"""``PlanError`` is bad input alone: nothing raises it once ranks run, nor of a machine or a record."""

from __future__ import annotations

import ast

from checkout import ROOT

BEFORE = {
    "protocol/bounds.py": {"bring_up_timeout_s"},
    "protocol/plan.py": {"_refuse_unknown", "backend_with", "refuse"},
    "runtime/device.py": {"pick_device", "_refuse_late"},
    "runtime/groups.py": {"_agree", "given_secret"},
    "runtime/membership.py": {"here", "begin", "_of_torchrun", "open_store", "_torchruns_store"},
    "worker/user_job.py": {"join", "_begin_records", "_make_folder_of_host"},
    "workloads/clip.py": {"probe", "_check_file"},
    "workloads/spec.py": {"check_plan"},
    "workloads/times.py": {"synthetic"},
    "launcher/checks.py": {
        "resolve", "check_limit", "check_environment", "_with_clip_and_chunks", "backend_of_one_process",
        "check_stages",
    },
    "launcher/script.py": {"launch_script", "check_program", "_check_hosts"},
    "launcher/job.py": {"load", "submit", "find", "stop"},
    "launcher/standing.py": {"_ranks_of"},
    "launcher/nodes/host_session.py": {"greet"},
    "launcher/nodes/places.py": {"__post_init__", "placed", "places_of"},
}  # fmt: skip
"""Functions that look at what the user gave before the first rank starts, or before a rank has joined."""
ROOMS = ("protocol", "runtime", "worker", "workloads", "launcher")
"""Whose code runs in ranks, or beside them."""


def sites(path):
    """Return the names of the functions of a file in which a ``PlanError`` is made."""
    found = set()

    def walk(node, function):
        for child in ast.iter_child_nodes(node):
            name = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call) and ast.unparse(child.func).rpartition(".")[2] == "PlanError":
                found.add(name)
            walk(child, name)

    walk(ast.parse(path.read_text()), "")
    return found


def test_bad_input_is_said_only_where_input_is_looked_at():
    """Who adds a site asks: has a rank started? is it what the user gave? Else it is another class."""
    package = ROOT / "ppwork"
    found = {
        str(path.relative_to(package)): functions
        for room in ROOMS
        for path in sorted((package / room).rglob("*.py"))
        if (functions := sites(path))
    }
    assert found == BEFORE


def test_a_site_is_found_in_a_method_and_in_a_function_inside_one(tmp_path):
    (tmp_path / "some.py").write_text(
        "class A:\n    def outer(self):\n        def inner():\n            raise errors.PlanError('')\n"
        "def plain():\n    return PlanError('')\ndef other():\n    raise ValueError\n"
    )
    assert sites(tmp_path / "some.py") == {"inner", "plain"}
