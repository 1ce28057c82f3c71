"""What the ranks must have in common, and how a difference is said."""

import pytest

from ppwork.errors import ParityError
from ppwork.plan import Plan
from ppwork.protocol.parity import (
    ENVIRONMENT_KEYS,
    MOST_SPELT_OUT,
    check_parity,
    decode_facts,
    encode_facts,
    facts_of,
)
from ppwork.worker.digests import check_loaded, loaded_facts


def facts(plan=None, environment=None, **more):
    return facts_of(plan or Plan(), environment or {}, **more)


def test_equal_facts_pass_also_after_the_exchange():
    """R5."""
    one = facts(Plan(hard_cuts=(2,), options={"a": 1}), {"NCCL_ALGO": "Ring"}, device="cpu")
    raw = encode_facts(one)
    check_parity([decode_facts(raw)] * 3)
    check_parity([one, one])
    check_parity([])


def test_facts_hold_every_plan_field_every_variable_and_the_versions():
    found = facts(environment={"OMP_NUM_THREADS": "1", "HOME": "/root"}, **{"version.torch": "2"})
    assert {f"plan.{name}" for name in Plan.__struct_fields__} <= set(found)
    assert {f"env.{key}" for key in ENVIRONMENT_KEYS} <= set(found)
    assert found["env.OMP_NUM_THREADS"] == "1"
    assert found["env.NCCL_ALGO"] is None
    assert "env.HOME" not in found
    assert found["version.torch"] == "2"
    assert {"version.ppwork", "version.python", "plan digest"} <= set(found)


def test_difference_names_key_values_and_ranks():
    """F04: another plan on one rank."""
    with pytest.raises(ParityError) as caught:
        check_parity([facts(), facts(Plan(seed=7)), facts()])
    text = caught.value.what
    assert "plan.seed was 0 on ranks 0 and 2; 7 on rank 1" in text
    assert "plan digest" not in text
    assert caught.value.where == {"group": "world_pg"}
    assert "plan.seed" in caught.value.check_first


def test_difference_in_the_environment_is_named_also_when_unset_on_one_side():
    with pytest.raises(ParityError) as caught:
        check_parity([facts(environment={"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}), facts()])
    assert 'env.NCCL_PROTO was "LL" on rank 0; null on rank 1' in caught.value.what
    assert 'env.NCCL_ALGO was "Ring" on rank 0; null on rank 1' in caught.value.what


def test_threads_that_torchrun_set_on_one_host_only_say_what_to_export():
    with pytest.raises(ParityError, match="OMP_NUM_THREADS was null on rank 0") as caught:
        check_parity([facts(), facts(environment={"OMP_NUM_THREADS": "1"})])
    assert "export OMP_NUM_THREADS=1 on every host" in caught.value.check_first


def test_key_that_one_rank_lacks_is_a_difference():
    with pytest.raises(ParityError, match=r"device was \"cpu\" on rank 0; \(absent\) on rank 1"):
        check_parity([facts(device="cpu"), facts()])


def test_digest_is_named_when_nothing_else_explains_it():
    one, other = facts(), {**facts(), "plan digest": "0" * 16}
    with pytest.raises(ParityError, match=r"plan digest was .* on rank 0; \"0{16}\" on rank 1"):
        check_parity([one, other])


def test_order_of_options_is_no_difference():
    check_parity([facts(Plan(options={"a": 1, "b": 2})), facts(Plan(options={"b": 2, "a": 1}))])


def test_one_and_true_and_one_point_zero_are_different_values():
    with pytest.raises(ParityError, match=r"x was 1 on rank 0; true on rank 1; 1\.0 on rank 2"):
        check_parity([{"x": 1}, {"x": True}, {"x": 1.0}])


def test_every_rank_computes_the_same_text():
    raws = [encode_facts(facts(Plan(seed=seed))) for seed in range(3)]
    texts = set()
    for _ in raws:
        with pytest.raises(ParityError) as caught:
            check_parity([decode_facts(raw) for raw in raws])
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_weights_and_a_stages_own_variables_are_compared_over_the_mesh():
    """F11 and F05: what only the stage knows, known before the first chunk."""
    same = loaded_facts({"FAST": "1"}, ("FAST",), {"embed": "float32[2] 01"})
    odd = loaded_facts({}, ("FAST",), {"embed": "float32[2] 02"})
    check_loaded({1: same, 2: same})
    with pytest.raises(ParityError) as caught:
        check_loaded({1: same, 2: odd, 3: same})
    assert 'env.FAST was "1" on ranks 1 and 3; null on rank 2' in caught.value.what
    assert 'weight.embed was "float32[2] 01" on ranks 1 and 3; "float32[2] 02" on rank 2' in caught.value.what
    assert caught.value.where == {"group": "tp_pg"}


def test_of_many_differences_the_first_are_spelt_out_and_the_rest_counted():
    one, other = ({f"k{i:02}": side for i in range(MOST_SPELT_OUT + 3)} for side in "ab")
    with pytest.raises(ParityError) as caught:
        check_loaded({1: one, 2: other})
    assert f"k{MOST_SPELT_OUT - 1:02} was" in caught.value.what
    assert f"k{MOST_SPELT_OUT:02} was" not in caught.value.what
    assert "and 3 more keys differed" in caught.value.what
