"""The sweep: a notebook over a grid of parameters; its runs, table and picture."""
