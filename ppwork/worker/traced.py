"""``import ppwork.worker.traced`` records the calls of a program under a torchrun of one's own.

``PPWORK_TRACE`` names the folder; without it nothing is recorded. Under our launcher there is no need of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from ppwork.worker.trace import VARIABLE, start

if os.environ.get(VARIABLE, "0") != "0":
    start(Path(os.environ[VARIABLE]))
