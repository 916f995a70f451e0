"""How numbers are written on every screen: terminal, app, report page, card, labels of figures.

Only numbers become text here; sentences, tables and titles are made where they are shown. The files
of a table have their own digits: see `probes.tables.CSV_FLOAT`.
"""

import math
from collections.abc import Callable

MISSING = "-"
"""What a table shows in place of a number that has no meaning."""
SMALL_CHANGE = 0.001
"""Below this a change is written with a power of ten: four decimals would hide it."""
FLAT = 0.005
"""The same of a change written with two decimals, beside a bar that looks flat."""
LARGEST_LOSS = math.log(1e9)
"""Up to this loss, in nats, perplexity is written as a number."""


def is_missing(value: float | None) -> bool:
    """Return whether a number has no meaning: None in plain data, NaN in a DataFrame."""
    return value is None or math.isnan(value)


def read_number(cell: str | float | None) -> float:
    """Return a cell of a table as a number; NaN where it is missing, as None or as empty text.

    >>> read_number(None), read_number(""), read_number("0.5")
    (nan, nan, 0.5)
    """
    return math.nan if cell is None or cell == "" else float(cell)


def decimals(value: float | None, digits: int = 2, missing: str = MISSING) -> str:
    """Write a number with a fixed number of decimals; a zero has no sign.

    >>> decimals(0.976), decimals(-0.0001, 3), decimals(None), decimals(None, missing="n/a")
    ('0.98', '0.000', '-', 'n/a')
    """
    return missing if value is None or is_missing(value) else f"{value:z.{digits}f}"


def significant(value: float | None, digits: int = 3) -> str:
    """Write a number of any size with a number of significant digits.

    >>> significant(1234.5), significant(0.00012345), significant(None)
    ('1.23e+03', '0.000123', '-')
    """
    return MISSING if value is None or is_missing(value) else f"{value:.{digits}g}"


def signed(value: float | None, digits: int = 2) -> str:
    """Write a number with its sign and a fixed number of decimals.

    >>> signed(0.256), signed(-0.5, 1), signed(None)
    ('+0.26', '-0.5', '-')
    """
    return MISSING if value is None or is_missing(value) else f"{value:+.{digits}f}"


def change(value: float | None) -> str:
    """Write a change with its sign and four decimals; a small one is not written as 0.

    >>> change(-0.25), change(-0.00001234), change(0.0), change(None)
    ('-0.2500', '-1.2e-05', '0', '-')
    """
    if value is None or is_missing(value):
        return MISSING
    if not value:
        return "0"
    return f"{value:+.1e}" if abs(value) < SMALL_CHANGE else f"{value:+.4f}"


def short_change(value: float) -> str:
    """Write a change beside its bar with two decimals; a small one is not written as 0.

    >>> short_change(7.52), short_change(-0.25), short_change(0.00013), short_change(0.0)
    ('+7.52', '-0.25', '+1e-04', '0')
    """
    if not value:
        return "0"
    return f"{value:+.2f}" if abs(value) >= FLAT else f"{value:+.0e}"


def points(value: float | None) -> str:
    """Write the change of a share in points of per cent.

    >>> points(-0.123), points(0.0001), points(0.0), points(None)
    ('-12.3', '+0.010', '0', '-')
    """
    if value is None or is_missing(value):
        return MISSING
    if not value:
        return "0"
    return f"{100 * value:+.1f}" if abs(value) >= 0.0005 else f"{100 * value:+.3f}"


def interval(
    low: float | None, high: float | None, write: Callable[[float], str] = decimals
) -> str:
    """Write an interval, each end as `write` has it; a dash if there is no interval.

    >>> interval(0.981, 0.987), interval(-0.5, 1.0, change), interval(None, None)
    ('0.98 to 0.99', '-0.5000 to +1.0000', '-')
    """
    if low is None or high is None or is_missing(low) or is_missing(high):
        return MISSING
    return f"{write(low)} to {write(high)}"


def with_range(value: float, low: float, high: float) -> str:
    """Write a median of counts and, behind it, the least and the largest.

    >>> with_range(3.0, 1.0, 6.0), with_range(0.5, 0.0, 2.0)
    ('3 (1 to 6)', '0.5 (0 to 2)')
    """
    return f"{value:g} ({low:g} to {high:g})"


def per_cent(share: float, digits: int = 0) -> str:
    """Write a share as per cent; what is not quite nothing or all is not written as 0 or 100.

    >>> per_cent(0.99), per_cent(0.123, 1), per_cent(0.00009, 1), per_cent(0.9999, 1), per_cent(1.0)
    ('99 %', '12.3 %', '<0.1 %', '>99.9 %', '100 %')
    """
    text, least = f"{100 * share:.{digits}f}", 10.0**-digits
    if share > 0.0 and float(text) == 0.0:
        return f"<{least:g} %"
    if share < 1.0 and float(text) == 100.0:
        return f">{100.0 - least:g} %"
    return f"{text} %"


def small_probability(value: float | None) -> str:
    """Write how probable an effect is by chance alone.

    >>> small_probability(0.0301), small_probability(0.00002), small_probability(None)
    ('0.030', '<0.001', '-')
    """
    if value is None or is_missing(value):
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def nats(loss: float) -> str:
    """Write a loss with its unit; a small one is not written as 0.

    >>> nats(2.31), nats(0.000016), nats(1e-7)
    ('2.3100 nats', '0.000016 nats', 'below 0.000001 nats')
    """
    if 0 < loss < 1e-6:
        return "below 0.000001 nats"
    return f"{loss:.4f} nats" if loss >= 0.001 else f"{loss:.6f} nats"


def perplexity(loss: float | None) -> str:
    """Write exp(loss), of a loss in nats.

    >>> perplexity(3.0496), perplexity(10.6165), perplexity(1e4), perplexity(None)
    ('21.1', '40,803', '>1e9', '-')
    """
    if loss is None or is_missing(loss):
        return MISSING
    if loss > LARGEST_LOSS:
        return ">1e9"
    value = math.exp(loss)
    return f"{value:,.1f}" if value < 1_000 else f"{value:,.0f}"


def grouped(number: int) -> str:
    """Write a whole number with thousands apart.

    >>> grouped(2000)
    '2,000'
    """
    return f"{number:,}"


def in_bytes(size: int) -> str:
    """Write a size in bytes the short way.

    >>> in_bytes(999), in_bytes(1_300_000)
    ('999 B', '1.3 MB')
    """
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5 or unit == "GB":
            break
        amount /= 1_000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
