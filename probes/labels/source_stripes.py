"""A task's sources read a row early or late, and which of them other mechanisms reach too.

A head may be on the stripe beside the sources for a reason of its own: in reversal the stripe one
row late is the duplicate-token head's, the one after it the induction head's.
"""

from collections.abc import Iterable, Mapping

import torch

from probes.attention.targets import ProbeInput, is_special
from probes.head_classes import STEPS

STRIPES: Mapping[str, int] = {"stripe_early": -1, "stripe_plus_1": 1, "stripe_plus_2": 2}
"""Columns of the labels table, and how many rows late each reads a task's sources."""


def source_overlap(x: ProbeInput, classes: Iterable[str]) -> dict[str, float]:
    """Return the share of the rows with a source in which a class of content attends there too.

    In the copy task that is the induction head, in all rows but the first; in reversal the
    preceder. NaN without a row that has a source.
    """
    nothing = dict.fromkeys(classes, float("nan"))
    if x.sources is None:
        return nothing
    batch, n_pos, n_sources = x.sources.shape
    known = x.sources >= 0
    n_rows = int(known.any(dim=2).sum())
    if n_rows == 0:
        return nothing
    words = torch.where(is_special(x.tokens, x.special_ids), -1, x.tokens)
    rows = torch.arange(n_pos, device=words.device).view(1, -1, 1)
    found = {}
    for name in nothing:
        copy = x.sources - STEPS[name]
        inside = known & (copy >= 0) & (copy < rows)
        token = words.gather(1, copy.clamp(0, n_pos - 1).flatten(1)).view(batch, n_pos, n_sources)
        same = inside & (token == words.unsqueeze(2)) & (token >= 0)
        found[name] = int(same.any(dim=2).sum()) / n_rows
    return found
