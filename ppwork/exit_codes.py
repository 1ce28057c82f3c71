"""With which codes our processes leave, in one place: what ended a rank can be read from its code alone.

A rank that was killed has minus the signal's number instead, which is Python's way to say so. A rank whose
interpreter no longer ran (its code held the GIL) leaves with ``FAILED`` and has its stacks in its log: there
Python's own ``faulthandler`` ends the process, and chooses the code.
"""

from __future__ import annotations

FAILED = 1
"""A rank: it failed itself, and its record says how."""
SECONDARY = 3
"""A rank: it left because a peer did, or because a peer no longer ran."""
ORPHANED = 71
"""A rank: its launcher went away."""
STUCK = 72
"""A rank: its own code made no progress past the bound, and its watchdog ended it."""
UNWRITABLE = 74
"""A rank: its records could not be written, for example because the disk was full; its log may say more."""
PAST_LIMIT = 124
"""The launcher: the run's time was up and it was stopped."""
TORCHRUN_STOPPED = 125
"""The launcher: torchrun was stopped (SIGSTOP) and did not go on, and the run was ended."""
STOPPED = 130
"""The launcher: the run was stopped on request, as by Ctrl-C."""
