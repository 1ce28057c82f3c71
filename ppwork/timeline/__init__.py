"""The timeline: time as the records show it, or as the simulator predicts it.

Entries are grouped by chunk, measured, and put into a table or a trace. ``costs`` has the law of the period,
and ``simulate`` writes the same entries for a plan without a run.

May import: ``records``, ``plan``, ``protocol``, ``errors``.
"""
