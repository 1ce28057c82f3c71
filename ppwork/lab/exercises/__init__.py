"""The exercises: one module a lesson, and the check that a cell calls."""
