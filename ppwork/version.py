"""The version of this package; ranks compare it at start-up."""

__version__ = "0.1.0"
WHEEL = f"./ppwork-{__version__}-py3-none-any.whl"
"""Stands before an extra, as ``[run]``: no release is on an index, where anybody may take the name."""
