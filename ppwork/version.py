"""The version of this package; ranks compare it at start-up."""

__version__ = "0.1.0"
