"""What is to be said of each of ``programs.py``: who, where, and why; lines are those of the program."""

LINE = "programs.py"
SAID = {
    "left_out_group": ("All ranks have to make a group, and rank 2 did not", "ranks 0 and 1 in new_group",
                       "rank 2 in all_reduce"),
    "other_members": ("rank 0 makes [0, 1], ranks 1 and 2 make [1, 2]",),
    "circle": ("Ranks 0 and 1 wait for each other: rank 0 in recv float32[4] from 1", LINE),
    "other_tag": ("Rank 0 sent tag 1 (programs.py:", "rank 1 awaited tag 2 (programs.py:"),
    "other_source": ("Rank 0 sent to rank 1 (programs.py:", "rank 1 awaited rank 2 (programs.py:"),
    "only_rank_0": ("Collective 2 of default_pg: rank 0 barrier (programs.py:", "ranks 1 and 2 all_reduce"),
    "skipped": ("Collective 4 of default_pg: ranks 0 and 2 all_reduce", "rank 1 barrier (programs.py:"),
    "other_root": ("ranks 0 and 2 broadcast float32[4] root 0, rank 1 broadcast float32[4] root 1",),
    "two_orders": ("Ranks 0, 1 and 2 wait for each other: rank 0 in all_reduce", "on group 2 at programs.py:",
                   "on group 1 at programs.py:"),
    "late": ("Rank 2 waits for nobody: in code of its own, after all_reduce", LINE),
    "uneven": ("ranks 0 and 1 backward of DDP (programs.py:", "rank 2 barrier (programs.py:"),
    "uneven_fsdp": ("rank 0 barrier (programs.py:", "ranks 1 and 2 all_gather"),
    "destroyed_early": ("Rank 2 waits for nobody: in code of its own, after destroy_process_group at",),
    "lost_handle": ("Rank 0 never waited for its isend (programs.py:", "rank 1 did not receive it"),
}  # fmt: skip
