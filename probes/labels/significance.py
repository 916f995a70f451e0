"""Significance of effects: sign flips shared by all heads, and corrections for many of them.

Each sequence gives one difference, mass on the targets less mass in the control. Without an effect
its sign is a coin: flipping the signs of whole sequences, the same for all heads, shows what chance
does to every head at once, with the dependence between them (Westfall and Young 1993; Benjamini and
Hochberg 1995). What a significant effect means for a label: `probes.labels.head_labels`.
"""

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

EXACT_UP_TO = 16
"""Up to this number of sequences, all 2^n sign patterns are used."""
FEWEST = 8
"""With fewer sequences no p-value can be small: no test."""
FLIPS = 10_000
"""Random sign patterns above EXACT_UP_TO sequences, unless many tests ask for more."""
LEVEL = 0.05
"""False discovery rate at which an effect counts as significant."""
RESOLUTION = 1e-5
"""Differences below this are rounding of reads in float32: such a test is exact, and not made."""
AT_ONCE = 2**22
"""Statistics of flipped samples that are held at once: 32 MB."""

Differences = Float64[np.ndarray, "batch test"]
PerTest = Float64[np.ndarray, " test"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FlipTest:
    """What the sign flips say of every test; NaN where there was none to make."""

    p_value: PerTest
    """Two-sided p of each test alone, on the mean difference."""
    p_max_t: PerTest
    """Two-sided p of each test among all: how often chance makes the largest |t| as large."""
    q_value: PerTest
    """Benjamini-Hochberg on p_value: the false discovery rate at which the test is a discovery."""
    n_flips: int
    """Sign patterns; 0 where no test was made."""
    exact: bool
    """Whether these are all patterns there are."""


def flip_test(differences: Differences, *, seed: int = 0, n_flips: int | None = None) -> FlipTest:
    """Test whether mean differences over sequences are zero, all with the same sign flips.

    p = share of sign patterns whose |mean| is at least the observed one; of random patterns the
    observed one counts as one more, (1 + hits) / (n_flips + 1). t = mean / (sd / sqrt(n)).

    Args:
        differences: Score less control of each sequence, one column a test.
        seed: Seed of the random patterns.
        n_flips: Random patterns; None: 10,000, or more where the first step of Benjamini and
            Hochberg needs them (tests / 0.05).

    Returns:
        The p-values. NaN: fewer than 8 sequences, or a column without any spread or above
        rounding, where mean and value of every sequence are the same exact number.
    """
    n = len(differences)
    made = tests_to_make(differences)
    nothing = np.full(differences.shape[1], np.nan)
    if not made.any():
        return FlipTest(
            p_value=nothing, p_max_t=nothing, q_value=nothing, n_flips=0, exact=n <= EXACT_UP_TO
        )
    sample = differences[:, made]
    exact = n <= EXACT_UP_TO
    if exact:
        signs = all_signs(n)
    else:
        needed = int(np.ceil(sample.shape[1] / LEVEL))
        signs = random_signs(n, n_flips or max(FLIPS, needed), seed)
    alone, among = count_hits(sample, signs)
    # All patterns include the observed one.
    total, observed = (len(signs), 0) if exact else (len(signs) + 1, 1)
    p_value, p_max_t = nothing.copy(), nothing.copy()
    p_value[made] = (alone + observed) / total
    p_max_t[made] = (among + observed) / total
    return FlipTest(
        p_value=p_value,
        p_max_t=p_max_t,
        q_value=false_discovery(p_value),
        n_flips=len(signs),
        exact=exact,
    )


def tests_to_make(differences: Differences) -> np.ndarray:
    """Return which columns can be tested: enough sequences, and more spread than rounding."""
    if len(differences) < FEWEST:
        return np.zeros(differences.shape[1], dtype=bool)
    spread = np.ptp(differences, axis=0)  # NaN where a sequence had no row
    return np.isfinite(spread) & (spread > RESOLUTION)


def all_signs(n: int) -> Float64[np.ndarray, "flip {n}"]:
    """Return every sign pattern whose last sign is +: the others are their mirror images."""
    patterns = np.arange(2 ** (n - 1))[:, None] >> np.arange(n)[None, :]
    return 1.0 - 2.0 * (patterns & 1)


@functools.lru_cache(maxsize=4)
def random_signs(n: int, n_flips: int, seed: int) -> Float64[np.ndarray, "flip {n}"]:
    """Return random sign patterns; one seed, the same patterns."""
    signs = np.random.default_rng(seed).integers(0, 2, size=(n_flips, n), dtype=np.int8)
    signs = 2.0 * signs - 1.0
    signs.setflags(write=False)  # it is shared by all who ask again
    return signs


def count_hits(
    sample: Differences, signs: Float64[np.ndarray, "flip batch"]
) -> tuple[PerTest, PerTest]:
    """Return how many flipped samples reach the observed |mean|, and how many the observed |t|.

    Flips leave the sum of squares alone, so that t follows from the mean.
    """
    n, n_tests = sample.shape
    squares = (sample**2).mean(axis=0)
    observed = np.abs(sample.mean(axis=0))
    # Patterns that give the very same mean may differ in the last bits.
    reached = observed * (1.0 - 1e-9)
    observed_t = t_of(observed, squares, n) * (1.0 - 1e-9)
    alone, among = np.zeros(n_tests), np.zeros(n_tests)
    step = max(1, AT_ONCE // n_tests)
    for start in range(0, len(signs), step):
        means = np.abs(signs[start : start + step] @ sample) / n
        alone += (means >= reached).sum(axis=0)
        largest = t_of(means, squares, n).max(axis=1)
        # One sorted list answers for all tests how many of the largest |t| reach theirs.
        among += len(largest) - np.searchsorted(np.sort(largest), observed_t, side="left")
    return alone, among


def t_of(mean: np.ndarray, squares: np.ndarray, n: int) -> np.ndarray:
    """Return |t| from |mean| and mean square; infinite where all differences are equal."""
    variance = np.maximum(squares - mean**2, 0.0) / (n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0.0, mean / np.sqrt(variance), np.inf)


def false_discovery(p_value: PerTest) -> PerTest:
    """Return Benjamini and Hochberg's q of each p: min over p' >= p of p' m / rank(p').

    Tests that are NaN were not made and are not counted.
    """
    made = np.flatnonzero(~np.isnan(p_value))
    q_value = np.full(len(p_value), np.nan)
    order = made[np.argsort(p_value[made], kind="stable")]
    scaled = p_value[order] * len(order) / np.arange(1, len(order) + 1)
    q_value[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q_value
