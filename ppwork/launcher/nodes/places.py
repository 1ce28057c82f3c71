"""Where the hosts of a run are, and the command that starts a node on each: what ``on=`` takes.

Nothing here schedules anything: ``ssh``, ``srun``, ``kubectl exec`` start a process and give us its pipe.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict, Unpack

from ppwork.errors import PlanError
from ppwork.launcher.nodes.wire import SLURM
from ppwork.launcher.slurm import state_of

SSH = (
    "ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
"""Never asks for a password, refuses hosts with unknown keys, and sees within 15 s that a host is gone."""
_QUEUED = re.compile(r"job (\d+) queued and waiting")
"""What ``srun`` prints when it has to wait."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]{0,200}")


@dataclass(frozen=True)
class Places:
    """The hosts of a run; one of ``Hosts``, ``Command`` and ``Slurm``.

    Attributes:
        hosts: Names, in the order of the ranks.
        ranks: Number of ranks of each host; ``None``: rank 0 on the first host, the mesh over the others.
        python: Python on the hosts, with ppwork in it; default: the path of this one.
        same_host: Allow several nodes on one host, for tests; else that is taken for a mistake.
        allow_public: The ranks' network may be the Internet, which nothing here protects.
        use_shared: A host that sees the run's folder at the same path writes into it.
    """

    hosts: Sequence[str]
    ranks: Sequence[int] | None = None
    python: str = ""
    same_host: bool = False
    allow_public: bool = False
    use_shared: bool = True
    greet_s: ClassVar[float] = 15.0
    """Seconds in which every host has to answer; with a queue it takes longer."""
    waits: ClassVar[str] = "waits for its hosts"
    """What a run does until all hosts have answered."""
    no_answer: ClassVar[str] = (
        "the same command by hand: does it get there, and is ppwork there? "
        "`python=` of pp.Hosts names its Python"
    )
    """What to check first if a host does not answer."""

    def __post_init__(self) -> None:
        """Accept lists, too, and refuse values that no command could take.

        Raises:
            PlanError: There is no host, a name is invalid, or ``ranks`` does not fit.
        """
        object.__setattr__(self, "hosts", tuple(self.hosts))
        object.__setattr__(self, "ranks", None if self.ranks is None else tuple(self.ranks))
        if not self.hosts:
            raise PlanError("A run was to be on no host.", check_first='on=pp.Hosts("a", "b")')
        for host in self.hosts:
            if not _NAME.fullmatch(host):
                raise PlanError(f"{host!r} is no name of a host.", check_first="letters, digits, `.`, `-`")
        if self.ranks is not None and (len(self.ranks) != len(self.hosts) or min(self.ranks) < 1):
            raise PlanError(
                f"{len(self.hosts)} hosts were given, and ranks={self.ranks}.",
                check_first="a number of ranks for each host, 1 or more",
            )

    def commands(self) -> list[tuple[list[str], tuple[int, ...]]]:
        """Return the commands that start the nodes, each with the numbers of its nodes."""
        return [(self._command(host, node), (node,)) for node, host in enumerate(self.hosts)]

    def in_queue(self, words: str) -> str:  # noqa: ARG002  who has a queue reads it
        """Return a queue's report on nodes that have not answered; empty if they are in no queue.

        Args:
            words: Output of the command that leads to the nodes.

        Raises:
            UnavailableError: The queue does not answer.
        """
        return ""

    def placed(self, world_size: int) -> tuple[int, ...]:
        """Return how many ranks each host has.

        Raises:
            PlanError: Their sum is not the plan's number of ranks, or a host would have none.
        """
        if self.ranks is not None:
            if sum(self.ranks) != world_size:
                raise PlanError(
                    f"The plan has {world_size} ranks, and ranks={self.ranks} are {sum(self.ranks)}.",
                    check_first="rank 0 counts, too",
                )
            return tuple(self.ranks)
        if len(self.hosts) == 1:
            return (world_size,)
        others, mesh = len(self.hosts) - 1, world_size - 1
        if mesh < others:
            raise PlanError(
                f"{len(self.hosts)} hosts were given for {world_size} ranks: a host would have none.",
                check_first="fewer hosts, or a larger mesh",
            )
        return (1, *(mesh // others + (number < mesh % others) for number in range(others)))

    def _command(self, host: str, node: int) -> list[str]:
        raise NotImplementedError

    def _node(self, which: str) -> list[str]:
        return [self.python or sys.executable, "-P", "-m", "ppwork", "node", which]


class Options(TypedDict, total=False):
    """Options that all kinds of places take; see ``Places``."""

    ranks: Sequence[int] | None
    python: str
    same_host: bool
    allow_public: bool
    use_shared: bool


class Hosts(Places):
    """Hosts that ``ssh`` reaches without a password, and whose keys are known: ``pp.Hosts("a", "b")``.

    Args:
        names: Names of the hosts, as ``ssh`` takes them.
        options: See ``Places``.
    """

    def __init__(self, *names: str, **options: Unpack[Options]) -> None:
        super().__init__(names, **options)

    def _command(self, host: str, node: int) -> list[str]:
        return [*SSH, "--", host, shlex.join(self._node(str(node)))]


@dataclass(frozen=True, init=False)
class Command(Places):
    """Any command that starts a process on a host and gives us its standard input and output.

    ``pp.Command("kubectl exec -i {host} --", hosts=["p-0", "p-1"])``. An empty command starts the nodes here.

    Args:
        template: The command; ``{host}`` in it is the host's name.
        hosts: Names of the hosts.
        options: See ``Places``.
    """

    template: str = ""

    def __init__(self, template: str, hosts: Sequence[str], **options: Unpack[Options]) -> None:
        object.__setattr__(self, "template", template)
        super().__init__(hosts, **options)

    def _command(self, host: str, node: int) -> list[str]:
        words = [word.replace("{host}", host) for word in shlex.split(self.template)]
        return [*words, *self._node(str(node))]


@dataclass(frozen=True, init=False)
class Slurm(Places):
    """Nodes that ``srun`` gets from Slurm: ``pp.Slurm(nodes=2, partition="gpu", time="0:10:00")``.

    Args:
        nodes: Number of nodes.
        partition: Partition of the cluster.
        time: Limit of the allocation, as Slurm takes it.
        srun: More options of ``srun``.
        options: See ``Places``.
    """

    asked: tuple[str, ...] = ()
    greet_s: ClassVar[float] = 86_400.0
    waits: ClassVar[str] = "waits in the queue"
    no_answer: ClassVar[str] = (
        "was it taken out of the queue, by `ppwork stop` or `scancel`? else the same srun by hand"
    )

    def __init__(
        self,
        nodes: int,
        *,
        partition: str = "",
        time: str = "",
        srun: Sequence[str] = (),
        **options: Unpack[Options],
    ) -> None:
        asked = [f"--partition={partition}"] * bool(partition) + [f"--time={time}"] * bool(time)
        object.__setattr__(self, "asked", (*asked, *srun))
        super().__init__([f"node{number}" for number in range(nodes)], **options)

    def commands(self) -> list[tuple[list[str], tuple[int, ...]]]:
        """Return the one ``srun``, whose pipe leads to all nodes."""
        nodes = len(self.hosts)
        srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *self.asked]
        return [([*srun, *self._node(SLURM)], tuple(range(nodes)))]

    def in_queue(self, words: str) -> str:
        """Return Slurm's current state of a waiting job, and its place in the queue."""
        found = _QUEUED.search(words)
        return f"job {found[1]}: {state_of(found[1])}" if found else ""


def places_of(text: str, ranks: str = "") -> Places:
    """Return the hosts that a command line names.

    ``ssh:a,b``; ``slurm:2``, also with options as ``slurm:2,partition=gpu``; ``local:2`` for nodes here.

    Args:
        text: The hosts.
        ranks: Number of ranks of each host, as ``1,2``; empty leaves it open.

    Raises:
        PlanError: The text has none of these forms.
    """
    kind, _, rest = text.partition(":")
    try:
        counts = [int(number) for number in ranks.split(",")] if ranks else None
        if kind == "ssh" and rest:
            return Hosts(*rest.split(","), ranks=counts)
        if kind == "slurm":
            nodes, *asked = rest.split(",")
            return Slurm(int(nodes), srun=[f"--{option}" for option in asked], ranks=counts)
        if kind == "local":
            names = [f"node{number}" for number in range(int(rest))]
            return Command("", names, ranks=counts, same_host=True)
    except ValueError as error:
        if isinstance(error, PlanError):
            raise
    raise PlanError(
        f"The hosts were {text!r}{f', their ranks {ranks!r}' if ranks else ''}.",
        check_first="--on ssh:gpu-a,gpu-b --ranks 1,2; slurm:2; local:2 for two nodes on this machine",
    )
