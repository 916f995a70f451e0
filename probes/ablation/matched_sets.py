"""Random sets of heads to compare a group with: of its size, and of its layers as far as possible.

Any set of five heads costs something. What a group costs says something about the group only beside
what equally many other heads of the same layers cost.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from probes.ablation.sweep import HeadSet

Head = tuple[int, int]

ATTEMPTS = 20
"""Draws for each set that is wanted: in small pools most draws repeat an earlier one."""


def draw_matched_sets(
    group: Collection[Head], pool: Collection[Head], n: int, *, seed: int = 0
) -> list[HeadSet]:
    """Draw different sets of as many heads as the group has, each layer by layer.

    A layer with fewer heads in the pool than in the group is made up for by the layers nearest to
    it; see `share_in_layers`.

    >>> draw_matched_sets([(0, 1), (2, 0)], [(0, 0), (2, 1), (2, 2)], 9)
    [((0, 0), (2, 1)), ((0, 0), (2, 2))]

    Args:
        group: The heads to be matched, as (layer, head).
        pool: Heads to draw from; those of the group are left out.
        n: Sets to draw; fewer come back where there are no more.
        seed: Seed of the draws.

    Returns:
        The sets, sorted; none where the pool has too few heads.
    """
    others = sorted(set(pool) - set(group))
    if not group or len(others) < len(set(group)):
        return []
    wanted = Counter(layer for layer, _ in set(group))
    draw = np.random.default_rng(seed)
    found: set[HeadSet] = set()
    for _ in range(ATTEMPTS * n):
        if len(found) == n:
            break
        found.add(one_matched_set(wanted, others, draw))
    return sorted(found)


def one_matched_set(
    wanted: Counter[int], others: Sequence[Head], draw: np.random.Generator
) -> HeadSet:
    """Draw this many heads from each layer; draw missing ones from the nearest layers."""
    left = [others[i] for i in draw.permutation(len(others))]
    chosen: list[Head] = []
    missing: list[int] = []
    for layer in sorted(wanted):
        own = [head for head in left if head[0] == layer][: wanted[layer]]
        chosen += own
        missing += [layer] * (wanted[layer] - len(own))
    left = [head for head in left if head not in chosen]
    for layer in missing:  # min takes the first of those that are equally near, which is random
        nearest = min(left, key=lambda head: abs(head[0] - layer))
        left.remove(nearest)
        chosen.append(nearest)
    return tuple(sorted(chosen))


def share_in_layers(sets: Sequence[HeadSet], group: Collection[Head]) -> float:
    """Return the share of the sets' heads that are in layers of the group; NaN without a set.

    >>> share_in_layers([((0, 0), (1, 1))], [(0, 1), (0, 2)])
    0.5
    """
    layers = {layer for layer, _ in group}
    heads = [layer in layers for one in sets for layer, _ in one]
    return float(np.mean(heads)) if heads else float("nan")
