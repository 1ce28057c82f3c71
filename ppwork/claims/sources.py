"""Where the claims are from: the beginnings of their ``source`` lines."""

CARD = "API card of torch.distributed"
"""A team's summary of the documentation: 11 claims, 10 gotchas."""

DOCS = "documentation of torch.distributed"

SEEN = "seen with torch 2.13"
"""Nowhere documented: found by running it."""

NOTES = "release notes of torch.distributed"

CHECKPOINT_NOTES = "release notes of distributed checkpoint"

BRIEFING = "briefing on torch.distributed of June 2026"
"""On the renaming of collectives and the NCCL that is required."""
