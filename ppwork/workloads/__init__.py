"""Real work for the two stages: what travels through the pipeline is a video, not noise."""
