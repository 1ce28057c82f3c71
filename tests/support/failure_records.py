"""Records of failures, made by hand."""

from __future__ import annotations

from ppwork.records.failure import FailureRecord


def record(**changes) -> FailureRecord:
    fields = {
        "rank": 0,
        "error_type": "StageError",
        "what": "It broke.",
        "where": {"rank": 0},
        "check_first": "the log",
        "symptom": False,
        "at_ns": 5,
        "traceback": "",
    }
    return FailureRecord(**{**fields, **changes})
