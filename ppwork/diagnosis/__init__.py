"""The diagnosis: why it failed and who waited for whom, of a run of ours or of anybody's torchrun job.

It reads what is left on disk, weighs it, and says one cause with its evidence.

May import: ``timeline``, ``records``, ``plan``, ``protocol``, ``errors``, ``process``.
"""
