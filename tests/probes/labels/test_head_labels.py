"""label_heads on models whose heads are known: every class, its neighbours, and what they show."""

import math

import numpy as np
import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.attention.heads import score_heads
from probes.head_classes import CLASSES, CONTENT, LABEL_NAMES
from probes.labels.head_labels import label_heads, label_study
from probes.labels.reasons import copies
from probes.labels.rules import CUTS
from probes.planted import PlantedHead, plant
from probes.pruning.removing import prune_heads
from probes.registry import SOURCE_PROBES
from probes.schemas.labels import EVIDENCE, LABELS

LAYERS = (
    (
        PlantedHead(kind="previous", beta=30.0, writes="tokens"),
        PlantedHead(kind="duplicate", beta=30.0, writes="places"),
        PlantedHead(kind="current"),
        PlantedHead(kind="first"),
        PlantedHead(kind="uniform"),
        PlantedHead(kind="reversal"),
        PlantedHead(kind="reversal", distance=1),
        PlantedHead(kind="low_rank"),
    ),
    (
        PlantedHead(kind="induction", writes="copy"),
        PlantedHead(kind="pointer", distance=-1),
        PlantedHead(kind="pointer", distance=2),
        PlantedHead(kind="offset", distance=2),
        PlantedHead(kind="mixed", share=0.52),
        PlantedHead(kind="mixed", share=0.7),
        PlantedHead(kind="current", writes="nothing"),
        PlantedHead(kind="current", writes="nothing"),
    ),
)
"""Every class, and the neighbours that a threshold takes for one."""
EXPECTED = [
    *("previous", "duplicate", "current", "first", "uniform", "sources", "none", "none"),
    *("induction", "preceder", "none", "none", "mixed", "previous", "current", "current"),
]


@pytest.fixture(scope="module")
def planted():
    return plant(LAYERS, norm="LN", rotate=0, kv_heads=4)


@pytest.fixture(scope="module")
def plain():
    """The same without a norm, which is exact only where no symbol repeats."""
    return plant(LAYERS)


@pytest.fixture(scope="module")
def batch(planted) -> Batch:
    draw = torch.Generator().manual_seed(0)
    words = torch.stack([torch.randperm(26, generator=draw)[:8] + 2 for _ in range(12)])
    return planted.task.sequences(words)


@pytest.fixture(scope="module")
def study(planted, batch):
    return label_study(planted.model, batch, sequences=12)


def labels_of(frame):
    return frame["label"].tolist()


def test_every_planted_head_is_called_what_it_is(study):
    labels = study.labels
    assert labels.columns.tolist() == LABELS.names
    assert labels_of(labels) == EXPECTED
    plain = labels["label"].isin(["uniform", "mixed", "none", "broad"])
    assert (labels["strength"] == "").tolist() == plain.tolist()
    assert (labels.loc[~plain, "ci_low"] >= 0.4).all()
    assert (labels.loc[~plain, "probe"] == labels.loc[~plain, "label"]).all()


def test_flags_stand_beside_the_label(study):
    labels = study.labels
    assert labels["silent"].tolist() == [False] * 14 + [True] * 2
    twins = labels.set_index(["layer", "head"])["redundant_with"]
    assert twins[1, 6] == "L0H2,L1H7"
    assert twins[1, 7] == "L0H2,L1H6"
    assert twins[0, 3] == ""
    assert labels.set_index(["layer", "head"])["eigenvalue"][1, 0] > 0.99


def test_mixture_prints_both_parts(study):
    mixed = study.labels.iloc[12]
    assert mixed["mixture"].startswith("previous 0.5")
    parts = dict(part.rsplit(" ", 1) for part in mixed["mixture"].split(" + "))
    assert float(parts["previous"]) == pytest.approx(0.52, abs=0.02)
    assert float(parts["first"]) == pytest.approx(0.48, abs=0.02)
    lopsided = study.labels.iloc[13]
    parts = dict(part.rsplit(" ", 1) for part in lopsided["mixture"].split(" + "))
    assert float(parts["previous"]) == pytest.approx(0.7, abs=0.02)
    assert float(parts["first"]) == pytest.approx(0.3, abs=0.02)


def test_reasons_are_sentences_that_name_what_counts(study):
    reasons = study.labels["reason"]
    assert reasons[8].startswith("Puts 1.00 of its attention on what followed the same token earl")
    assert "its weights copy (OV eigenvalue score +1.00)" in reasons[8]
    assert "with other answers 1.00, so it finds it by position" in reasons[5]
    assert "smeared" in reasons[7] or "the distances beside it have" in reasons[7]
    assert "so it finds it" not in reasons[9]
    assert "output is close to zero" in reasons[14]
    assert all(reason.isascii() and reason.endswith(".") for reason in reasons)


def test_reasons_claim_what_was_measured_and_no_more(study):
    reasons = study.labels["reason"]
    assert "in every class it is less than 0.05 above chance (kappa)" in reasons[4]
    assert "(first on the rows of previous); previous and first are closer than" in reasons[12]
    assert "next is first with 0.30 over the rows of previous" in reasons[13]
    assert "over its own rows" in reasons[8]
    assert not reasons.str.contains(r"-0\.00\b").any()


def test_a_head_shows_the_test_of_the_class_of_its_numbers(study):
    """Also where the class is not its label."""
    evidence = study.evidence.set_index(["layer", "head", "probe"])
    content = study.labels[study.labels["probe"].isin(CONTENT)]
    assert not content["label"].isin(CONTENT).all()
    for _, row in content.iterrows():
        assert row["tested"] == row["probe"]
        own = evidence.loc[(row["layer"], row["head"], row["probe"])]
        np.testing.assert_equal(own["q_value"], row["q_value"])


@pytest.mark.parametrize(
    ("eigenvalue", "claim"),
    [
        (0.62, "its weights copy (OV eigenvalue score +0.62)"),
        (0.49, "OV eigenvalue score +0.49"),
        (-0.43, "OV eigenvalue score -0.43"),
        (-0.5, "its weights do the opposite of copying (OV eigenvalue score -0.50)"),
    ],
)
def test_copying_is_claimed_beyond_a_cut_only(eigenvalue, claim):
    assert copies(eigenvalue, CUTS) == claim


@pytest.mark.usefixtures("as_a_user")
def test_arguments_of_other_types_are_told(planted, batch):
    for wrong in ({"cuts": {}}, {"pair": batch.tokens}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be "):
            label_study(planted.model, batch, **wrong)


def test_evidence_says_what_kept_each_class_out(study):
    evidence = study.evidence
    assert evidence.columns.tolist() == EVIDENCE.names
    assert evidence["probe"].tolist() == [*CLASSES] * 16
    own = evidence[(evidence["layer"] == 0) & (evidence["head"] == 7)].set_index("probe")
    assert not own["valid"].any()
    assert own.loc["previous", "cut"] == "strong"
    assert "the distances beside it" in own.loc["previous", "why_not"]
    content = evidence["probe"].isin(CONTENT)
    assert evidence.loc[~content, ["p_value", "q_value", "p_max_t"]].isna().all(axis=None)
    np.testing.assert_allclose(
        evidence.loc[content, "effect"],
        evidence.loc[content, "score"] - evidence.loc[content, "control"],
        atol=1e-12,
    )


def test_rows_and_provenance_are_told(study):
    labels = study.labels
    assert labels["rows"][8].startswith("rows 9..16 of 17, from 0; 12 sequences, blocks of 8, ")
    assert labels["n_rows"][8] == 12 * 8
    assert labels["n_rows"][9] == 12 * 7
    assert labels["n_rows"][5] == 12 * 8
    assert labels.attrs["cuts"]["strong"] == 0.4
    assert labels.attrs["repeated_blocks"].endswith("without replacement, seed 0")


def test_without_input_everything_is_asked_of_repeated_blocks(planted):
    labels = label_heads(planted.model, sequences=12)
    assert labels["stripe"].isna().all()
    named = [
        name for name, was in zip(labels_of(labels), EXPECTED, strict=True) if was != "sources"
    ]
    assert named == [name for name in EXPECTED if name != "sources"]


def test_repeated_symbols_palindromes_and_eos_change_no_label(plain):
    words = {
        "repeats": torch.randint(2, 5, (12, 8), generator=torch.Generator().manual_seed(0)),
        "palindromes": torch.randint(2, 28, (12, 4), generator=torch.Generator().manual_seed(1)),
    }
    words["palindromes"] = torch.cat([words["palindromes"], words["palindromes"].flip(1)], dim=1)
    for word in words.values():
        batch = plain.task.sequences(word)
        assert labels_of(label_heads(plain.model, batch, sequences=12)) == EXPECTED
    wider = plant(LAYERS, n_ctx=20, rotate=1)
    batch = plain.task.sample(16, seed=3)
    with_eos = Batch(
        torch.cat([batch.tokens, torch.ones(16, 1, dtype=torch.long)], dim=1),
        torch.cat([batch.loss_mask, torch.zeros(16, 1, dtype=torch.bool)], dim=1),
        torch.cat([batch.sources, torch.full((16, 1, 1), -1)], dim=1),
    )
    assert labels_of(label_heads(wider.model, with_eos, sequences=12)) == EXPECTED


def test_words_of_several_lengths_share_a_batch():
    """What looks back by content finds its sources whatever n is; padding stands behind."""
    task = get_task("reversal", length=8)
    batches = [task.sequences(torch.randperm(26)[None, :n] + 2) for n in (5, 6, 7, 8) * 4]
    width = max(one.tokens.shape[1] for one in batches)

    def padded(values, fill):
        return torch.cat(
            [
                torch.cat([v, v.new_full((1, width - v.shape[1], *v.shape[2:]), fill)], dim=1)
                for v in values
            ]
        )

    batch = Batch(
        padded([one.tokens for one in batches], 0),
        padded([one.loss_mask for one in batches], False),
        padded([one.sources for one in batches], -1),
    )
    real = padded([torch.ones_like(one.tokens) for one in batches], 0)
    model = plant([*LAYERS[:1], LAYERS[1][:8]]).model
    labels = label_heads(model, batch, attention_mask=real, sequences=12)
    by_head = labels.set_index(["layer", "head"])
    assert by_head.loc[(1, 1), "label"] == "preceder"
    assert by_head.loc[(1, 1), "stripe"] > 0.8
    assert by_head.loc[(0, 5), "label"] != "sources"  # it knows words of 8 only
    assert by_head.loc[(0, 0), "label"] == "previous"


def test_labels_do_not_depend_on_order_padding_or_names(planted, batch, study):
    turned = plant(LAYERS, norm="LN", rotate=7, kv_heads=2)
    assert labels_of(label_heads(turned.model, batch, sequences=12)) == EXPECTED
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    shuffled = Batch(batch.tokens[order], batch.loss_mask[order], batch.sources[order])
    again = label_heads(planted.model, shuffled, sequences=12)
    np.testing.assert_allclose(again["score"], study.labels["score"], atol=1e-9)
    assert labels_of(again) == EXPECTED
    names = torch.cat([torch.arange(2), 2 + torch.randperm(26)])
    renamed = Batch(names[batch.tokens], batch.loss_mask, batch.sources)
    assert labels_of(label_heads(planted.model, renamed, sequences=12)) == EXPECTED


def test_swapped_heads_swap_labels(batch):
    swapped = plant([LAYERS[0], LAYERS[1][::-1]], norm="LN", rotate=0)
    labels = label_heads(swapped.model, batch, sequences=12)
    assert labels_of(labels) == EXPECTED[:8] + EXPECTED[8:][::-1]


def test_sharper_heads_score_higher_and_strength_follows(batch):
    gains = (0.5, 1.4, 1.6, 3.0)
    model = plant([[PlantedHead(kind="previous", beta=beta) for beta in gains]]).model
    labels = label_heads(model, batch, sequences=12)
    assert labels["score"].is_monotonic_increasing
    assert labels_of(labels) == ["broad", "previous", "previous", "previous"]
    assert labels["strength"].tolist() == ["", "weak", "weak", "strong"]
    exact = [np.mean([np.exp(b) / (np.exp(b) + q) for q in range(2, 18)]) for b in gains]
    np.testing.assert_allclose(labels["score"], exact, atol=1e-12)


@pytest.mark.gpu
def test_labels_are_the_same_on_a_gpu(planted, batch, study):
    model = plant(LAYERS, norm="LN", rotate=0, kv_heads=4, dtype=torch.float32).model.cuda()
    labels = label_heads(model, batch, sequences=12)
    assert labels_of(labels) == EXPECTED
    np.testing.assert_allclose(labels["score"], study.labels["score"], atol=1e-4)


def test_one_token_tells_nothing_of_what_heads_write(planted):
    """No row stands behind the first: what heads write there is unknown, and not nothing."""
    pads = torch.zeros(3, 4, dtype=torch.long)
    real = torch.tensor([[0, 0, 0, 1]] * 3)
    for tokens, mask in ((torch.tensor([[5], [6], [7]]), None), (pads, real)):
        labels = label_heads(planted.model, tokens, attention_mask=mask, sequences=8)
        assert not labels["silent"].any()
        assert not labels["reason"].str.contains("close to zero").any()


def test_blind_head_with_a_sink_is_no_focused_head(planted, batch):
    """Nine tenths on BOS and the rest spread evenly: low entropy, and nothing that it looks at."""
    soft = plant([[PlantedHead(kind="first", beta=math.log(9 * 17)), PlantedHead(kind="uniform")]])
    labels = label_heads(soft.model, batch, sequences=12)
    assert labels_of(labels) == ["first", "uniform"]
    assert labels["entropy_normalised"][0] < 0.3
    assert labels["sink_free_normalised"][0] == pytest.approx(1.0, abs=1e-6)


def test_pruned_model_speaks_of_its_original_heads(plain, batch):
    pruned = prune_heads(plain.model, [(0, 2), (1, 3)])
    labels = label_heads(pruned, batch, sequences=12)
    heads = list(zip(labels["layer"], labels["head"], strict=True))
    assert heads == [
        (layer, h) for layer in (0, 1) for h in range(8) if (layer, h) not in ((0, 2), (1, 3))
    ]
    assert labels_of(labels) == [e for i, e in enumerate(EXPECTED) if i not in (2, 11)]


def test_one_sequence_has_numbers_and_no_label(planted, batch):
    labels = label_heads(planted.model, batch[:1], sequences=8)
    first = labels.iloc[2]
    assert (first["label"], first["probe"]) == ("none", "current")
    assert first["score"] > 0.99
    assert "one sequence has no interval" in first["reason"]
    assert math.isnan(first["ci_low"])
    assert "1 sequence of 18 tokens" in first["rows"]
    assert "1 sequences" not in first["rows"] + first["reason"]
    few = label_heads(planted.model, batch[:3], sequences=8)
    assert few["label"][2] == "current"
    assert "Only 3 sequences: the interval is rough." in few["reason"][2]


def test_weights_that_are_no_numbers_are_told(batch):
    model = plant(LAYERS).model
    with torch.no_grad():
        model.blocks[1].attn.W_Q[5] = math.nan
    with pytest.raises(ValueError, match=r"finite, got nan or inf in blocks.1.attn.W_Q; restore"):
        label_heads(model, batch, sequences=8)


def test_attention_that_is_no_number_is_told(batch):
    """A hook can spoil what the weights give."""
    model = plant(LAYERS).model

    def spoil(q, hook):
        return torch.where(torch.arange(q.shape[2]).unsqueeze(1) == 5, math.nan, q)

    told = pytest.raises(ValueError, match="attention must be numbers, got NaN in L1H5; ")
    with model.hooks([("blocks.1.attn.hook_q", spoil)]), told:
        label_heads(model, batch, sequences=8)


def test_model_that_sees_both_ways_and_one_without_heads(plain, batch):
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 32, "d_vocab": 40, "n_ctx": 22}
    config = ModelConfig(**sizes, attention_dir="bidirectional", initializer_range=0.02)
    labels = label_heads(HookedGPT(config), sequences=12)
    assert set(labels["label"]) == {"uniform"}
    np.testing.assert_allclose(labels["chance"], 1 / 21)
    everything = [(layer, head) for layer in (0, 1) for head in range(8)]
    empty = label_heads(prune_heads(plain.model, everything), batch, sequences=12)
    assert empty.empty
    assert empty.columns.tolist() == LABELS.names


def test_same_seed_same_table_and_every_label_is_known(planted, batch, study):
    again = label_heads(planted.model, batch, sequences=12)
    assert again.equals(study.labels)
    assert set(again["label"]) <= set(LABEL_NAMES)


def test_late_sources_are_one_quantity_in_both_tables(small_model):
    batch = get_task("sorting", length=5, n_symbols=4).sample(8, seed=0)
    labels = label_heads(small_model, batch).sort_values(["layer", "head"])
    for probe, column in zip(
        SOURCE_PROBES, ("stripe", "stripe_plus_1", "stripe_plus_2"), strict=True
    ):
        scores = score_heads(small_model, batch, [probe]).sort_values(["layer", "head"])
        np.testing.assert_allclose(labels[column], scores["score"], atol=1e-6)
