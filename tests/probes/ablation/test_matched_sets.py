"""Sets of other heads to compare a group with."""

from collections import Counter

import pytest

from probes.ablation.matched_sets import draw_matched_sets, share_in_layers

POOL = [(layer, head) for layer in range(5) for head in range(4)]


def layers_of(heads):
    return Counter(layer for layer, _ in heads)


def test_as_many_heads_of_each_layer_and_none_of_the_group():
    group = [(1, 0), (2, 2), (3, 0), (3, 1)]
    sets = draw_matched_sets(group, POOL, 6, seed=1)
    assert len(set(sets)) == 6
    for one in sets:
        assert layers_of(one) == Counter({1: 1, 2: 1, 3: 2})
        assert not set(one) & set(group)
    assert share_in_layers(sets, group) == 1.0
    assert sets == draw_matched_sets(group, POOL, 6, seed=1)
    assert sets != draw_matched_sets(group, POOL, 6, seed=2)


def test_every_head_of_the_layer_gets_its_turn():
    drawn = {one for seed in range(20) for one in draw_matched_sets([(2, 0)], POOL, 1, seed=seed)}
    assert drawn == {((2, 1),), ((2, 2),), ((2, 3),)}


def test_a_full_layer_is_made_up_for_by_its_neighbours():
    """Layer 0 has no other head; layer 1 keeps its own for itself, so that layer 2 has to help."""
    group = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    for one in draw_matched_sets(group, POOL, 5):
        assert layers_of(one) == Counter({1: 2, 2: 4})
    nearest = draw_matched_sets([(4, head) for head in range(4)], POOL, 9)
    assert nearest == [tuple((3, head) for head in range(4))]
    assert share_in_layers(nearest, [(4, 0)]) == 0.0


@pytest.mark.parametrize(("group", "pool"), [([], POOL), ([(0, 0), (0, 1)], [(0, 0), (3, 3)])])
def test_where_there_is_nothing_to_draw_there_is_no_set(group, pool):
    assert draw_matched_sets(group, pool, 4) == []
    assert str(share_in_layers([], group)) == "nan"
