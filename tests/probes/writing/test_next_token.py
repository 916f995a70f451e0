import pytest
import torch

from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.vocab import letter_vocab
from probes.writing.next_token import REST, next_token_table


@pytest.fixture(scope="module")
def model() -> HookedGPT:
    config = ModelConfig(
        n_layers=2, n_heads=2, d_model=16, d_vocab=8, n_ctx=9, initializer_range=0.6
    )
    return HookedGPT(config).eval()


TOKENS = torch.tensor([[0, 2, 5, 3, 1, 3]])


def test_probabilities_are_the_softmax_of_each_models_logits(model):
    gates = HeadGates.ablate([(0, 1), (1, 0)], like=model)
    table = next_token_table(model, TOKENS, gates=gates, k=2)
    plain = model(TOKENS)[0].double().softmax(-1)
    gated = model(TOKENS, gates=gates)[0].double().softmax(-1)
    for row in table.dropna().itertuples():
        assert row.baseline == pytest.approx(plain[row.query_pos, row.token_id].item(), abs=1e-7)
        assert row.gated == pytest.approx(gated[row.query_pos, row.token_id].item(), abs=1e-7)
    assert (table["baseline"] - table["gated"]).abs().max() > 0.01


def test_every_position_has_the_likeliest_of_both_and_sums_to_one(model):
    gates = HeadGates.ablate([(0, 0), (0, 1), (1, 1)], like=model)
    table = next_token_table(model, TOKENS, gates=gates, k=3)
    for query_pos, rows in table.groupby("query_pos"):
        shown = set(rows["token_id"].dropna())
        for logits in (model(TOKENS), model(TOKENS, gates=gates)):
            assert set(logits[0, query_pos].topk(3).indices.tolist()) <= shown
        assert rows["baseline"].sum() == pytest.approx(1.0)
        assert rows["gated"].sum() == pytest.approx(1.0)
        assert rows["token"].tolist()[-1] == REST
        named = rows["baseline"].tolist()[:-1]
        assert named == sorted(named, reverse=True)


def test_without_gates_both_columns_are_the_same_bits(model):
    table = next_token_table(model, TOKENS, vocab=letter_vocab(6), k=20)
    assert (table["baseline"] == table["gated"]).all()
    assert table["token"].tolist().count("<bos>") == 6
    assert (table.loc[table["token"] == REST, "baseline"] == 0.0).all()  # nothing is left


def test_more_than_one_sequence_is_refused(model):
    with pytest.raises(ValueError, match=r"tokens must be one sequence, got 2; pass tokens\[:1\]"):
        next_token_table(model, TOKENS.expand(2, -1))
    with pytest.raises(ValueError, match="k must be a whole number of at least 1, got 0"):
        next_token_table(model, TOKENS, k=0)
