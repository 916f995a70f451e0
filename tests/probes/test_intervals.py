"""The bootstrap interval against what is known of means."""

import numpy as np
import pytest

from probes.intervals import bootstrap_interval


def test_width_is_that_of_the_normal_approximation():
    rng = np.random.default_rng(0)
    totals = rng.normal(3.0, 2.0, size=(400, 2))
    low, high = bootstrap_interval(totals, np.ones(400))
    standard_error = totals.std(axis=0) / 20
    np.testing.assert_allclose(high - low, 2 * 1.96 * standard_error, rtol=0.1)
    assert (np.abs((high + low) / 2 - totals.mean(axis=0)) < 0.3 * standard_error).all()


def test_ratio_is_of_sums_not_a_mean_of_ratios():
    totals, counts = np.array([[9.0], [9.0], [0.0], [0.0]]), np.array([9.0, 9.0, 1.0, 1.0])
    low, high = bootstrap_interval(totals, counts)
    assert high == pytest.approx([1.0])
    assert 0.0 <= low[0] < 18 / 20


def test_constant_has_no_width():
    low, high = bootstrap_interval(np.full((30, 1), 0.25), np.ones(30))
    assert (low[0], high[0]) == pytest.approx((0.25, 0.25), abs=1e-15)


def test_sequences_without_summands_do_not_thin_the_resamples_out():
    totals, counts = np.zeros((200, 1)), np.zeros(200)
    totals[:5, 0], counts[:5] = (1.0, 2.0, 3.0, 4.0, 5.0), 1.0
    low, high = bootstrap_interval(totals, counts)
    assert not np.isnan([low, high]).any()
    assert low[0] < 3.0 < high[0]


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_sequences_have_no_interval(n):
    low, high = bootstrap_interval(np.ones((n, 3)), np.ones(n))
    assert np.isnan([low, high]).all()
    assert low.shape == (3,)
