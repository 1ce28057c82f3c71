"""Cases of the claims about meshes of ranks and groups that shrink."""

from __future__ import annotations

from claim_seen import noted

from ppwork.claims.claim import Verdict

ROWS, COLUMNS = [[0, 1], [0, 1], [2, 3], [2, 3]], [[0, 2], [1, 3], [0, 2], [1, 3]]
REST = noted({"size": 2, "total": 2.0}, {"size": 2, "total": 2.0}, {})


def _mesh(rows, columns, started=True, **changed):
    notes = (
        {"started": started, "tp": row, "pp": column, "slice_tp": row, "slice_pp": column, **changed}
        for row, column in zip(rows, columns, strict=True)
    )
    return {"mesh": noted(*notes)}


def _small(ranks, third_place, mended=(1, 2)):
    return {
        "broken": noted(*({"ranks": ranks, "place": place} for place in ([0], [1], third_place))),
        "mended": noted({}, *({"ranks": list(mended), "place": [place]} for place in (0, 1))),
    }


def _ordered(ranks, first):
    notes = {"ranks": ranks, "mine": ranks.index(1)}
    told = {"first": first}
    return {"asked": noted({}, notes, {}, notes), "told": noted({}, told, {}, told)}


def _bounds(row, line=20.0):
    return {"bounds": noted({"row": row, "line": line, "from_group": 20.0})}


PLACES = [[0, 0], [0, 1], [1, 0], [1, 1]]


def _places(total=10.0, local=PLACES):
    flat = {"flat": [0, 1, 2, 3], "total": total, "public": False}
    return {
        "places": noted(
            *(
                {**flat, "local": mine, "place": place, "local_of_flat": number}
                for number, (mine, place) in enumerate(zip(local, PLACES, strict=True))
            )
        )
    }


def _split(refused, total=2.0):
    return {"both": noted(*[{"split": refused, "size": 2, "total": total}] * 4)}


def _destroyed(**ended):
    note = {"world": 2.0, "kept": 2.0, "again": 2.0} | ended
    return {"destroyed": noted(note, note)}


def _device(**answers):
    note = {"gpus": 0, "cuda:0": "cuda:0"} | answers
    return {"bound": noted(note, note)}


CASES = {
    "D45": [
        (Verdict.HOLDS, _places()),
        (Verdict.DOES_NOT_HOLD, _places(total=3.0)),
        (Verdict.ERROR, _places(local=[[0, 0]] * 4)),
    ],
    "D46": [
        (Verdict.HOLDS, _split("No device associated with the default pg")),
        (Verdict.NOT_TESTABLE, _split("")),
        (Verdict.ERROR, _split("", total=1.0)),
    ],
    "D47": [
        (Verdict.HOLDS, _destroyed(ended_error="Invalid process group")),
        (Verdict.HOLDS, _destroyed(ended=2.0)),
        (Verdict.DOES_NOT_HOLD, _destroyed(ended=2.0, kept=1.0)),
    ],
    "D48": [
        (Verdict.HOLDS, _device(cpu_error="an accelerator with an index", cuda_error="an index")),
        (Verdict.DOES_NOT_HOLD, _device(cpu="cpu", cuda="cuda")),
    ],
    "D40": [
        (Verdict.HOLDS, _mesh(ROWS, COLUMNS)),
        (Verdict.DOES_NOT_HOLD, _mesh(COLUMNS, ROWS)),
        (Verdict.DOES_NOT_HOLD, _mesh(ROWS, COLUMNS, started=False)),
        (Verdict.DOES_NOT_HOLD, _mesh(ROWS, COLUMNS, slice_pp=[0, 1])),
    ],
    "D41": [
        (Verdict.HOLDS, _small([0, 1], None)),
        (Verdict.DOES_NOT_HOLD, _small([1, 2], [1])),
        (Verdict.DOES_NOT_HOLD, _small([0, 1], None, mended=(0, 1))),
    ],
    "D42": [
        (
            Verdict.DOES_NOT_HOLD,
            {
                "shrink_group": noted({"error": "does not support"}, {"error": "does not support"}, {}),
                "new_group of the rest": REST,
            },
        ),
        (Verdict.HOLDS, {"shrink_group": REST, "new_group of the rest": REST}),
    ],
    "D43": [
        (Verdict.DOES_NOT_HOLD, _ordered([1, 3], 1.0)),
        (Verdict.HOLDS, _ordered([3, 1], 3.0)),
        (Verdict.ERROR, _ordered([1, 3], 3.0)),
    ],
    "D44": [
        (Verdict.DOES_NOT_HOLD, _bounds(1800.0)),
        (Verdict.HOLDS, _bounds(20.0)),
    ],
}
