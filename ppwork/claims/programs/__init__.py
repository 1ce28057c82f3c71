"""What the ranks run: plain ``torch.distributed``, a few lines each, short enough for a lesson."""
