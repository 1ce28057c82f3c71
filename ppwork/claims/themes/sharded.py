"""Claims about models of which each rank has a part, or a copy: tensor, context and data parallel."""

from __future__ import annotations

from ppwork.claims.claim import NOTES, Claim, ClaimFinding, Seen, does_not_hold, holds, unhurried

TENSOR = "documentation of torch.distributed.tensor"
ROUNDING = 1e-5
HALF = 0.05
"""More than bfloat16 rounds attention of numbers around one, and far less than wrong rows differ."""


def _tensor_parallel(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["mesh of 1 and 2"][1:]]
    worst = max(note["difference"] for note in notes)
    text = (
        f"Two layers over ranks 1 and 2 of three: each has {notes[0]['part']} of the first weight of "
        f"{notes[0]['whole']}, and the output is at most {worst:.1g} from the whole model's."
    )
    cut = notes[0]["part"][0] * 2 == notes[0]["whole"][0]
    return holds(text, when=cut and worst <= ROUNDING)


def _distributed(seen: Seen) -> ClaimFinding:
    given, own = ([rank.notes for rank in seen[name][1:]] for name in ("given", "own"))
    first = given[1]["whole"] == [1.0, 1.0]
    overwritten = given[1]["mine"] != [2.0, 2.0]
    text = (
        f"From 1 on its first rank and 2 on its second, the second rank's copy was {given[1]['whole'][0]:g}, "
        f"and the tensor that it had given was {given[1]['mine'][0]:g} afterwards; with `src_data_rank=None` "
        f"its copy was {own[1]['whole'][0]:g}."
    )
    return holds(text, when=first and overwritten)


def _context_parallel(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["attention"]]
    rows = f"Two ranks had rows {notes[0]['rows']} and {notes[1]['rows']} of a causal attention"
    if any("error" in note for note in notes):
        text = next(note["error"] for note in notes if "error" in note)
        return does_not_hold(f"{rows}, and on this device: {text}")
    worst = max(note["difference"] for note in notes)
    text = f"{rows}, at most {worst:.2g} from the whole one's."
    return holds(text, when=worst <= HALF)


def _attention_by_name(seen: Seen) -> ClaimFinding:
    broken, mended = ([rank.notes for rank in seen[name]] for name in ("broken", "mended"))
    worst = max(note["difference"] for note in broken)
    looked_up = next((note["error"] for note in mended if "error" in note), "")
    after = (
        f"it was seen by torch, which has none for this device ({looked_up.partition(':')[0]})"
        if looked_up
        else f"it was at most {max(note['difference'] for note in mended):.2g} from it"
    )
    text = (
        f"By a name that was imported before, attention of a shared sequence was {worst:.2g} from the whole "
        f"one's, without an error; looked up in `nn.functional` at the call, {after}."
    )
    return holds(text, when=worst > HALF)


def _init_sync(seen: Seen) -> ClaimFinding:
    first, second = (rank.notes for rank in seen["wrapped"])
    text = (
        "Rank 0 had a parameter of 1, rank 1 of 2. Wrapped with `init_sync=True` rank 1 had "
        f"{second['synchronised']:g}; with `init_sync=False` it had {second['own']:g}, rank 0 "
        f"{first['own']:g}, and nobody said so."
    )
    return holds(text, when=second["synchronised"] == 1.0 and second["own"] == 2.0)


def _not_contiguous(seen: Seen) -> ClaimFinding:
    notes = seen["transposed"][0].notes
    if notes.get("contiguous"):
        raise ValueError("the tensor was contiguous")
    if "error" in notes:
        return does_not_hold(f"The all-reduce of a transposed tensor raised: {notes['error']}")
    right = [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
    ways = {"with a gradient": notes["with_gradient"] == right, "plain": notes["plain"] == right}
    text = " and ".join(f"{name} {'right' if good else 'wrong'}" for name, good in ways.items())
    text = f"The all-reduce of a transposed tensor came out, {text}."
    return holds(text, when=ways["with a gradient"])


CLAIMS = (
    Claim(
        id="A05",
        statement="Tensor parallel by DTensor runs on a mesh from a group that leaves out rank 0.",
        source=f"{TENSOR}.parallel, `parallelize_module`; DeviceMesh, `from_group`",
        programs={"mesh of 1 and 2": unhurried("sharded:tensor_parallel_on_a_group", ranks=3)},
        judge=_tensor_parallel,
        advice="The generator's layers can be shared by the mesh group with a plan of names, and tried on "
        "gloo without a GPU; all mesh ranks have to call the model the same number of times.",
    ),
    Claim(
        id="A06",
        statement="`distribute_tensor` sends the first rank's values, into the very tensor the others gave.",
        source=f"{TENSOR}, `distribute_tensor`, `src_data_rank`",
        programs={
            "given": unhurried("sharded:given_by_the_first", ranks=3),
            "own": unhurried("sharded:each_its_own", ranks=3),
        },
        judge=_distributed,
        advice="Where every rank has read the same weights, `src_data_rank=None` saves the sending, but then "
        "nothing checks that they are the same: compare digests.",
    ),
    Claim(
        id="A07",
        statement="`context_parallel` gives each rank its rows of the attention of the whole sequence.",
        source=f"{NOTES}, context parallel, #131351",
        programs={"attention": unhurried("sharded:attention_looked_up")},
        judge=_context_parallel,
        advice="It is a prototype for CUDA's attention kernels: plan no test of it on CPU, and mind that the "
        "rows of a rank are not neighbours.",
    ),
    Claim(
        id="A08",
        statement="`context_parallel` misses an attention function imported by name: a wrong result, no "
        "error.",
        source=f"{TENSOR}.experimental, `context_parallel`: it patches `nn.functional`",
        programs={
            "broken": unhurried("sharded:attention_bound_before"),
            "mended": unhurried("sharded:attention_looked_up"),
        },
        judge=_attention_by_name,
        advice="Call `nn.functional.scaled_dot_product_attention` by its full name in the model, and compare "
        "one chunk with a run on one rank.",
    ),
    Claim(
        id="R20",
        statement="Wrapped by DDP with `init_sync=False`, ranks keep their own parameters, and nobody says "
        "so.",
        source=f"{NOTES}, `init_sync`, #142824",
        programs={"wrapped": unhurried("sharded:data_parallel_start")},
        judge=_init_sync,
        advice="It saves the sending at start; then the ranks have to be the same by other means, such as "
        "one seed or one file, and a digest that shows it.",
    ),
    Claim(
        id="R21",
        statement="`torch.distributed.nn` all-reduces a tensor that is not contiguous as well.",
        source=f"{NOTES}, bug fixes, #144267",
        programs={"transposed": unhurried("sharded:reduced_with_a_gradient")},
        judge=_not_contiguous,
        advice="Still make what you send contiguous: point-to-point messages refuse such a tensor.",
        theme="Collectives",
    ),
)
