"""The variables by which our launcher, and whoever starts ranks by hand, speak to the ranks."""

from __future__ import annotations

LIFELINE_VARIABLE = "PPWORK_LIFELINE"
"""Set by our launcher: standard input is a pipe that ends when the launcher does."""
STORE_VARIABLE = "PPWORK_STORE"
"""Path of our launcher's file store: nothing then listens beyond loopback. Unset: torchrun's store."""
TIMEOUT_VARIABLE = "SCOPE_DIST_TIMEOUT_S"
"""Seconds; overrides the plan's ``timeout_s`` on every rank."""
