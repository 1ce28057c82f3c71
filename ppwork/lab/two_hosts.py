"""A program of a lesson over two hosts: a plain torchrun on each, as people start it.

The hosts are in miniature (``faults.hosts``) where this process may make them. Elsewhere both torchruns are
on this machine; and what cannot be shown there, a cable, an interface, a clock of its own, is shown as it was
recorded on hosts in miniature, and says so.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from ppwork.errors import PlanError, UnavailableError
from ppwork.faults.hosts import ADDRESSES, CABLE, NAMES, MiniatureHost, hosts_on_a_switch, why_no_hosts
from ppwork.launcher.torchrun import LISTENING, STATIC_PORT, TORCHRUN, child_environment, running
from ppwork.launcher.warm import Started
from ppwork.process import held, hold_agent
from ppwork.protocol.plan import STORE_VARIABLE

PULLED, ONE_WAY = "pulled", "host b to host a is lost"
CABLES = ("", PULLED, ONE_WAY)
IN_MINIATURE, HERE = "two hosts in miniature", "one machine, two torchruns"
RECORDED = f"recorded on {IN_MINIATURE}"
LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
RANKS_OF = re.compile(r"--nproc-per-node=(\d+)")
STORE_OF = re.compile(r"--master-addr=(\S+) --master-port=(\d+)")
LOOK_S = 0.02
LIMIT_S = 90.0
RECORDS = Path(__file__).parent / "recorded" / "two_hosts.json"


@dataclass(frozen=True)
class TwoHosts:
    """A finished program over two hosts; shows the commands, and what the ranks of each host printed.

    Attributes:
        where: On what it ran.
        commands: Of the two torchruns, with the variable that was set for each in front.
        lines: What the ranks of each host printed: all of its first rank, then of its second, and so on.
    """

    where: str
    commands: tuple[str, str]
    lines: tuple[tuple[str, ...], tuple[str, ...]]

    def printed(self, host: int) -> str:
        """Return what the ranks of a host printed, host 0 or 1."""
        return "\n".join(self.lines[host])

    @property
    def ranks(self) -> dict[str, list[int]]:
        """The ranks of each host by its name, as the commands start them."""
        counts = [int(RANKS_OF.findall(command)[0]) for command in self.commands]
        return {NAMES[0]: [*range(counts[0])], NAMES[1]: [*range(counts[0], sum(counts))]}

    @property
    def store(self) -> str:
        """Address and port of the store, which host 0 opens."""
        return ":".join(STORE_OF.findall(self.commands[0])[0])

    @property
    def interface(self) -> str:
        """The network interface that both hosts were told to use."""
        return self.commands[0].split()[0].partition("=")[2]

    def __repr__(self) -> str:
        said = [f"({self.where}; here only root may make them)"] if self.where == RECORDED else []
        for name, whole, lines in zip(NAMES, self.commands, self.lines, strict=True):
            variable, command = whole.split(" torchrun", 1)  # a slide has no room for the whole line
            options, master = command.split(" --master", 1)
            said += [f"{name}$ {variable} \\"]
            said += [f"         torchrun{options} \\", f"           --master{master}"]
            said += [f"  {line}" for line in lines]
        return "\n".join(said)


def on_two_hosts(
    program: str,
    *,
    ranks: tuple[int, int] = (1, 1),
    interface: str = CABLE,
    cable: str = "",
    at: str = "",
    ahead_s: int = 0,
    limit_s: float = LIMIT_S,
) -> TwoHosts:
    """Run a program over two hosts, with a plain torchrun on each, and wait for both.

    Args:
        program: Its file.
        ranks: How many on each host.
        interface: ``GLOO_SOCKET_IFNAME`` on both.
        cable: ``"pulled"`` or ``"host b to host a is lost"``; empty: it holds.
        at: The cable does so when this text is printed on host a.
        ahead_s: Seconds by which the clock of host b is ahead, as it was started earlier.
        limit_s: Seconds after which both are ended.

    Raises:
        PlanError: There is no such program, or no such cable.
        UnavailableError: Nothing was recorded of this where nothing can be tried.

    Blocks:
        Until both torchruns have ended; at most ``limit_s`` and some seconds.
    """
    if cable not in CABLES or bool(cable) != bool(at):
        raise PlanError(f"cable={cable!r}, at={at!r}", check_first=f"cable is one of {CABLES[1:]}, with at=")
    if not Path(program).is_file():
        raise PlanError(f"There is no file {program}.", check_first="the cell that writes it")
    if not why_no_hosts(clocks=bool(ahead_s)):
        return _in_miniature(program, ranks, interface, cable, at, ahead_s, limit_s)
    known = name_of(program, interface, cable, ahead_s) in _records()
    if known or (interface, cable, ahead_s) != (CABLE, "", 0):
        return recorded(program, interface, cable, ahead_s)
    with socket.create_server((LOOPBACK, 0)) as listening:
        port = listening.getsockname()[1]
        words = [_words(node, count, LOOPBACK, port) for node, count in enumerate(ranks)]
        first = LISTENING.format(listening=listening.fileno()) + TORCHRUN
        with _both([_command(words[0], first), _command(words[1])], program, "lo", listening) as both:
            agents, logs = both
            _await(agents, limit_s)
            return _finished(HERE, words, program, "lo", logs)


def name_of(program: str, interface: str, cable: str, ahead_s: int) -> str:
    """Return the name under which a program's lines are recorded."""
    return ", ".join([Path(program).name, interface, cable or "cable holds", f"{ahead_s} s ahead"])


def recorded(program: str, interface: str, cable: str, ahead_s: int) -> TwoHosts:
    """Return what was recorded of a program as the lesson has it.

    Raises:
        UnavailableError: Nothing was.
    """
    known = _records()
    name = name_of(program, interface, cable, ahead_s)
    if name not in known:
        why = why_no_hosts(clocks=True)
        raise UnavailableError(
            f"Two hosts cannot be made here ({why}), and nothing was recorded of: {name}.",
            check_first="JupyterLab as root, in a container of its own",
        )
    return known[name]


def _records() -> dict[str, TwoHosts]:
    return msgspec.json.decode(RECORDS.read_bytes(), type=dict[str, TwoHosts])


def _in_miniature(
    program: str, ranks: tuple[int, int], interface: str, cable: str, at: str, ahead_s: int, limit_s: float
) -> TwoHosts:
    words = [_words(node, count, ADDRESSES[0], STATIC_PORT) for node, count in enumerate(ranks)]
    with hosts_on_a_switch(ahead_s={NAMES[1]: ahead_s}) as hosts:
        commands = [host.command(_command(said)) for host, said in zip(hosts, words, strict=True)]
        with _both(commands, program, interface) as (agents, logs):
            deadline = time.monotonic() + limit_s
            if cable:
                while at not in "\n".join(_lines_in(logs[0])) and agents[0].poll() is None:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(LOOK_S)
                _break(hosts, cable)
            _await(agents, deadline - time.monotonic())
            return _finished(IN_MINIATURE, words, program, interface, logs)


def _break(hosts: tuple[MiniatureHost, ...], cable: str) -> None:
    if cable == PULLED:
        hosts[1].cut()
    else:
        hosts[1].lose_what_goes_to(hosts[0])


def _words(node: int, ranks: int, address: str, port: int) -> list[str]:
    """Return torchrun's options on one host."""
    own = [f"--node-rank={node}", f"--nproc-per-node={ranks}"]
    return ["--nnodes=2", *own, f"--master-addr={address}", f"--master-port={port}"]


def _command(words: list[str], code: str = TORCHRUN) -> list[str]:
    return [*held(code, tie=hold_agent), "--monitor-interval=0.1", *words]


@contextlib.contextmanager
def _both(
    commands: list[list[str]], program: str, interface: str, listening: socket.socket | None = None
) -> Iterator[tuple[list[Started], list[Path]]]:
    """Start both torchruns; yield them and the folders that get what their ranks print, a file for each.

    In one file ranks would tear each other's lines: torchrun starts them with ``-u``, and then a line and its
    end are two writes. The first torchrun gets the socket of its store; it is closed here once that has it.
    """
    environment = {**child_environment(1), INTERFACE_VARIABLE: interface}
    environment.pop(STORE_VARIABLE, None)
    with TemporaryDirectory(prefix="ppwork-hosts-") as folder, contextlib.ExitStack() as stack:
        agents: list[Started] = []
        logs: list[Path] = []
        for name, command in zip(NAMES, commands, strict=True):
            logs.append(Path(folder) / name)
            console = stack.enter_context((Path(folder) / f"{name}.log").open("wb", buffering=0))
            theirs = listening if not agents else None
            whole = [*command, f"--log-dir={logs[-1]}", "--redirects=1", program]
            agents.append(stack.enter_context(running(whole, environment, console, inherited=theirs)))
        if listening is not None:
            listening.close()  # else who comes when the first torchrun is gone would wait for an answer
        yield agents, logs


def _await(agents: list[Started], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and any(agent.poll() is None for agent in agents):
        time.sleep(LOOK_S)


def _finished(where: str, words: list[list[str]], program: str, interface: str, logs: list[Path]) -> TwoHosts:
    variable = f"{INTERFACE_VARIABLE}={interface}"
    first, second = (" ".join([variable, "torchrun", *said, program]) for said in words)
    a, b = map(_lines_in, logs)
    return TwoHosts(where, (first, second), (a, b))


def _lines_in(logs: Path) -> tuple[str, ...]:
    """Return what the ranks of a host printed, rank by rank."""
    ranks = sorted(logs.glob("*/attempt_0/*/stdout.log"), key=lambda path: int(path.parent.name))
    return tuple(line for path in ranks for line in path.read_text(errors="replace").splitlines())
