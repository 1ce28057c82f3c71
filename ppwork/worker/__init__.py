"""The worker: one rank of a run, as a process.

It puts the stages through the runtime in order (``loops``), guards the collectives of stage 1, watches itself
and its peers, and writes the last words of a rank that fails. ``injectors`` break it on purpose.

May import: ``runtime``, ``faults``, ``timeline``, ``records``, ``stage``, ``plan``, ``protocol`` and the
ground.
"""
