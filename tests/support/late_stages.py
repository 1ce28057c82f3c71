"""A generator of which one rank leaves late, when all other ranks of its job are done."""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path

from ppwork.workloads.synthetic import SyntheticGenerator, SyntheticSource

LATE_RANK = 2


class Source(SyntheticSource):
    """As it is."""


class LateGenerator(SyntheticGenerator):
    """Leaves ``late_s`` after its end with ``late_code``; the file ``told`` gets the moment of that."""

    def __init__(self, context):
        super().__init__(context)
        if int(os.environ["RANK"]) == LATE_RANK:
            atexit.register(self._leave, context.plan.options)

    @staticmethod
    def _leave(options):
        time.sleep(options["late_s"])
        Path(options["told"]).write_text(str(time.monotonic()))
        os._exit(options["late_code"])
