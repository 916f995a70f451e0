"""The spectrum over distances: one set of rows, known heads, BOS, pieces, wrong requests."""

import numpy as np
import pytest
import torch

from probes.attention import offsets as offsets_module
from probes.attention.offsets import offset_mass, offset_spectrum
from probes.reading.observed_model import observe_layers, probe_input


def shifted(n, back):
    """A pattern whose row q is all on key q - back, and on key 0 where there is none."""
    pattern = torch.zeros(n, n, dtype=torch.float64)
    for q in range(n):
        pattern[q, max(0, q - back)] = 1.0
    return pattern


def even(n):
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1).unsqueeze(1)


def spectrum(model, tokens, *args, **kwargs):
    frame = offset_spectrum(model, tokens, *args, **kwargs)
    return frame.pivot_table("mass", ["layer", "head"], "offset", dropna=False).to_numpy(), frame


def test_each_head_peaks_at_its_own_distance(fixed_patterns):
    n = 18
    model = fixed_patterns([shifted(n, back) for back in (0, 1, 2, 7)])
    mass, frame = spectrum(model, torch.arange(n).unsqueeze(0))
    assert mass.argmax(axis=1).tolist() == [0, 1, 2, 7]
    np.testing.assert_allclose(mass.max(axis=1), 1.0)
    assert frame["offset"].max() == 9  # half of the sequence
    assert set(frame["n_rows"]) == {18 - 9}


def test_all_distances_share_their_rows(fixed_patterns):
    """Each over its own rows, an even head would seem to prefer near keys."""
    mass, frame = spectrum(fixed_patterns([even(20)]), torch.arange(20).unsqueeze(0), 6)
    exact = sum(1 / (q + 1) for q in range(6, 20)) / 14
    np.testing.assert_allclose(mass, exact, atol=1e-12)
    np.testing.assert_allclose(frame["chance"], exact, atol=1e-12)


@pytest.mark.parametrize("longest", [0, 1, 5])
def test_no_distance_lands_on_bos(fixed_patterns, longest):
    n = 12
    sink = fixed_patterns([shifted(n, n)])
    tokens = torch.arange(n).unsqueeze(0)
    mass, _ = spectrum(sink, tokens, longest, special_ids=(0,))
    assert mass.max() == 0.0
    mass, _ = spectrum(sink, tokens, longest)
    assert mass.max() == pytest.approx(1 / (n - longest) if longest else 0.0)


def test_masses_of_a_row_are_no_more_than_1(small_model, repeating_batch):
    x = probe_input(small_model, repeating_batch)
    n_pos = x.tokens.shape[1]

    def observe(layer, reads):
        mass = offset_mass(reads, x, n_pos - 1)
        assert mass.shape == (5, 3, n_pos - 1)
        # BOS stands first: of these distances only the last row sees all, and BOS besides.
        last = torch.full((5, 1), n_pos - 1)
        whole = mass.sum(dim=-1) + reads.cells(last, torch.zeros_like(last))[..., 0]
        torch.testing.assert_close(whole, torch.ones_like(whole))

    observe_layers(small_model, x.tokens, observe)


def test_blocks_join(small_model, repeating_batch, monkeypatch):
    whole = offset_spectrum(small_model, repeating_batch)
    monkeypatch.setattr(offsets_module, "SCORES_AT_ONCE", 200)
    monkeypatch.setattr(offsets_module, "SHORTEST_BLOCK", 2)
    pieces = offset_spectrum(small_model, repeating_batch)
    np.testing.assert_allclose(pieces["mass"], whole["mass"], atol=1e-14)


def test_sequences_keep_their_own_numbers(small_model, repeating_batch):
    frame = offset_spectrum(small_model, repeating_batch, 2)
    alone = [offset_spectrum(small_model, repeating_batch[i : i + 1], 2) for i in range(5)]
    np.testing.assert_allclose(frame["mass"], np.mean([one["mass"] for one in alone], axis=0))
    assert (frame["ci_low"] <= frame["mass"] + 1e-12).all()
    assert alone[0]["ci_low"].isna().all()


@pytest.mark.parametrize(("n", "longest"), [(1, None), (1, 0), (2, 1)])
def test_without_a_row_there_is_no_number(fixed_patterns, n, longest):
    frame = offset_spectrum(
        fixed_patterns([even(n)]), torch.zeros(1, n).long(), longest, special_ids=(0,)
    )
    assert frame[["mass", "chance", "ci_low"]].isna().all(axis=None)
    assert (frame["n_rows"] == 0).all()


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("longest", "message"),
    [
        (5, "max_offset must be a whole number of at most 4, got 5"),
        (-1, "max_offset must be a whole number of at least 0, got -1"),
        (1.5, r"max_offset must be a whole number of at least 0, got 1.5"),
    ],
)
def test_distance_that_no_row_has_is_refused(fixed_patterns, longest, message):
    with pytest.raises(ValueError, match=message):
        offset_spectrum(fixed_patterns([even(5)]), torch.arange(5).unsqueeze(0), longest)
