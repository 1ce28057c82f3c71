"""Folders of this checkout, for tests that read or start what stands there."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
"""The stages of toy runs stand here: ranks that shall find them are launched from it."""
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = ROOT / "scripts"
EXAMPLES = ROOT / "docs" / "examples"
