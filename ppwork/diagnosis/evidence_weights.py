"""Weights of evidence about a job: the heaviest finding is the answer.

An exception that ended its rank weighs as much as it is sure that it did (``job_evidence``: 100, 70 or 50).
"""

DIED_FIRST = 105
"""torchrun saw the rank fail first, and it left no exception: that outweighs an exception elsewhere."""
DIED = 95
CAUGHT = 92
"""An exception of its own, in a rank that had noticed before that a peer was gone."""
COMPARED = 90
NAMED = 85
WATCHED = 80
PLACES = 60
"""Where the others were; each rule's weight is its distance from this one."""
SYMPTOMS = 20
ENDED = 10
