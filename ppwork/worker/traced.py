"""``import ppwork.worker.traced`` records the calls of a program under a user's own torchrun.

``PPWORK_TRACE`` names the folder; without it nothing is recorded. Under our launcher this is not needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from ppwork.worker.trace import VARIABLE, start

if os.environ.get(VARIABLE, "0") != "0":
    start(Path(os.environ[VARIABLE]))
