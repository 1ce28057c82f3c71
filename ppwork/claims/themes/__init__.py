"""The themes: claims with statement, source and verdict, in modules named as their ``programs``."""
