"""What a stage returns, refused where it is returned, with its file and line."""

import inspect
import os
from contextlib import nullcontext
from functools import partial
from types import FunctionType

import pytest
import torch

from ppwork import stage
from ppwork.errors import LocalProtocolError, PlanError, StageError
from ppwork.protocol.envelope import ChunkPlan
from ppwork.runtime.tensors import spec_of
from ppwork.stage import (
    CALLED_WITH,
    NOT_YET,
    Chunk,
    Emission,
    Result,
    StageKind,
    check_methods,
    load_stage,
)
from ppwork.worker.contract import (
    Kinds,
    chunk_of,
    emission_of,
    figures_of,
    name_what_came,
    result_of_step,
    returned_by,
    why_ended,
)
from ppwork.worker.loops import decode_chunk, encode_chunk, run_chunk

HERE = os.path.relpath(__file__)
"""As one writes it in the working folder."""
X = torch.ones(2)


class Odd:
    """Returns what it was made with."""

    def __init__(self, returned):
        self.returned = returned

    def encode(self, chunk_index):
        return self.returned

    def step(self, tensors, step_index, num_steps):
        return self.returned

    def decode(self, chunk_index, tensors):
        return self.returned


def refused(call, method):
    with pytest.raises(StageError) as caught:
        call()
    line = inspect.getsourcelines(getattr(Odd, method))[1] + 1
    assert caught.value.check_first == f"the `return` of Odd.{method}, {HERE}:{line}"
    assert caught.value.source == f"{__file__}:{line}"  # shown on top, as the line of any other error
    return caught.value.what


@pytest.mark.parametrize(
    ("returned", "said"),
    [([X], "a list"), (X, "a Tensor"), ({1: X}, "a tensor by the name 1"), (Chunk(X), "a Tensor")],
)
def test_encode_returns_tensors_by_name(returned, said):
    what = refused(lambda: encode_chunk(Odd(returned), 0, recompute=False), "encode")
    assert what == f"The stage's encode must return tensors by name; it returned {said}."


@pytest.mark.parametrize(("returned", "said"), [(None, "a NoneType"), (X, "a Tensor")])
def test_step_returns_tensors_by_name(returned, said):
    what = refused(lambda: run_chunk(Odd(returned), ChunkPlan.of(1), {"x": X}, {}), "step")
    assert what == f"The stage's step must return tensors by name; it returned {said}."


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (Chunk({"x": X}, metadata=["a cat"]), "metadata by name; it returned a list."),
        (
            Chunk({"x": X}, metadata=Emission(X)),
            "metadata by name; it returned a dataclass Emission, which `dataclasses.asdict` makes a dict.",
        ),
        (Chunk({"x": X}, hard_cut=1), "True or False as a chunk's hard_cut; it returned 1."),
        (Chunk({"x": X}, flush="yes"), "True or False as a chunk's flush; it returned 'yes'."),
        (Chunk({"x": X}, steps=0), "1 to 10000 as a chunk's steps, or None; it returned 0."),
        (Chunk({"x": X}, steps=2.0), "1 to 10000 as a chunk's steps, or None; it returned 2.0."),
    ],
)
def test_what_a_chunk_says_besides_its_tensors_is_checked_where_it_is_returned(chunk, said):
    what = refused(lambda: encode_chunk(Odd(chunk), 0, recompute=False), "encode")
    assert what == f"The stage's encode must return {said}"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Result(X), "tensors by name; it returned a Tensor."),
        (Result({"x": X}, "good"), "metadata by name; it returned a str."),
    ],
)
def test_what_a_result_says_is_checked_where_it_is_returned(result, said):
    what = refused(lambda: run_chunk(Odd(result), ChunkPlan.of(1), {"x": X}, {}), "step")
    assert what == f"The stage's step must return {said}"


def test_what_all_steps_say_goes_with_the_result_and_the_latest_of_one_name():
    class Talks:
        def step(self, tensors, step_index, num_steps):
            return Result(tensors, {"step": step_index, f"at {step_index}": True})

        def decode(self, chunk_index, tensors, result_metadata):
            return Emission(X, {"step": result_metadata["step"]})

    result, _ = run_chunk(Talks(), ChunkPlan.of(2), {"x": X}, {})
    assert result.metadata == {"step": 1, "at 0": True, "at 1": True}
    assert decode_chunk(Talks(), 0, result, {"a": "chunk's"}, verify=False).metrics == {"step": 1}


def test_decode_returns_an_emission_of_numbers_or_nothing_at_all():
    def decode(returned, verify=False):
        return decode_chunk(Odd(returned), 0, Result({}), {}, verify=verify)

    assert decode(None).metrics == {}
    assert decode(Emission(X, {"psnr": X[0]})).output is X
    assert "it returned a NoneType" in refused(lambda: decode(None, verify=True), "decode")
    assert "it returned a Tensor" in refused(lambda: decode(X), "decode")
    assert "'stage1_ms'" in refused(lambda: decode(Emission(X, {"stage1_ms": 3})), "decode")
    assert "'note': 'good'" in refused(lambda: decode(Emission(X, {"note": "good"})), "decode")


def test_finish_returns_what_json_carries_under_names_of_its_own():
    class Ends:
        def finish(self):
            """Only its place is asked for."""

    assert figures_of(Ends(), None) == {}
    assert figures_of(Ends(), {"chunks": 3, "name": "x"}) == {"chunks": 3, "name": "x"}
    for returned, said in {"'weights': a Tensor": {"weights": X}, "one by the name 3": {3: 3}}.items():
        with pytest.raises(StageError, match=returned):
            figures_of(Ends(), said)


def test_a_chunk_says_more_than_its_tensors_and_pauses_and_ends_pass():
    chunk = Chunk({"x": X}, {"prompt": "a cat"}, hard_cut=True, steps=2)
    assert chunk_of(Odd(None), chunk) is chunk
    assert chunk_of(Odd(None), {"x": X}) == Chunk({"x": X})
    assert chunk_of(Odd(None), NOT_YET) is NOT_YET
    assert chunk_of(Odd(None), None) is None
    assert emission_of(Odd(None), None, verify=False).output.numel() == 0


def test_a_stage_has_the_methods_that_it_needs_and_no_more():
    class Short:
        def encode(self, chunk_index):
            return {"x": X}

        def step(self, tensors, step_index, num_steps, metadata):
            return {"x": tensors["x"] * metadata["scale"]}

    result, calls = run_chunk(
        Short(), ChunkPlan.of(2, recompute=True, reset_cache=True), {"x": X}, {"scale": 3}
    )
    assert (result.tensors["x"].tolist(), result.metadata, calls) == ([9.0, 9.0], {}, 3)
    assert set(encode_chunk(Short(), 0, recompute=True).tensors) == {"x"}


class Many:
    """Four returns of a number, and some of what says that there is none."""

    def step(self, tensors, step_index, num_steps):
        if step_index == 1:
            return 1
        if step_index == 2:
            return None
        if step_index == 3:
            return NOT_YET
        if step_index == 4:
            return stage.NOT_YET
        if step_index == 5:
            return 2 if num_steps else NOT_YET
        if step_index == 6:
            return  # noqa: RET502  as people write it
        if step_index == 7:
            return tensors
        return 0


@pytest.mark.parametrize(
    ("index", "lines"),
    [(1, (2, 10, 14, 15)), (2, (2, 4, 10, 12, 14, 15)), (3, (2, 6, 8, 10, 14, 15))],
    ids=["a number", "None", "NOT_YET"],
)
def test_the_returns_that_can_have_given_it_are_all_named_and_no_other(index, lines):
    """A None at a source is how it says that it has ended, and not what was refused."""
    first = inspect.getsourcelines(Many.step)[1]
    with pytest.raises(StageError) as caught:
        result_of_step(Many(), Many().step({}, index, 1))
    places = " or ".join(str(first + more) for more in lines)
    assert caught.value.check_first == f"the `return` of Many.step, {HERE}:{places}"


class Long:
    def step(self, tensors, step_index, num_steps):
        for _ in range(1):
            if step_index == 0:
                return 0
            if step_index == 1:
                return 1
            if step_index == 2:
                return 2
            if step_index == 3:
                return 3
            if step_index == 4:
                return 4
            if step_index == 5:
                return 5
        return 6


def test_of_many_returns_the_first_and_the_last_are_told():
    first = inspect.getsourcelines(Long.step)[1]
    with pytest.raises(StageError) as caught:
        result_of_step(Long(), Long().step({}, 3, 1))
    where = f"Long.step, {HERE}, lines {first + 3} to {first + 14}"
    assert caught.value.check_first == f"one of the 7 `return`s of {where}: which one is not known"


class Forgets:
    """Each ends the stream at its third chunk; what is said is the line below which there is no `return`."""

    def falls_off(self, chunk_index):  # noqa: RET503
        if chunk_index < 2:
            return {"x": X}
        if chunk_index < 3:
            {"x": X}  # noqa: B018  the mistake
        else:
            return {"x": X}

    def last_if(self, chunk_index):  # noqa: RET503
        if chunk_index < 2:
            return {"x": X}

    def within(self, chunk_index):
        with nullcontext():
            try:
                if chunk_index < 2:
                    return {"x": X}
            except ValueError:
                str(chunk_index)
            except TypeError:
                return {}

    def cases(self, chunk_index):  # noqa: RET503
        match chunk_index:
            case 0 | 1:
                return {"x": X}
            case _:
                str(chunk_index)

    def leaves(self, chunk_index):
        while True:
            if chunk_index < 2:
                return {"x": X}
            break

    def one_case(self, chunk_index):
        match chunk_index:
            case 0 | 1:
                return {"x": X}

    def loops(self, chunk_index):  # noqa: RET503
        for _ in range(chunk_index, 2):
            return {"x": X}


class Means:
    """They say that it ends."""

    def bare(self, chunk_index):
        def frame():
            return None

        if chunk_index == 2:
            frame()
            return  # noqa: RET502
        return {"x": X}

    def mixes(self, chunk_index):
        if chunk_index == 9:
            return None
        if chunk_index == 2:
            return  # noqa: RET502
        return {"x": X}

    def plainly(self, chunk_index):
        if chunk_index == 2:
            return None
        return {"x": X}

    def with_a_choice(self, chunk_index):
        return {"x": X} if chunk_index < 2 else None

    def of_a_source(self, chunk_index):
        return {0: {"x": X}, 1: {"x": X}}.get(chunk_index)

    def with_an_or(self, chunk_index):
        return self.of_a_source(chunk_index) or None

    def by_a_loop(self, chunk_index):
        while True:
            if chunk_index < 2:
                return {"x": X}
            return self.of_a_source(chunk_index)

    def made_of_another(self, chunk_index):
        with nullcontext():
            return self.of_a_source(chunk_index)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("falls_off", (4,)),
        ("last_if", (1,)),
        ("within", (3, 6)),
        ("cases", (5,)),
        ("leaves", (4,)),
        ("one_case", (1,)),
        ("loops", (1,)),
    ],
)
def test_an_end_of_the_stream_that_no_return_says_is_asked_about_by_its_line(name, lines):
    method = getattr(Forgets, name)
    first = inspect.getsourcelines(method)[1]
    source = type("Own", (), {"encode": method})()
    assert [chunk_of(source, source.encode(index)) is None for index in range(3)] == [False, False, True]
    places = " or ".join(str(first + line) for line in lines)
    assert why_ended(source, 2) == (
        "encode returned None for chunk 2, which ends the stream: a forgotten `return`? "
        f"Below {HERE}:{places} there is none; an end that is meant is a `return None`"
    )


@pytest.mark.parametrize("name", [name for name in vars(Means) if not name.startswith("_")])
def test_an_end_of_the_stream_that_a_return_says_is_one_and_none_before_the_first_chunk(name):
    source = type("Own", (Means,), {"encode": getattr(Means, name)})()
    assert source.encode(2) is None
    assert why_ended(source, 2) == ""
    assert why_ended(source, 0) == (
        "encode returned None for chunk 0, which ends the stream: a forgotten `return`?"
    )


def test_what_has_no_source_ends_the_stream_unasked():
    unread = FunctionType(Forgets.last_if.__code__.replace(co_filename="<a console>"), {"X": X})
    for encode in (unread, partial(dict, x=X)):
        assert why_ended(type("Own", (), {"encode": encode})(), 2) == ""


class Bare(Odd):
    def __init__(self):
        """Nothing is given to it."""


class Asks(Odd):
    def __init__(self, context, width):
        """It is given one thing more than there is."""


class Inherits:
    def step(self, tensors, step_index, num_steps):
        """A class without a constructor takes no context either."""


class Takes(Odd):
    def __init__(self, *anything, width=4):
        """Whatever comes."""


def test_a_class_that_no_context_can_make_is_refused_when_it_is_loaded_with_its_line():
    for kind, said in ((Bare, "Bare()"), (Asks, "Asks(context, width)"), (Inherits, "Inherits()")):
        with pytest.raises(PlanError) as caught:
            load_stage(f"{__name__}:{kind.__name__}", StageKind.GENERATOR)
        start = kind.__init__ if kind is not Inherits else kind
        place = f"{__file__}:{inspect.getsourcelines(start)[1]}"
        assert caught.value.what.endswith(f"is made of a context, and its constructor is {said}, {place}.")
        assert "write `def __init__(self, context: StageContext) -> None:`" in caught.value.check_first
    assert load_stage(f"{__name__}:Takes", StageKind.GENERATOR) is Takes


def test_a_path_that_names_a_file_is_told_how_to_write_it():
    with pytest.raises(PlanError) as refused:
        load_stage("stages/mine.py:Mic", StageKind.GENERATOR)
    assert refused.value.check_first == "write it as stages.mine:Mic"


class NoPlace(Odd):
    def step(self, tensors):
        """It is given three things."""


class NoName(Odd):
    def encode(self):
        """It is given the index."""


class Wide(Odd):
    def decode(self, chunk_index, tensors, *, metadata, more=0, **rest):
        """It has what it is given, and more."""

    @staticmethod
    def encode(index):
        """Called by Python's own rules."""


def test_a_method_that_cannot_be_called_is_refused_when_the_stage_is_loaded_with_its_line():
    cases = (
        (NoPlace, StageKind.GENERATOR, "(tensors, step_index, num_steps)", "(self, tensors)"),
        (NoName, StageKind.STAGE0, "(chunk_index)", "(self)"),
    )
    for kind, methods, given, own in cases:
        name = methods.required[0]
        line = inspect.getsourcelines(getattr(kind, name))[1]
        with pytest.raises(PlanError) as caught:
            load_stage(f"{__name__}:{kind.__name__}", methods)
        said = f"The stage's {name} is called with {given}, and {kind.__name__}.{name} is {name}{own}, "
        assert caught.value.what.startswith(f"{said}{__file__}:{line}: too many")
        assert caught.value.check_first.startswith(f"write `def {name}(self, ")
    assert load_stage(f"{__name__}:Wide", StageKind.STAGE0) is Wide


SLIPS = {
    "reset_cache": ("reset_cahce", "reset_cach", "reset_cacche", "reset_cacha", "resetcache"),
    "finish": ("fiinsh", "finih", "finnish"),
    "context_frames": ("context_frame",),
    "recompute": ("recompte",),
    "replicated": ("replictaed",),
}
WORDS = ("finished", "finishes", "decoder", "reset_caches", "reset_kv_cache", "recomputed", "_reset_cahce")


def test_an_optional_method_that_is_misspelt_is_refused_and_another_word_is_not():
    """It would never be called, and a cache that is not reset gives wrong results in silence."""
    for kind in StageKind:
        check_methods(type("Own", (Odd,), dict.fromkeys(WORDS, Odd.encode)), kind)
    for meant, slips in SLIPS.items():
        methods = StageKind.STAGE0 if meant in ("finish", "context_frames") else StageKind.GENERATOR
        for slip in slips:
            with pytest.raises(PlanError, match=f"has no {meant}, .* Own.{slip} would never be") as caught:
                check_methods(type("Own", (Odd,), {slip: Odd.step}), methods)
            assert f"{__file__}:{inspect.getsourcelines(Odd.step)[1]}." in caught.value.what
            assert caught.value.check_first.startswith(f"did you mean {meant!r}?")
        both = {slips[0]: Odd.step, meant: lambda self, *_: None}
        check_methods(type("Own", (Odd,), both), methods)


class Ways:
    """An ``encode`` in many forms; the last three never return a value."""

    def plain(self, chunk_index):
        return {"x": chunk_index}

    def either(self, chunk_index):
        return chunk_index or None

    def chosen(self, chunk_index):
        return {} if chunk_index else None

    def guarded(self, chunk_index):
        try:
            return {"x": chunk_index}
        finally:
            self.done = True

    def stub(self, chunk_index):
        raise NotImplementedError

    def forgotten(self, chunk_index):
        {"x": chunk_index}  # noqa: B018  it is the mistake

    def yields(self, chunk_index):
        yield {"x": chunk_index}

    def ends(self, chunk_index):
        if chunk_index:
            return None  # noqa: RET501
        return


@pytest.mark.parametrize("form", [name for name in vars(Ways) if not name.startswith("_")])
def test_an_encode_that_never_returns_a_value_is_refused_before_anything_starts(form):
    """A run had to start, and to end without a chunk, until it was told."""
    own = type("Own", (), {"encode": getattr(Ways, form), "decode": lambda self, chunk_index, tensors: None})
    if form not in ("forgotten", "yields", "ends"):
        check_methods(own, StageKind.STAGE0)
        return
    with pytest.raises(
        PlanError, match=r"encode must return something, and Own.encode, .* has no `return`"
    ) as no:
        check_methods(own, StageKind.STAGE0)
    assert f"{__file__}:{inspect.getsourcelines(getattr(Ways, form))[1]}," in no.value.what


def test_a_step_that_never_returns_a_value_is_refused_too():
    def step(self, tensors, step_index, num_steps):
        tensors["x"].add_(1)

    with pytest.raises(PlanError, match="step must return something"):
        check_methods(type("Own", (), {"step": step}), StageKind.GENERATOR)


def test_every_method_that_is_called_is_looked_at():
    looked_at = [name for kind in StageKind for name in kind.required + kind.optional]
    assert sorted(looked_at) == sorted(CALLED_WITH)


class Stpe:
    def __init__(self, context):
        """Nothing to load."""

    def stpe(self, tensors, step_index, num_steps):
        """It is the only method that is needed."""


def test_a_needed_method_that_is_misspelt_is_found():
    with pytest.raises(PlanError, match="lacks the contract's methods step") as caught:
        load_stage(f"{__name__}:Stpe", StageKind.GENERATOR)
    assert caught.value.check_first.startswith("did you mean it by 'stpe'? a stage needs step")


def test_a_tensor_that_did_not_come_is_refused_with_the_names_of_those_that_did():
    class Reader(Odd):
        def step(self, tensors, step_index, num_steps):
            return {"x": tensors[self.returned]}

        def decode(self, chunk_index, tensors):
            return tensors[self.returned]

    for call in (
        lambda: run_chunk(Reader("another"), ChunkPlan.of(1), {"boxes": X, "points": X}, {}),
        lambda: decode_chunk(Reader("another"), 0, Result({"boxes": X, "points": X}), {}, verify=False),
    ):
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value.__notes__ == ["The tensors that came: 'boxes', 'points'"]


class Listens(Odd):
    def step(self, tensors, step_index, num_steps, metadata):
        asked = [
            lambda: metadata["loud"],
            lambda: tensors["loud"],
            lambda: metadata[self.returned],
        ]
        return asked[step_index]()

    def decode(self, chunk_index, tensors, metadata, result_metadata):
        if chunk_index == 0:
            return result_metadata["loud"]
        said = metadata
        return said["loud"]


def test_a_name_that_did_not_come_is_told_of_what_the_line_looked_into_and_of_nothing_else():
    """The advice to look at the tensors led nowhere when the metadata lacked it, nor for another dict."""

    def notes(call):
        with pytest.raises(KeyError) as caught:
            call()
        return getattr(caught.value, "__notes__", [])

    tensors, metadata = {"mag": X}, {"who": "x", "n": 1}
    of_tensors, of_metadata = "The tensors that came: 'mag'", "The metadata that came: 'who', 'n'"

    said = Listens("loud")
    for number, names in ((0, [of_metadata]), (1, [of_tensors]), (2, [of_metadata])):
        step = partial(said.step, tensors, number, 3, metadata)
        assert notes(lambda step=step: named(step, tensors, metadata)) == names
    own = lambda: {"left": 0}["loud"]  # noqa: E731  a line without any of the names
    assert notes(lambda: named(own, tensors, metadata)) == []
    assert notes(lambda: run_chunk(said, ChunkPlan.of(1), tensors, metadata)) == [of_metadata]
    of_result = "The result metadata that came: none"
    for index, names in ((0, [of_result]), (1, [of_metadata])):
        decode = partial(decode_chunk, said, index, Result(tensors), metadata, verify=False)
        assert notes(decode) == names


def test_change_of_what_comes_is_told_if_it_was_the_same_before():
    def change(*chunks):
        kinds = Kinds()
        for tensors in chunks:
            kinds.add(tensors)
        return kinds.change()

    x, more = {"x": torch.zeros(2, 3)}, {"x": torch.zeros(2, 3), "mask": torch.zeros(2, dtype=torch.bool)}
    other, frames = {"x": torch.zeros(2, 4)}, {**x, "context.x": torch.zeros(5)}
    line = "this chunk came with 'x' float32[2, 4]; those before it with 'x' float32[2, 3]"
    assert change(x, other) == change(x, x, x, other) == [line]
    assert change(x, x, more) == ["this chunk came with 'mask' bool[2]; those before it with no such name"]
    assert change(more, more, x) == ["this chunk came with less; those before it with 'mask' bool[2]"]
    rows = [{"x": torch.zeros(n, 64)} for n in (5, 9, 7)]
    usual = "those before it with 'x' float32[*, 64]"
    for wrong, came in (
        (torch.zeros(8, 64).double(), "float64[8, 64]"),
        (torch.zeros(8, 32), "float32[8, 32]"),
        (torch.zeros(64), "float32[64]"),
    ):
        assert change(*rows, {"x": wrong}) == [f"this chunk came with 'x' {came}; {usual}"]
    for as_before in (
        [],
        [x],
        [*rows, {"x": torch.zeros(8, 64)}],
        [x, {"x": torch.zeros(3)}, x],
        [x, x],
        [x, other, {"x": torch.zeros(2, 5)}],
        [x, x, frames],
    ):
        assert change(*as_before) == []


def named(call, tensors, metadata):
    try:
        call()
    except KeyError as error:
        name_what_came(error, tensors=tensors, metadata=metadata)
        raise


def test_who_asks_is_told_which_method_is_called_next():
    class Whole(Odd):
        def recompute(self, context_frames):
            """Only its name is asked for."""

    entered = []
    plan = ChunkPlan.of(2, recompute=True, reset_cache=True)
    run_chunk(Whole({"x": X}), plan, {"x": X}, {}, entering=entered.append)
    encode_chunk(Odd({"x": X}), 0, recompute=True, entering=entered.append)
    assert entered == ["reset_cache", "recompute", "step", "context_frames"]


def test_what_the_transport_refuses_names_the_method_that_returned_it():
    """Such as a view that is not contiguous, which it finds, or a number in place of a tensor."""
    with pytest.raises(LocalProtocolError) as caught, returned_by(Odd({}), "encode"):
        spec_of("n", 3, torch.device("cpu"))
    line = inspect.getsourcelines(Odd.encode)[1] + 1
    hint = "torch.as_tensor() makes one; plain data goes into the metadata"
    assert caught.value.check_first == f"{hint}; the `return` of Odd.encode, {HERE}:{line}"
    assert caught.value.source == f"{__file__}:{line}"
