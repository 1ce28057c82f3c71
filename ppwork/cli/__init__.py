"""The command line: one module a command, one output for all.

May import: every room but ``runtime`` and ``worker``.
"""
