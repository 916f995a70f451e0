"""Stripes beside the sources: where they lie, where they meet, and who else looks there."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.tasks.registry import get_task
from probes.attention.targets import ProbeInput, late_sources
from probes.head_classes import CONTENT
from probes.labels.source_stripes import STRIPES, source_overlap


def task_input(name, words, **sizes):
    task = get_task(name, length=len(words[0]), **sizes)
    batch = task.sequences(torch.tensor(words))
    return ProbeInput(tokens=batch.tokens, sources=batch.sources, special_ids=(0, 1))


def cells_of(targets):
    return [
        {(q, k) for q, k in zip(rows, keys, strict=True) if k >= 0}
        for rows, keys in zip(targets.query_pos.tolist(), targets.key_pos.tolist(), strict=True)
    ]


def test_stripes_of_reversal_have_constant_sums():
    n = 5
    x = task_input("reversal", [[2, 3, 4, 5, 6], [6, 6, 3, 3, 2]])
    for name, late in STRIPES.items():
        for cells in cells_of(late_sources(x, late)):
            assert {q + k for q, k in cells} == {2 * n + 1 + late}, name


@given(st.integers(-2, 3), st.integers(0, 2**31), st.booleans())
def test_stripes_are_those_of_a_loop(late, seed, causal):
    draw = torch.Generator().manual_seed(seed)
    sources = torch.randint(-1, 7, (3, 7, 2), generator=draw)
    sources[..., 1] = torch.where(sources[..., 1] == sources[..., 0], -1, sources[..., 1])
    x = ProbeInput(
        tokens=torch.zeros(3, 7, dtype=torch.long), sources=sources, special_ids=(), causal=causal
    )
    expected = [
        {
            (q + late, k)
            for q, keys in enumerate(one)
            for k in keys
            if k >= 0 and 0 <= q + late < 7
            if not late or (k not in one[q + late] and (k <= q + late or not causal))
        }
        for one in sources.tolist()
    ]
    targets = late_sources(x, late)
    assert cells_of(targets) == expected
    assert targets.n_rows.tolist() == [len({q for q, _ in one}) for one in expected]


def test_sources_that_stay_in_place_have_no_stripe_of_their_own():
    x = ProbeInput(
        tokens=torch.tensor([[0, 2, 3, 1, 2, 2]]),
        sources=torch.tensor([[[-1], [-1], [-1], [1], [1], [-1]]]),
        special_ids=(0, 1),
    )
    assert cells_of(late_sources(x, 1)) == [{(5, 1)}]
    assert cells_of(late_sources(x, -1)) == [{(2, 1)}]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("copy", {"induction": 0.8}),
        ("reversal", {"preceder": 0.8}),
        ("induction", {"induction": 1.0}),
    ],
)
def test_who_else_looks_at_the_sources(task, expected):
    found = source_overlap(task_input(task, [[2, 3, 4, 5, 6]]), CONTENT)
    assert found == pytest.approx(dict.fromkeys(CONTENT, 0.0) | expected)


def test_without_sources_nobody_looks_there():
    x = ProbeInput(tokens=torch.tensor([[0, 2, 2]]), sources=None, special_ids=(0,))
    assert all(math.isnan(share) for share in source_overlap(x, CONTENT).values())
    with pytest.raises(ValueError, match="sources must be those of a task's batch, got plain"):
        late_sources(x, 1)
