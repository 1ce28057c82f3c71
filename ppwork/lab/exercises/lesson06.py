"""Exercises of the lesson on streams (06)."""

from __future__ import annotations

from ppwork.lab.exercises.answers import Functions
from ppwork.lab.exercises.attempts import Programs

FUNCTIONS: Functions = {}
PROGRAMS: Programs = {}
