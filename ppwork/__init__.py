"""A workbench for pipeline-parallel inference on torch.distributed: see it, break it, measure it."""

__version__ = "0.1.0"
