"""Planted models: their attention is the closed form, and every head does what it is said to."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from lab.gates import HeadGates
from lab.tasks.registry import get_task
from probes.attention.heads import score_heads
from probes.head_classes import CLASSES, shown_label
from probes.planted import PlantedHead, expected_pattern, plant, planted_mass
from probes.planted.cohort import (
    CARD_SEEDS,
    DECK,
    LATER_DECK,
    SHARP_GAINS,
    TUNING_SEEDS,
    cohort_plan,
    new_plan,
    planted_cohort,
    random_model,
    recipe,
)
from probes.planted.heads import KINDS, MIXABLE

CERTAIN = 40.0
WRITERS = (
    PlantedHead(kind="previous", beta=CERTAIN, writes="tokens"),
    PlantedHead(kind="duplicate", beta=CERTAIN, writes="places"),
)
FILLER = PlantedHead(kind="uniform")

# n = 8, T = 18, beta = 12, all letters different: previous, current, first, REV (sum 2n + 1), and
# the stripes of sums 2n + 2 and 2n + 3, as computed outside this project for this construction.
TABLE = {
    "previous": (0.9999, 0.0000, 0.0588, 0.1250, 0.0000, 0.0000),
    "current": (0.0000, 0.9999, 0.0000, 0.0000, 0.0000, 0.0000),
    "first": (0.0000, 0.0000, 0.9999, 0.0000, 0.0000, 0.0000),
    "offset 2": (0.0000, 0.0000, 0.1177, 0.0000, 0.1250, 0.0000),
    "reversal": (0.0625, 0.0000, 0.5294, 0.9999, 0.0000, 0.0000),
    "one row late": (0.0000, 0.0588, 0.4706, 0.0000, 0.9999, 0.0000),
    "uniform": (0.1247, 0.1468, 0.1468, 0.0763, 0.0708, 0.0679),
    "duplicate": (0.0012, 0.0000, 0.5254, 0.0003, 0.9975, 0.0000),
    "induction": (0.0636, 0.0013, 0.5241, 0.0003, 0.0000, 0.9974),
}
HEADS_OF_TABLE = {
    "offset 2": PlantedHead(kind="offset", distance=2),
    "one row late": PlantedHead(kind="reversal", distance=1),
}
ARCHITECTURES = {
    "plain": {},
    "rotated": {"rotate": 3},
    "LN": {"norm": "LN"},
    "rotated LN": {"norm": "LN", "rotate": 3},
    "rotated RMS": {"norm": "RMS", "rotate": 3},
    "rotated LN, 5 heads a key head": {"norm": "LN", "rotate": 3, "kv_heads": 2},
}


def table_model(**options):
    """Every head of the table, the last one in layer 1."""
    first = [HEADS_OF_TABLE.get(name) or PlantedHead(kind=name) for name in list(TABLE)[:-1]]
    second = [PlantedHead(kind="induction"), *[FILLER] * 9]
    return plant([[*first, *WRITERS], second], **options)


def patterns_of(model, tokens):
    """The attention matrix of every head, [layer, batch, head, query, key]."""
    _, cache = model.run_with_cache(tokens)
    return [cache["pattern", layer] for layer in range(model.config.n_layers)]


def columns(A, n):
    """The table's six numbers, cell by cell."""
    T = len(A)
    stripe = {s: np.mean([A[q, s - q] for q in range(n + 1, T) if 1 <= s - q <= n]) for s in
              (2 * n + 1, 2 * n + 2, 2 * n + 3)}  # fmt: skip
    return (
        np.mean([A[q, q - 1] for q in range(2, T)]),
        np.mean([A[q, q] for q in range(1, T)]),
        np.mean([A[q, 0] for q in range(1, T)]),
        *stripe.values(),
    )


@pytest.mark.parametrize("options", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_table_of_planted_heads_comes_out_to_four_decimals(distinct_batch, options):
    patterns = patterns_of(table_model(**options).model, distinct_batch.tokens)
    heads = [patterns[0][0, i] for i in range(8)] + [patterns[1][0, 0]]
    for (name, expected), A in zip(TABLE.items(), heads, strict=True):
        got = columns(A.numpy(), n=8)
        assert np.round(got, 4) == pytest.approx(expected, abs=1e-9), name


def every_kind():
    """One head of every kind, hard variants included: layer 0, then layer 1."""
    first = [
        PlantedHead(kind="previous", beta=2.0),
        PlantedHead(kind="current", beta=3.0),
        PlantedHead(kind="first", beta=4.0),
        PlantedHead(kind="offset", distance=3, beta=5.0),
        PlantedHead(kind="reversal", beta=2.5),
        PlantedHead(kind="reversal", rest="even", distance=-1),
        PlantedHead(kind="uniform", writes="nothing"),
        PlantedHead(kind="low_rank"),
        PlantedHead(kind="recency", beta=0.5),
        PlantedHead(kind="random", beta=3.0, seed=5),
        PlantedHead(kind="duplicate", beta=4.0),
        *(PlantedHead(kind="mixed", parts=parts, share=0.3) for parts in pairwise(MIXABLE)),
    ]  # fmt: skip
    second = [
        PlantedHead(kind="induction", beta=3.0, writes="copy"),
        *(PlantedHead(kind="pointer", distance=step, beta=6.0) for step in (-2, -1, 0, 1, 2)),
        PlantedHead(kind="backup", primary=2, beta=6.0),
    ]
    first = [*WRITERS, *first]
    assert {head.kind for head in first + second} == {entry.name for entry in KINDS}
    return [first, second + [FILLER] * (len(first) - len(second))]


@pytest.mark.parametrize("options", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_every_head_has_exactly_the_attention_of_its_closed_form(options):
    layers = every_kind()
    if "kv_heads" in options:
        options = {**options, "kv_heads": 3}
    planted = plant(layers, **options)
    tokens = torch.randint(2, 12, (4, 18), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 0
    for row, patterns in zip(layers, patterns_of(planted.model, tokens), strict=True):
        for index, head in enumerate(row):
            expected = expected_pattern(head, tokens, planted.codes)
            torch.testing.assert_close(patterns[:, index], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("options", [{}, {"rotate": 2, "norm": "LN"}, {"rotate": 2, "kv_heads": 2}])
def test_rotary_heads_are_turned_constants(options):
    layers = [
        [
            WRITERS[0],
            PlantedHead(kind="current", beta=8.0),
            PlantedHead(kind="offset", distance=3, beta=8.0),
            PlantedHead(kind="low_rank", beta=0.7),
        ],
        [PlantedHead(kind="induction", beta=8.0), PlantedHead(kind="first"), FILLER, FILLER],
    ]
    planted = plant(layers, rotary=True, word=12, **options)
    tokens = get_task("reversal", length=12).sample(3, seed=0).tokens
    patterns = patterns_of(planted.model, tokens)
    for row, of_layer in zip(layers, patterns, strict=True):
        for index, head in enumerate(row):
            expected = expected_pattern(head, tokens, planted.codes)
            torch.testing.assert_close(of_layer[:, index], expected, atol=1e-6, rtol=0)
    soft = columns(patterns[0][0, 3].numpy(), n=12)
    assert 0.35 < soft[0] < 0.6, "a graded diagonal, which a bare cut of 0.4 takes for a sharp one"
    assert columns(patterns[0][0, 0].numpy(), n=12)[0] > 1 - 1e-9


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0, 3.0])
def test_soft_diagonal_is_exact_and_hits_a_wanted_score(beta):
    tokens = torch.arange(18).unsqueeze(0)
    A = patterns_of(plant([[PlantedHead(kind="previous", beta=beta)]]).model, tokens)[0][0, 0]
    for q in range(1, 18):
        assert A[q, q - 1].item() == pytest.approx(planted_mass(beta, q), abs=1e-12)
    if beta == 1.5:
        assert columns(A.numpy(), n=8)[0] == pytest.approx(0.3643, abs=5e-5)
    wanted = 0.4
    exact = math.log(wanted * 17 / (1 - wanted))
    A = patterns_of(plant([[PlantedHead(kind="previous", beta=exact)]]).model, tokens)[0][0, 0]
    assert A[17, 16].item() == pytest.approx(wanted, abs=1e-12)


def test_low_rank_diagonal_fools_a_bare_cut():
    planted = plant([[PlantedHead(kind="low_rank")]])
    A = patterns_of(planted.model, torch.arange(18).unsqueeze(0))[0][0, 0].numpy()
    assert columns(A, n=8)[:2] == pytest.approx((0.4920, 0.2438), abs=5e-5)
    W_QK = planted.model.blocks[0].attn.W_Q[0] @ planted.model.blocks[0].attn.W_K[0].T
    assert torch.linalg.matrix_rank(W_QK) == 2


def test_repeated_block():
    n = 8
    tokens = torch.tensor([[0, *range(2, 10), *range(2, 10)]])
    layers = [[*WRITERS, PlantedHead(kind="duplicate")], [PlantedHead(kind="induction")]]
    layers[1] += [PlantedHead(kind="first"), PlantedHead(kind="pointer", distance=-1)]
    first, second = (p[0].numpy() for p in patterns_of(plant(layers).model, tokens))
    rows = range(n + 1, 2 * n + 1)

    def ladder(A, step):
        return np.mean([A[q, q - n + step] for q in rows])

    assert ladder(first[2], 0) == pytest.approx(0.9975, abs=5e-5)
    assert ladder(first[2], 1) == pytest.approx(0.0, abs=5e-5)
    assert ladder(second[0], 1) == pytest.approx(0.9975, abs=5e-5)
    assert ladder(second[0], 0) == pytest.approx(0.0, abs=5e-5)
    assert ladder(second[2], -1) == pytest.approx(0.9999, abs=1e-4)
    # The formula that courses teach takes two rows too many, one of which looks at BOS.
    assert np.diag(second[0], -n + 1).mean() == pytest.approx(0.8965, abs=5e-5)
    assert np.diag(second[1], -n + 1).mean() == pytest.approx(0.1, abs=5e-5)


def test_earlier_copies_share_a_duplicate_head():
    tokens = torch.tensor([[0, 3, 3, 5, 3, 3]])
    A = patterns_of(plant([[PlantedHead(kind="duplicate", beta=20.0)]]).model, tokens)[0][0, 0]
    assert A[5].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3, 0], abs=1e-4)


def test_position_and_content_answer_differently_where_symbols_repeat():
    """A pointer to what preceded the copy reverses a word of different letters, and no other."""
    layers = [[*WRITERS, PlantedHead(kind="reversal")]]
    layers.append([PlantedHead(kind="pointer", distance=-1), FILLER, FILLER])
    model = plant(layers).model
    for word, by_content in (((2, 3, 4, 5, 6, 7, 8, 9), 7 / 8), ((2, 2, 2, 2, 5, 2, 2, 2), 0.3)):
        tokens = torch.tensor([[0, *word, 1, *reversed(word)]])
        position, content = (p[0].numpy() for p in patterns_of(model, tokens))
        assert columns(position[2], n=8)[3] == pytest.approx(0.9999, abs=1e-4)
        got = columns(content[0], n=8)[3]
        assert got == pytest.approx(by_content, abs=1e-3) if by_content == 7 / 8 else got < 0.3


@pytest.mark.parametrize("share", [0.3, 0.5, 0.62])
@pytest.mark.parametrize("parts", [("previous", "first"), ("current", "previous")])
def test_mixed_head_shows_both_of_its_parts(parts, share):
    planted = plant([[PlantedHead(kind="mixed", parts=parts, share=share)]], word=12)
    batch = get_task("reversal", length=12).sample(4, seed=0)
    frame = score_heads(planted.model, batch, list(parts)).set_index("probe")["score"]
    # Row 1 of a head that looks back is key 0: `first` gains what of its 25 rows that is.
    extra = share / 25 if "first" in parts else 0.0
    assert frame[parts[0]] == pytest.approx(share, abs=0.02)
    assert frame[parts[1]] == pytest.approx(1 - share + extra, abs=0.02)


class TestWhatAblationMustFind:
    """Truths about outputs, which patterns alone do not tell."""

    layers = (
        (
            *WRITERS,
            PlantedHead(kind="previous"),
            PlantedHead(kind="uniform", writes="nothing"),
        ),
        (
            PlantedHead(kind="induction", writes="copy"),
            PlantedHead(kind="induction", writes="anti_copy"),
            PlantedHead(kind="backup", primary=2),
            FILLER,
        ),
    )
    tokens = torch.tensor([[0, *range(2, 10), *range(2, 10)]])

    def run(self, planted, heads=()):
        gates = HeadGates.ablate(list(heads), like=planted.model) if heads else None
        kept = {}

        def keep(layer, reads):
            kept[layer] = reads.pattern()[0]

        logits = planted.model(self.tokens, gates=gates, observe=keep)
        return logits, kept

    @pytest.mark.parametrize("options", [{}, {"rotate": 1, "norm": "LN"}])
    def test_silent_head_has_no_importance_at_all(self, options):
        planted = plant(self.layers, **options)
        whole, _ = self.run(planted)
        without, _ = self.run(planted, [(0, 3)])
        torch.testing.assert_close(without, whole, atol=1e-12, rtol=0)

    def test_copying_head_takes_exactly_its_own_output_along(self):
        planted = plant(self.layers, rotate=1)
        whole, _ = self.run(planted)
        without, _ = self.run(planted, [(1, 0)])
        _, cache = planted.model.run_with_cache(self.tokens)
        own = cache["z", 1][:, :, 0] @ planted.model.blocks[1].attn.W_O[0]
        torch.testing.assert_close(whole - without, own @ planted.model.W_U, atol=1e-9, rtol=0)
        assert own.norm() > 1

    def test_induction_head_falls_back_on_bos_without_its_writer(self):
        planted = plant(self.layers, rotate=1)
        _, intact = self.run(planted)
        _, blind = self.run(planted, [(0, 0)])
        rows = slice(9, 17)
        assert intact[1][0, rows].gather(1, (torch.arange(9, 17) - 7).unsqueeze(1)).min() > 0.99
        assert blind[1][0, rows, 0].min() > 1 - 17 * math.exp(-6)

    @pytest.mark.parametrize("options", [{}, {"rotate": 1, "norm": "LN"}])
    def test_backup_head_works_only_when_its_primary_is_gone(self, options):
        planted = plant(self.layers, **options)
        _, intact = self.run(planted)
        _, repaired = self.run(planted, [(0, 2)])
        assert intact[1][2, 1:, 0].min() > 0.999
        assert repaired[1][2, torch.arange(2, 17), torch.arange(1, 16)].min() > 0.99
        awake = expected_pattern(planted.layers[1][2], self.tokens, planted.codes, primary=False)
        torch.testing.assert_close(repaired[1][2], awake[0], atol=1e-2, rtol=0)


def test_copying_is_an_eigenvalue_of_one():
    """From token to logits, a copying head is the identity, an anti-copying one its negative."""
    planted = plant(TestWhatAblationMustFind.layers, rotate=4)
    attn = planted.model.blocks[1].attn
    for head, sign in ((0, 1.0), (1, -1.0)):
        through = planted.model.W_E @ attn.W_V[head] @ attn.W_O[head] @ planted.model.W_U
        torch.testing.assert_close(through, sign * torch.eye(28).double(), atol=1e-9, rtol=0)


def test_truth_names_every_head_its_twins_and_its_silence():
    twin = PlantedHead(kind="current", variant="twin")
    layers = [[twin, FILLER, PlantedHead(kind="current", writes="nothing"), twin]]
    layers[0].append(PlantedHead(kind="mixed", share=0.7))
    truth = plant(layers).truth.set_index("head")
    assert truth["truth"].tolist() == ["current", "uniform", "current", "current", "previous"]
    assert truth["redundant_with"].tolist() == ["L0H2,L0H3", "", "L0H0,L0H3", "L0H0,L0H2", ""]
    assert truth["parts"].tolist() == ["", "", "", "", "previous 0.70 + first 0.30"]
    assert truth["silent"].tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("heads", "options", "match"),
    [
        ([[PlantedHead(kind="induction")]], {}, r"L0H0.* must follow a head that writes tokens"),
        (
            [[WRITERS[1]], [PlantedHead(kind="induction")]],
            {},
            "plant one with writes='tokens' in an earlier layer",
        ),
        ([[FILLER], [FILLER, FILLER]], {}, r"layers must be of one size, got \[1, 2\]"),
        ([[PlantedHead(kind="reversal")]], {"rotary": True}, "plant it with rotary=False"),
        ([[WRITERS[0], WRITERS[0]]], {}, "heads that write tokens must be one, got 2"),
        ([[PlantedHead(kind="backup")]], {}, "primary of the backup head L0H0 must be"),
        ([[WRITERS[0]], [PlantedHead(kind="backup")]], {}, "must be a head of layer 0 that marks"),
        (
            [[PlantedHead(kind="first", writes="copy")], [FILLER]],
            {"norm": "LN"},
            "L0H0, which copies, must be in the last layer",
        ),
    ],
)
def test_what_cannot_be_planted_is_refused(heads, options, match):
    with pytest.raises(ValueError, match=match):
        plant(heads, **options)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kind": "unifrom"}, r"unknown planted head 'unifrom'.*'uniform'"),
        ({"kind": "offset"}, "distance must be a whole number of at least 1, got 0"),
        ({"kind": "mixed", "parts": ("first", "first")}, "parts must be two different kinds"),
        ({"kind": "mixed", "parts": ("first", "duplicate")}, "unknown part of a mixed head"),
        ({"kind": "current", "beta": -1.0}, "beta must be a number of at least 0"),
        ({"kind": "current", "writes": "logits"}, "unknown writes 'logits'"),
    ],
)
def test_heads_that_make_no_sense_are_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        PlantedHead(**fields)


@pytest.mark.parametrize(
    ("seeds", "least"),
    [
        (CARD_SEEDS[:20], 8),
        pytest.param(CARD_SEEDS, 50, marks=pytest.mark.slow),
        pytest.param(TUNING_SEEDS, 50, marks=pytest.mark.slow),
    ],
    ids=["some", "card", "tuning"],
)
def test_cohort_has_fifty_heads_of_everything_in_a_hundred_seeds(seeds, least):
    plans = [cohort_plan(seed, number) for seed in seeds for number in range(2)]
    heads = [(plan, head) for plan in plans for row in plan.layers for head in row]
    assert len(heads) == 2 * len(seeds) * 16
    labels = Counter(head.label for _, head in heads)
    graded = Counter(
        head.label for _, head in heads if head.label in ("uniform", "none") or head.beta in
        (*SHARP_GAINS, CERTAIN)
    )  # fmt: skip
    dealt = {card.head.label for card in (*DECK, *LATER_DECK)}
    classes = {shown_label(name, "reversal") for name in CLASSES}
    assert {"uniform", "none", "mixed"} < dealt <= set(labels) <= classes | dealt
    assert min(labels[name] for name in dealt) >= least
    assert min(graded[name] for name in dealt & classes) >= least
    variants = Counter(head.variant for _, head in heads)
    assert min(variants.values()) >= least, variants
    rotated = Counter(
        head.label for plan, head in heads if plan.norm == "LN" and plan.rotate is not None
    )
    architectures = Counter()
    for plan, _ in heads:
        architectures[f"norm {plan.norm}"] += 1
        architectures["rotary"] += plan.rotary
        architectures["grouped"] += plan.kv_heads is not None
    assert min(architectures.values()) >= 4 * least
    assert sum(rotated.values()) >= 10 * least
    assert dealt <= set(rotated)


def test_new_classes_come_in_a_model_of_their_own():
    plan = new_plan(3, (recipe("pointer", distance=2),))
    assert [head.kind for head in plan.layers[1]] == ["pointer"] * 8
    assert {"tokens", "places"} <= {head.writes for head in plan.layers[0]}
    assert plan.build().truth["truth"][8:].isin({*CLASSES, "none"}).all()


def test_a_head_of_places_may_be_planted_by_a_function():
    tokens = torch.arange(2, 18).unsqueeze(0)
    planted = plant([[PlantedHead(kind="torch:arange", beta=30.0)]])
    _, cache = planted.model.run_with_cache(tokens)
    assert torch.allclose(cache["pattern", 0][0, 0], torch.eye(16, dtype=torch.float64))


def test_cohort_is_a_pure_function_of_its_seed():
    assert cohort_plan(7, 1) == cohort_plan(7, 1)
    assert cohort_plan(7, 1) != cohort_plan(8, 1)
    first, again = (next(planted_cohort(3)) for _ in range(2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True)
    )


def test_cohort_in_float32_keeps_its_closed_forms():
    for planted in planted_cohort(1):
        tokens = planted.task.sample(4, seed=0).tokens
        for row, patterns in zip(planted.layers, patterns_of(planted.model, tokens), strict=True):
            for index, head in enumerate(row):
                expected = expected_pattern(head, tokens, planted.codes)
                close = torch.allclose(patterns[:, index].double(), expected, atol=1e-3)
                assert close, (index, head)


def test_random_models_differ():
    assert not torch.equal(random_model(0).W_E, random_model(16).W_E)


def test_previous_head_meets_the_answers_in_their_first_row_alone(distinct_batch):
    """The last letter stands before SEP: 1/8 of its score on the sources is one whole row."""
    A = patterns_of(table_model().model, distinct_batch.tokens)[0][0, 0]
    on_sources = [A[8 + t, 9 - t].item() for t in range(1, 9)]
    assert on_sources[0] > 0.999
    assert max(on_sources[1:]) < 1e-4


def test_padding_on_the_left_moves_a_planted_head_and_changes_nothing():
    planted = plant(every_kind(), n_ctx=24, norm="LN", rotate=2)
    tokens = planted.task.sample(2, seed=0).tokens
    padded = torch.cat([torch.full((2, 4), 3), tokens], dim=1)
    mask = torch.cat([torch.zeros(2, 4), torch.ones_like(tokens)], dim=1).bool()
    kept = []
    for given, real in ((tokens, None), (padded, mask)):
        planted.model(
            given,
            return_type=None,
            attention_mask=real,
            observe=lambda layer, reads: kept.append(reads.pattern()),
        )
    for plain, moved in zip(kept[:2], kept[2:], strict=True):
        torch.testing.assert_close(moved[:, :, 4:, 4:], plain, atol=1e-9, rtol=0)
