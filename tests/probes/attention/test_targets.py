"""The cells of each probe against a loop over every pair of positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.tasks.registry import get_task
from probes.attention import targets as targets_module
from probes.attention.targets import ProbeInput, Targets
from probes.registry import get_probe, load_function

token_rows = st.integers(1, 9).flatmap(
    lambda n_pos: st.lists(
        st.lists(st.integers(0, 4), min_size=n_pos, max_size=n_pos), min_size=1, max_size=4
    )
)


def cells_of(targets: Targets) -> list[set[tuple[int, int]]]:
    return [
        {(q, k) for q, k in zip(rows, keys, strict=True) if k >= 0}
        for rows, keys in zip(targets.query_pos.tolist(), targets.key_pos.tolist(), strict=True)
    ]


@settings(max_examples=60)
@given(rows=token_rows, tile=st.integers(1, 4))
def test_matching_cells_are_those_of_a_loop(rows, tile):
    x = ProbeInput(tokens=torch.tensor(rows), sources=None, special_ids=(0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_module, "ROW_TILE", tile)
        duplicate, induction = targets_module.duplicate_token(x), targets_module.induction(x)
        preceder = targets_module.preceder(x)
    pairs = [
        {
            (q, k)
            for q in range(len(row))
            for k in range(q)
            if row[q] == row[k] and row[q] not in (0, 1)
        }
        for row in rows
    ]
    assert cells_of(duplicate) == pairs
    assert cells_of(induction) == [{(q, k + 1) for q, k in one} for one in pairs]
    assert cells_of(preceder) == [
        {(q, k - 1) for q, k in one if k >= 1 and row[k - 1] not in (0, 1)}
        for row, one in zip(rows, pairs, strict=True)
    ]
    for targets in (duplicate, induction):
        assert targets.n_rows.tolist() == [len({q for q, _ in one}) for one in pairs]
        assert targets.chance.tolist() == pytest.approx(
            [sum(1 / (q + 1) for q, _ in one) for one in pairs]
        )


def test_stripes_of_reversal_have_constant_sums():
    n = 6
    batch = get_task("reversal", length=n).sample(2, seed=0)
    x = ProbeInput(tokens=batch.tokens, sources=batch.sources, special_ids=(0, 1))
    for name, total, n_rows in (
        ("sources", 2 * n + 1, n),
        ("sources_plus_1", 2 * n + 2, n),
        ("sources_plus_2", 2 * n + 3, n - 1),
    ):
        targets = load_function(get_probe(name))(x)
        for cells in cells_of(targets):
            assert {q + k for q, k in cells} == {total}
            assert {k for _, k in cells} <= set(range(1, n + 1))
        assert targets.n_rows.tolist() == [n_rows, n_rows]


def test_several_sources_make_one_row():
    sources = torch.tensor([[[-1, -1], [0, -1], [0, 1]]])
    x = ProbeInput(tokens=torch.tensor([[0, 2, 2]]), sources=sources, special_ids=(0, 1))
    targets = targets_module.answer_sources(x)
    assert cells_of(targets) == [{(1, 0), (2, 0), (2, 1)}]
    assert targets.n_rows.tolist() == [2]
    assert targets.chance.tolist() == pytest.approx([1 / 2 + 2 / 3])
