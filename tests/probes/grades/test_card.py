"""The card: the labels' own grades, and the two rivals on the same heads."""

import numpy as np
import pytest

from lab.tasks.registry import get_task
from probes.grades import card as card_module
from probes.grades.card import DETECTOR, MEANS, OURS, measure_card
from probes.grades.grading import GRADED_HEADS
from probes.grades.rivals import bare_means, customary_label, detector_scores
from probes.planted import PlantedHead, plant
from probes.planted.cohort import CARD_SEEDS
from probes.reading.inputs import repeated_pair

FILLED = ["uniform"] * 3
LAYERS = (
    (
        PlantedHead(kind="previous", beta=40.0, writes="tokens"),
        PlantedHead(kind="low_rank", variant="low rank"),
        PlantedHead(kind="reversal", distance=1, variant="one row late"),
        PlantedHead(kind="first", writes="nothing"),
    ),
    (PlantedHead(kind="induction"), *[PlantedHead(kind="uniform")] * 3),
)


@pytest.fixture(scope="module")
def planted():
    return plant(LAYERS)


@pytest.fixture(scope="module")
def pair(planted):
    return repeated_pair(planted.model, n_sequences=4, block=8)


def test_card_grades_every_head_by_every_labeler(planted, build_model, monkeypatch):
    monkeypatch.setattr(card_module, "planted_cohort", lambda seed: iter([planted]))
    monkeypatch.setattr(card_module, "random_model", lambda _: build_model(d_vocab=28, n_ctx=20))
    monkeypatch.setattr(card_module, "SEQUENCES", 8)
    seen = []
    card = measure_card([5], random_heads=1, progress=lambda *done: seen.append(done))
    assert seen == [(1, 2), (2, 2)]
    assert card.heads.columns.tolist() == GRADED_HEADS.names
    assert card.heads.groupby("labeler", sort=False).size().to_dict() == {
        OURS: 8 + 6, DETECTOR: 8 + 6, MEANS: 8 + 6
    }  # fmt: skip
    ours = card.heads[(card.heads["labeler"] == OURS) & (card.heads["seed"] == 5)]
    assert ours["truth"].tolist() == ["previous", "none", "none", "first", "induction", *FILLED]
    assert ours["label"].tolist() == ours["truth"].tolist()
    assert ours["said_silent"].tolist() == ours["silent"].tolist()
    assert ours["induction"].iloc[4] > 0.9
    assert set(card.false_positives["n_heads"]) == {6}


class TestRivals:
    """What others would say, on heads that show how it goes wrong."""

    def test_a_perfect_induction_head_has_half_a_point_from_the_detector(self, planted, pair):
        scores = detector_scores(planted.model, pair.tokens)
        # S / (2S + 1): the rows of the first block count as misses.
        assert scores["induction"][1, 0].item() == pytest.approx(8 / 17, abs=2e-3)
        assert scores["previous"][0, 0].item() == pytest.approx(16 / 17, abs=2e-3)

    def test_bare_means_are_the_means_of_diagonals(self, planted, pair):
        batch = get_task("reversal", length=8).sample(4, seed=0)
        scores = bare_means(planted.model, batch, pair)
        kept = {}
        for name, tokens in (("given", batch.tokens), ("repeated", pair.tokens)):
            _, cache = planted.model.run_with_cache(tokens)
            kept[name] = cache["pattern", 1][:, 0].numpy()
        by_hand = {
            "current": np.mean([np.trace(A) / 18 for A in kept["given"]]),
            "first": kept["given"][:, :, 0].mean(),
            "induction": np.mean([np.diag(A, -7).mean() for A in kept["repeated"]]),
            "duplicate": np.mean([np.diag(A, -8).mean() for A in kept["repeated"]]),
            "reversal": np.mean([[A[8 + t, 9 - t] for t in range(1, 9)] for A in kept["given"]]),
        }
        for name, expected in by_hand.items():
            assert scores[name][1, 0].item() == pytest.approx(expected, abs=1e-9), name

    def test_a_bare_cut_takes_near_misses_for_heads(self, planted, pair):
        batch = get_task("reversal", length=8).sample(4, seed=0)
        scores = bare_means(planted.model, batch, pair)
        called = [
            customary_label({name: of[0, head].item() for name, of in scores.items()})
            for head in range(4)
        ]
        assert called == ["previous", "previous", "first", "first"]


@pytest.mark.slow
def test_card_reaches_what_it_must():
    card = measure_card(CARD_SEEDS, jobs=2)
    macro = card.grades[card.grades["class"] == "macro"].set_index("labeler")["f1"].to_dict()
    assert macro[OURS] >= 0.98
    assert macro[OURS] > max(macro[DETECTOR], macro[MEANS])
    assert card.grades[card.grades["labeler"] == OURS]["n_heads"].min() >= 50
    rates = card.false_positives.set_index("labeler")
    assert rates["n_heads"].to_dict()[OURS] >= 1_000
    assert rates["rate"].to_dict()[OURS] <= 0.005
    ours = card.variants[card.variants["labeler"] == OURS].set_index("variant")
    assert ours["n_heads"].min() >= 50
    assert ours["right"].min() >= 0.9
    assert {"model: LN, rotated", "model: rotary", "head: backup"} <= set(ours.index)
    flags = card.flags.set_index("flag")["recall"].to_dict()
    assert flags["silent"] == 1.0
    assert flags["parts"] > 0.95
