"""The program of lesson 13, and what runs its programs where no host can be made: two torchruns here."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import pytest
from solved import changed, right_program, verdict_of

from ppwork.lab import two_hosts

PORT = "--master-port={port}"


def test_two_torchruns_that_ask_at_two_ports_are_told_so(tmp_path):
    """The lesson's own attempt has both mistakes, and its solution none: each is run there."""
    source = changed(right_program("13.1"), (PORT, "--master-port={port + node}"))
    verdict = verdict_of("13.1", source, tmp_path, ranks=1, limit_s=90)
    assert "Where did it ask" in verdict.hint


ADDS_UP = (
    "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "total = torch.ones(1)\ndist.all_reduce(total)\nprint('sum', int(total), flush=True)\n"
    "dist.destroy_process_group()\n"
)


@pytest.mark.cold
def test_the_port_of_both_torchruns_is_free_for_nobody_else(tmp_path, monkeypatch):
    """It was chosen, let go, and taken again seconds later by torchrun: a neighbour could have it by then."""
    monkeypatch.setattr(two_hosts, "why_no_hosts", lambda **_: "only root may")
    running, tried = two_hosts.running, []
    with ExitStack() as taken:

        def neighbour_first(command, *args, **options):
            port = next(int(word.partition("=")[2]) for word in command if word.startswith("--master-port"))
            if not tried:
                try:
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
                except OSError as error:
                    tried.append(error.errno)
            return running(command, *args, **options)

        monkeypatch.setattr(two_hosts, "running", neighbour_first)
        (tmp_path / "my_sum.py").write_text(ADDS_UP)
        run = two_hosts.on_two_hosts(str(tmp_path / "my_sum.py"), limit_s=60)
    assert [run.printed(host) for host in (0, 1)] == ["sum 2", "sum 2"]
    assert tried == [errno.EADDRINUSE]


@pytest.mark.cold
def test_without_root_both_torchruns_are_on_this_machine_and_make_one_job(tmp_path, monkeypatch):
    monkeypatch.setattr(two_hosts, "why_no_hosts", lambda **_: "only root may")
    program = tmp_path / "my_sum.py"
    program.write_text(ADDS_UP)
    run = two_hosts.on_two_hosts(str(program), ranks=(1, 1))
    assert run.where == two_hosts.HERE
    assert [run.printed(host) for host in (0, 1)] == ["sum 2", "sum 2"]


TALKS = (
    "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "for number in range(1000):\n    print(f'rank {dist.get_rank()} line {number}', flush=True)\n"
    "dist.barrier()  # nobody leaves while another one still connects\ndist.destroy_process_group()\n"
)


@pytest.mark.cold
def test_ranks_of_one_host_that_print_at_once_leave_each_other_s_lines_whole(tmp_path, monkeypatch):
    """A lesson reads ``rank 2 ...`` off them; torchrun's ``-u`` makes two writes of a line and its end."""
    monkeypatch.setattr(two_hosts, "why_no_hosts", lambda **_: "only root may")
    (tmp_path / "my_talk.py").write_text(TALKS)
    run = two_hosts.on_two_hosts(str(tmp_path / "my_talk.py"), ranks=(1, 2))
    wanted = [f"rank {rank} line {number}" for rank in range(3) for number in range(1000)]
    assert [*run.lines[0], *run.lines[1]] == wanted
