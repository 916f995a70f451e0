"""All tables of a model in one go are the tables of the functions that make them."""

import pandas as pd
import pytest

from probes.attention.entropy import entropy_profile
from probes.attention.heads import score_heads
from probes.attention.offsets import offset_spectrum
from probes.reading import observed_model as reads_module
from probes.reading.checked_sequences import check_sequences
from probes.reading.inputs import repeated_pair
from probes.report.model_tables import more_tables
from probes.writing.copying import copying_scores
from probes.writing.values import head_values


@pytest.mark.parametrize("padded", [False, True])
def test_given_sequences(small_model, repeating_batch, padded, monkeypatch):
    monkeypatch.setattr(reads_module, "TOKENS_AT_ONCE", 30)  # several slices
    mask = None
    if padded:
        mask = repeating_batch.tokens.new_ones(repeating_batch.tokens.shape)
        mask[2, :4] = 0
    monkeypatch.setattr(
        "probes.report.model_tables.sample_tokens", lambda model, seed: repeating_batch.tokens
    )
    checked = check_sequences(small_model, repeating_batch, attention_mask=mask)
    tables = more_tables(small_model, checked, seed=3)
    near = {"check_exact": False, "rtol": 0, "atol": 1e-12}
    for name, make, takes_seed in (
        ("heads", score_heads, True),
        ("entropy", entropy_profile, False),
        ("spectrum", offset_spectrum, True),
        ("values", head_values, False),
    ):
        wanted = make(
            small_model, repeating_batch, attention_mask=mask, **{"seed": 3} if takes_seed else {}
        )
        pd.testing.assert_frame_equal(tables[name], wanted, **near)
        assert tables[name].attrs == wanted.attrs
    wanted = copying_scores(small_model, repeating_batch.tokens)
    pd.testing.assert_frame_equal(tables["copying"], wanted)


def test_repeated_sequences_with_their_control(build_model):
    model = build_model(d_vocab=20, n_ctx=20)
    tables = more_tables(model, check_sequences(model, None, n_pairs=6, seed=1), seed=1)
    pair = repeated_pair(model, n_sequences=6, seed=1)
    words = {"special_ids": pair.special_ids, "seed": 1}
    heads = score_heads(model, pair.tokens, control=pair.control, **words)
    pd.testing.assert_frame_equal(tables["heads"], heads)
    assert tables["heads"]["control"].notna().any()
    pd.testing.assert_frame_equal(tables["spectrum"], offset_spectrum(model, pair.tokens, **words))
    pd.testing.assert_frame_equal(tables["copying"], copying_scores(model, seed=1))
