"""The pictures: every figure with its table and its sentence, in one style.

``pp.pictures.timeline(run)`` and its kin each return a ``Picture``; matplotlib is imported when one is drawn.

May import: ``diagnosis``, ``timeline``, ``records``, ``plan``, ``protocol``, ``errors``.
"""

from ppwork.pictures.failures import failure
from ppwork.pictures.frames import frame
from ppwork.pictures.groups import topology
from ppwork.pictures.hosts import hosts
from ppwork.pictures.journey import journey
from ppwork.pictures.picture import Picture
from ppwork.pictures.programs import program
from ppwork.pictures.queues import queues
from ppwork.pictures.rings import edges
from ppwork.pictures.scenarios import scenario
from ppwork.pictures.sequences import sequence
from ppwork.pictures.sizes import sizes
from ppwork.pictures.splits import splits
from ppwork.pictures.startup import startup
from ppwork.pictures.state_machine import states
from ppwork.pictures.tables import Table
from ppwork.pictures.timelines import timeline
from ppwork.pictures.trees import tree
from ppwork.pictures.wait_graphs import waits

__all__ = [
    "Picture",
    "Table",
    "edges",
    "failure",
    "frame",
    "hosts",
    "journey",
    "program",
    "queues",
    "scenario",
    "sequence",
    "sizes",
    "splits",
    "startup",
    "states",
    "timeline",
    "topology",
    "tree",
    "waits",
]


def __dir__() -> list[str]:
    return __all__
