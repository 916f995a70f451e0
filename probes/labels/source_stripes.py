"""A task's sources read a row early or late, and which of them other mechanisms reach too.

A head may be on the stripe beside the sources for a reason of its own: in reversal the stripe one
row late is the duplicate-token head's, the one after it the induction head's.
"""

from collections.abc import Iterable, Mapping

import torch

from probes.attention.targets import ProbeInput, Targets, is_special

STRIPES: Mapping[str, int] = {"stripe_early": -1, "stripe_plus_1": 1, "stripe_plus_2": 2}
"""Columns of the labels table, and how many rows late each reads a task's sources."""

BEHIND_COPY: Mapping[str, int] = {"preceder": -1, "duplicate": 0, "induction": 1}
"""How far behind the earlier copy of the row's token each class of content looks."""


def stripe_cells(x: ProbeInput, late: int) -> Targets:
    """Return the cells (query + late, source of the query's answer) that are no sources themselves.

    Where stripes meet, as with equal symbols or sources that stay in place, a cell is the
    source's: no head is blamed for its neighbour. Rows outside the sequence are left out.

    Raises:
        ValueError: The input has no sources.
    """
    if x.sources is None:
        raise ValueError("sources must be those of a task's batch, got plain tokens")
    batch, n_pos, n_sources = x.sources.shape
    rows = torch.arange(n_pos, device=x.sources.device) + late
    inside = (rows >= 0) & (rows < n_pos)
    keys, rows = x.sources[:, inside], rows[inside]
    own = x.sources[:, rows]
    # A key that is a source of this row too, or that the row cannot see, is left out.
    shared = (keys.unsqueeze(3) == own.unsqueeze(2)).any(dim=3)
    unseen = keys > rows.view(1, -1, 1) if x.causal else torch.zeros_like(shared)
    keys = torch.where(shared | unseen, -1, keys).flatten(1)
    rows = rows.repeat_interleave(n_sources).expand(batch, -1)
    used = (keys >= 0).any(dim=0)
    return Targets.of_cells(rows[:, used], keys[:, used], x)


def source_overlap(x: ProbeInput, classes: Iterable[str]) -> dict[str, float]:
    """Return the share of the rows with a source in which a class of content looks there too.

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
        copy = x.sources - BEHIND_COPY[name]
        inside = known & (copy >= 0) & (copy < rows)
        token = words.gather(1, copy.clamp(0, n_pos - 1).flatten(1)).view(batch, n_pos, n_sources)
        same = inside & (token == words.unsqueeze(2)) & (token >= 0)
        found[name] = int(same.any(dim=2).sum()) / n_rows
    return found
