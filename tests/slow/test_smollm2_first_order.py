"""SmolLM2's heads to first order: estimates beside 270 exact ablations, and what follows a head."""

import pytest

from lab.hooked_gpt import HookedGPT
from probes.feeders.composition import composition_scores
from probes.first_order.agreement import FirstOrderStudy, first_order_study
from probes.first_order.self_repair import repair_split
from probes.reading.inputs import repeated_batch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(smollm2: HookedGPT) -> FirstOrderStudy:
    return first_order_study(smollm2, repeated_batch(smollm2, n_sequences=4, block=20, seed=0))


def test_estimates_rank_heads_as_exact_ablations_do(study: FirstOrderStudy) -> None:
    """Better than chance by far, and far from perfect."""
    assert len(study.heads) == 270
    rows = study.agreement.set_index("estimator")
    for name in ("importance by example", "importance by token", "attribution patching"):
        assert rows["ci_low"][name] > 0.3, name
        assert rows["shared"][name] >= 3 > rows["shared_chance"][name], name
    assert rows["spearman"].max() < 0.99


def test_the_head_that_feeds_induction_is_missed(study: FirstOrderStudy) -> None:
    """L16H0 costs nats when it goes, and its gradient points the other way."""
    heads = study.heads.set_index(["layer", "head"])
    assert heads["ci_low"][16, 0] > 2.0
    assert heads["estimate"][16, 0] < 0.25 * heads["delta"][16, 0]


def test_the_feeder_of_the_induction_head_stands_out_in_its_keys(smollm2: HookedGPT) -> None:
    frame = composition_scores(smollm2, readers=[(17, 3)])
    best = frame.sort_values("excess").iloc[-1]
    assert (best["kind"], best["from_layer"], best["from_head"]) == ("K", 16, 0)
    assert best["excess"] > 5 * frame["excess"].abs().median()


def test_a_previous_token_head_works_through_later_layers(smollm2: HookedGPT) -> None:
    batch = repeated_batch(smollm2, n_sequences=4, block=20, seed=0)
    frame = repair_split(smollm2, batch, [[(16, 0)], [(17, 3)]], metrics=["loss"])
    free = frame[frame["norm"] == "free"].set_index("heads")
    assert free["total"]["L16H0"] > 5 * abs(free["direct"]["L16H0"])
    assert free["ci_high"]["L16H0"] < 0
