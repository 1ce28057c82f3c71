"""The worker: one rank of a run, as a process.

It runs the stages through the runtime in order (``loops``), guards stage 1's collectives, watches itself and
its peers, and writes the last words of a rank that fails. ``injectors`` inject faults into it.

May import: ``runtime``, ``faults``, ``timeline``, ``records``, ``stage``, ``plan``, ``protocol`` and the
ground.
"""
