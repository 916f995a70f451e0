"""Sign flips against an enumeration by hand, textbook corrections, and what luck may find."""

import itertools

import numpy as np
import pytest

from probes.labels.significance import FLIPS, RESOLUTION, false_discovery, flip_test, random_signs


def draws(n, tests, seed=0):
    return np.random.default_rng(seed).normal(size=(n, tests))


def by_hand(sample):
    """Both p-values by listing all 2^n sign patterns."""

    def t_of(x):
        return np.abs(x.mean(axis=0)) / (x.std(axis=0, ddof=1) / np.sqrt(len(x)))

    alone, among, patterns = 0.0, 0.0, list(itertools.product([-1, 1], repeat=len(sample)))
    for signs in patterns:
        flipped = sample * np.array(signs)[:, None]
        alone = alone + (np.abs(flipped.mean(axis=0)) >= np.abs(sample.mean(axis=0)) - 1e-12)
        among = among + (t_of(flipped).max() >= t_of(sample) - 1e-12)
    return alone / len(patterns), among / len(patterns)


@pytest.mark.parametrize("n", [8, 11])
def test_few_sequences_are_tested_with_all_sign_patterns(n):
    sample = draws(n, 4)
    sample[:, 1] += 1.0
    found = flip_test(sample)
    alone, among = by_hand(sample)
    assert found.exact
    np.testing.assert_allclose(found.p_value, alone, rtol=1e-12)
    np.testing.assert_allclose(found.p_max_t, among, rtol=1e-12)


@pytest.mark.parametrize(("n", "least"), [(8, 0.0078), (12, 0.00049), (16, 3.05e-5)])
def test_smallest_p_is_that_of_all_signs_alike(n, least):
    found = flip_test(1.0 + 0.1 * draws(n, 1))
    assert found.p_value.item() == pytest.approx(least, rel=0.01)


def test_many_sequences_are_tested_with_random_patterns_that_agree_with_all():
    sample = draws(16, 3) + 0.3
    every, some = flip_test(sample), flip_test(np.concatenate([sample, sample[:1] * 0.0]))
    assert every.exact
    assert not some.exact
    assert some.n_flips == FLIPS
    assert (
        flip_test(draws(20, 2), seed=3).p_value.tolist()
        != flip_test(draws(20, 2), seed=4).p_value.tolist()
    )
    # An all-zero sequence changes no sign and no mean but by its length.
    np.testing.assert_allclose(some.p_value, every.p_value, atol=0.015)


def test_more_tests_ask_for_more_patterns():
    assert flip_test(draws(20, 600)).n_flips == 600 / 0.05


def test_patterns_of_one_seed_are_the_same_and_cannot_be_changed():
    one, other = random_signs(20, 50, 1), random_signs(20, 50, 1)
    assert one is other
    assert set(np.unique(one)) == {-1.0, 1.0}
    with pytest.raises(ValueError, match="read-only"):
        one[0, 0] = 0.0


def test_q_values_are_benjamini_hochberg_s():
    p_value = np.array([0.01, np.nan, 0.04, 0.03, 0.2])
    # 4 tests: .01 * 4 / 1, .03 * 4 / 2, .04 * 4 / 3, .2 * 4 / 4, made monotone from the right.
    expected = [0.04, np.nan, 0.16 / 3, 0.16 / 3, 0.2]
    np.testing.assert_allclose(false_discovery(p_value), expected)


@pytest.mark.parametrize(
    "differences",
    [
        np.full((20, 2), 0.9),
        np.full((20, 2), 0.9) + RESOLUTION * np.linspace(0, 0.9, 20)[:, None],
        1.0 + draws(7, 2),
        np.full((20, 2), np.nan),
    ],
    ids=["no spread", "rounding", "seven sequences", "nothing scored"],
)
def test_what_needs_no_test_gets_none(differences):
    found = flip_test(differences)
    assert found.n_flips == 0
    for p_value in (found.p_value, found.p_max_t, found.q_value):
        assert np.isnan(p_value).all()


def test_columns_without_a_test_are_not_counted():
    sample = draws(12, 2) + 1.0
    with_more = np.concatenate([sample, np.zeros((12, 50))], axis=1)
    np.testing.assert_array_equal(flip_test(with_more).q_value[:2], flip_test(sample).q_value)


def test_small_effect_is_significant_and_the_largest_t_controls_all():
    sample = 0.02 * draws(64, 40, seed=5)
    sample[:, 0] += 0.02
    found = flip_test(sample)
    assert found.q_value[0] < 0.01
    assert found.p_max_t[0] < 0.01
    assert (found.p_max_t >= found.p_value).all()


def test_luck_is_rarely_a_discovery():
    """Of 200 studies of 12 dependent tests without an effect, 5 % may have a discovery."""
    wrong = {"q_value": 0, "p_max_t": 0}
    for seed in range(200):
        sample = draws(10, 12, seed=seed) + draws(10, 1, seed=1_000 + seed)
        found = flip_test(sample)
        for name in wrong:
            wrong[name] += bool((getattr(found, name) < 0.05).any())
    # 18 of 200 is beyond the 99.5th percentile of Binomial(200, 0.05).
    assert wrong["q_value"] <= 18
    assert 1 <= wrong["p_max_t"] <= 18
