"""The records: files that a run leaves in its folder, one kind a module, with its writer and its reader.

Ranks write them as it happens; everything outside a rank reads them and never asks the ranks.

May import: ``plan``, ``protocol``, ``errors``.
"""
