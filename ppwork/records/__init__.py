"""The records: files that a run leaves in its folder; each module has one kind, with its writer and reader.

Ranks write them as things happen; everything outside a rank reads them and never asks the ranks.

May import: ``plan``, ``protocol``, ``errors``.
"""
