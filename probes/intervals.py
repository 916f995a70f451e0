"""A mean over scored rows, and how sure it is: the percentile bootstrap, as one matrix product.

Sequences are resampled, not rows: the tokens of one sequence depend on each other.
"""

import numpy as np
from jaxtyping import Float64

from lab.checks import require_seed

RESAMPLES = 2_000
"""Bootstrap resamples of every interval."""
LEVEL = 0.95
"""Share of the resamples inside an interval."""
FEW_SEQUENCES = 12
"""Below this, an interval is too rough to lean on, and reports say so."""

PerSequence = Float64[np.ndarray, "batch column"]
PerColumn = Float64[np.ndarray, " column"]


def mean_over_rows(totals: PerSequence, counts: Float64[np.ndarray, " batch"]) -> PerColumn:
    """Return sum(totals) / sum(counts); NaN where there is no summand. See `bootstrap_interval`."""
    with np.errstate(invalid="ignore"):
        return totals.sum(axis=0) / counts.sum()


def bootstrap_interval(
    totals: PerSequence, counts: Float64[np.ndarray, " batch"], *, seed: int = 0
) -> tuple[PerColumn, PerColumn]:
    """Return the 95 % interval of sum(totals) / sum(counts) over resampled sequences.

    Args:
        totals: Each sequence's sum of a quantity, one column for each quantity.
        counts: Each sequence's number of summands, or another quantity to take the ratio to.
        seed: Seed of the resampling; one seed, one interval.

    Returns:
        Lower and upper ends; NaN with fewer than two sequences that have a summand.
    """
    means = resampled_means(totals, counts, seed=seed)
    if not len(means):
        nothing = np.full(totals.shape[1], np.nan)
        return nothing, nothing.copy()
    return percentile_interval(means)


def resampled_means(
    totals: PerSequence, counts: Float64[np.ndarray, " batch"], *, seed: int = 0
) -> Float64[np.ndarray, "resample column"]:
    """Return sum(totals) / sum(counts) of each resample: one seed, the same sequences.

    Fewer than two sequences with a summand have no interval.
    """
    require_seed(seed)
    counted = counts != 0
    n = int(counted.sum())
    if n < 2:
        return np.empty((0, totals.shape[1]))
    totals, counts = totals[counted], counts[counted]
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), size=RESAMPLES)
    sums = draws.astype(np.float64) @ np.concatenate([totals, counts[:, None]], axis=1)
    return sums[:, :-1] / sums[:, -1:]


def percentile_interval(
    values: Float64[np.ndarray, "resample column"],
) -> tuple[PerColumn, PerColumn]:
    """Return the ends between which 95 % of the resamples lie."""
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail], axis=0)
    return low, high
