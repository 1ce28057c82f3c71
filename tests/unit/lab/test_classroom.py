"""A class of machines: what a line says and does not say, and what the lines of all come to."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
import typer
from made_machines import H200, LAPTOP, TORCH, WANTS

from ppwork.cli import doctor as command
from ppwork.errors import PlanError
from ppwork.lab.doctor import classroom
from ppwork.lab.doctor.classroom import MOST_BYTES, ClassLine, class_line, class_table, collected
from ppwork.lab.doctor.doctor import FINE, LIMITED, MISSING, DoctorReport, machine_rows, will_run

MACHINE = msgspec.structs.replace(LAPTOP, disk="/Users/anna/work", browser="/Users/anna/bin/chromium")
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def report(**changes) -> DoctorReport:
    machine = msgspec.structs.replace(MACHINE, **changes)
    return DoctorReport(here=machine_rows(machine), runs=will_run(machine, WANTS), machine=machine)


def probed(**changes) -> dict:
    return {"probed": msgspec.structs.replace(MACHINE.probed, **changes)}


def line(machine="aaaaaaaa", **changes) -> ClassLine:
    return msgspec.structs.replace(class_line(report(), at=NOON), machine=machine, **changes)


def write(path, *lines):
    path.write_text("".join(f"{msgspec.json.encode(each).decode()}\n" for each in lines))
    return path


def test_a_line_has_what_an_instructor_asks():
    found = class_line(report(), at=NOON)
    assert found.at == "2026-11-23T12:00:00Z"
    assert (found.system, found.python, found.torch) == ("Linux 6.1 x86_64", "3.12.1", "2.13.0+cpu")
    assert (found.cores, found.memory_gb, found.memory_free_gb) == (4, 16.0, 8.0)
    assert (found.backends, found.gpus, found.ready, found.todo) == (["gloo"], [], True, {})
    assert found.verdicts["gloo"] == FINE
    assert found.verdicts["NCCL"] == LIMITED
    assert {row.what for row in (*report().here, *report().runs)} == set(found.verdicts)


def test_nccl_is_a_backend_where_it_is_fine():
    changes = {"gpus": [H200], "cuda_built": "13.0", "nccl_built": True, "nccl": "2.29.3"}
    found = class_line(report(driver="580.95", **probed(**changes)))
    assert found.backends == ["gloo", "nccl"]
    assert found.gpus == ["NVIDIA H200"]
    assert found.verdicts["NCCL"] == FINE


def test_a_machine_that_is_not_ready_says_what_to_do():
    found = class_line(report(**probed(gloo_ms=None, errors={"gloo": "no route"})))
    assert not found.ready
    assert found.backends == []
    assert found.verdicts["gloo"] == MISSING
    assert "ip addr show lo" in found.todo["gloo"]


def test_a_machine_without_jupyterlab_is_not_ready_for_a_class():
    found = class_line(report(packages=[TORCH]))
    assert report(packages=[TORCH]).ready
    assert not found.ready
    assert found.todo == {"lessons": 'pip install -c constraints.txt -e ".[lab]"'}


def test_a_line_names_no_person_host_or_folder(monkeypatch):
    """Whatever goes wrong: errors hold folders, and folders hold the names of people."""
    monkeypatch.setattr(classroom.platform, "node", lambda: "annas-laptop")
    path = "[Errno 13] Permission denied: '/Users/anna/.venv'"
    errors = dict.fromkeys(("torch", "gloo", "gpu", "video"), path)
    broken = report(
        scratch_error=path,
        loopback=3,
        loopback_error=path,
        disk_free_mb=1.0,
        packages=[],
        lessons=["00-anna.ipynb"],
        **probed(torch="", gloo_ms=None, x264=False, errors=errors),
    )
    for each in (class_line(report()), class_line(broken)):
        text = msgspec.json.encode(each).decode().lower()
        assert "anna" not in text
        assert "/home" not in text
        assert "\n" not in text


def test_the_machine_has_the_same_digits_each_time_and_others_than_its_neighbour(monkeypatch):
    first = class_line(report())
    assert class_line(report(cores=1)).machine == first.machine
    assert len(first.machine) == 8
    monkeypatch.setattr(classroom.platform, "node", lambda: "another")
    assert class_line(report()).machine != first.machine


def test_the_newest_line_of_each_machine_counts(tmp_path):
    late, early = line(at="2026-11-23T13:00:00Z"), line(at="2026-11-23T12:00:00Z", ready=False)
    write(tmp_path / "a.json", late)
    write(tmp_path / "b.json", early, line("bbbbbbbb"))
    found = collected(tmp_path)
    assert found == {"a.json:1": late, "b.json:2": line("bbbbbbbb")}
    joined = tmp_path / "a.json"
    assert collected(joined) == {"a.json:1": late}


def test_the_table_has_those_that_are_not_ready_first_and_counts(tmp_path):
    poor = line("cccccccc", ready=False, backends=[], torch="", cores=1, todo={"torch": "pip install torch"})
    table = class_table({"a:1": line(), "b:1": poor, "c:1": line("bbbbbbbb")})
    assert [row[0] for row in table.rows] == ["b:1", "a:1", "c:1"]
    assert table.rows[0][-1] == "torch: pip install torch"
    assert table.rows[0][-2] == ("not here", "red")
    assert table.below == "2 of 3 machines are ready; fewest cores 1; torch 2.13.0+cpu on 2, none on 1"


def test_a_line_that_commands_a_terminal_is_shown_and_not_obeyed(tmp_path):
    table = class_table({"a:1": line(system="\x1b[2J")})
    assert "\x1b" not in str(table)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no line of a machine"),
        (b"\n\n", "no line of a machine"),
        (b"{}\n", "Line 1 of"),
        (b'{"at": 3}\n', "Line 1 of"),
        (b"\xff\n", "Line 1 of"),
        (b'{"at": "2026-11-23T1', "Line 1 of"),
        (b"x" * (MOST_BYTES + 1), "more than"),
    ],
)
def test_what_is_no_line_of_the_doctor_is_refused_with_its_place(tmp_path, content, said):
    file = tmp_path / "class.jsonl"
    file.write_bytes(content)
    with pytest.raises(PlanError, match=said):
        collected(file)
    with pytest.raises(PlanError, match=said):
        collected(tmp_path)


def test_a_place_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PlanError, match="No such file"):
        collected(tmp_path / "nothing")


def test_the_command_prints_one_line_and_joins_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "doctor", report)
    command.doctor_command(for_class=True)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed)["ready"] is True
    (tmp_path / "one.json").write_text(printed)
    command.doctor_command(join=tmp_path)
    assert "1 of 1 machines are ready" in capsys.readouterr().out
    write(tmp_path / "two.json", line("dddddddd", ready=False))
    with pytest.raises(typer.Exit) as left:
        command.doctor_command(join=tmp_path, as_json=True)
    assert left.value.exit_code == command.NOT_READY
    assert [each["ready"] for each in json.loads(capsys.readouterr().out)] == [True, False]
    with pytest.raises(PlanError, match="exclude each other"):
        command.doctor_command(for_class=True, join=tmp_path)
