"""Probabilities of the next token against a naive float64 definition, and the draws from them."""

import dataclasses
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lab.config import SampleConfig
from lab.generation import draw, next_token_probabilities
from tests.lab.naive_sampling import naive_probabilities

configs = st.builds(
    SampleConfig,
    temperature=st.just(0.0) | st.floats(0.05, 20),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0.01, 1.0),
)


@given(
    # On a coarse grid, so that equals are common.
    logits=st.lists(st.integers(-40, 40).map(lambda x: x / 4), min_size=1, max_size=9),
    config=configs,
)
def test_probabilities_equal_the_definition(logits, config):
    if config.top_p is not None:
        # Which side of the edge a sum falls on must not hang on its last bit.
        for top_p in (config.top_p * (1 - 1e-9), min(1.0, config.top_p * (1 + 1e-9))):
            near = dataclasses.replace(config, top_p=top_p)
            assume(naive_probabilities(logits, near) == naive_probabilities(logits, config))
    got = next_token_probabilities(torch.tensor([logits]), config)[0]
    assert got.tolist() == pytest.approx(naive_probabilities(logits, config), abs=1e-9)
    assert got.sum().item() == pytest.approx(1.0)


def entropy(probabilities: torch.Tensor) -> float:
    return torch.special.entr(probabilities).sum().item()


def test_the_worked_temperatures_come_out():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    of = {
        t: next_token_probabilities(logits, SampleConfig(temperature=t))
        for t in (0.1, 0.5, 1.0, 2.0, 10.0)
    }
    at_one = [0.643914, 0.236883, 0.087144, 0.032059]
    assert of[1.0].tolist() == pytest.approx(at_one, abs=1e-6)
    assert of[2.0].tolist() == pytest.approx([0.455054, 0.276004, 0.167405, 0.101536], abs=1e-6)
    want = {0.1: 0.000499, 0.5: 0.455429, 1.0: 0.947537, 2.0: 1.245050, 10.0: 1.380071}
    assert {t: entropy(p) for t, p in of.items()} == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(
    ("margin", "temperature", "exact_match"),
    [
        *[(8, 0.1, 1.0), (8, 0.5, 0.99999), (8, 0.7, 0.99904), (8, 1.0, 0.97096)],
        *[(8, 1.5, 0.66103), (8, 2.0, 0.23030), (4, 0.5, 0.97096), (4, 1.0, 0.23030)],
        *[(4, 2.0, 0.00068), (12, 1.0, 0.99946), (12, 2.0, 0.80637)],
    ],
)
def test_eight_answers_against_eleven_rivals_survive_a_temperature_as_computed(
    margin, temperature, exact_match
):
    logits = torch.zeros(12)
    logits[3] = margin
    right = next_token_probabilities(logits, SampleConfig(temperature=temperature))[3].item()
    assert right**8 == pytest.approx(exact_match, abs=6e-6)


def test_equals_at_the_edge_are_cut_to_exactly_k_lowest_ids_first():
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    top_k = next_token_probabilities(logits, SampleConfig(top_k=2))
    assert top_k.tolist() == [0.0, 0.5, 0.5, 0.0, 0.0]
    top_p = next_token_probabilities(torch.zeros(4), SampleConfig(top_p=0.5))
    assert top_p.tolist() == [0.5, 0.5, 0.0, 0.0]
    # These differ by less than their probabilities can tell.
    close = torch.tensor([0.0, 1e-30])
    assert next_token_probabilities(close, SampleConfig(top_k=1)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-9])
def test_temperatures_at_and_near_zero_take_the_largest(temperature):
    logits = torch.tensor([[-3.0, 5.0, 4.999, -math.inf]])
    got = next_token_probabilities(logits, SampleConfig(temperature=temperature))
    assert got.tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad, temperature):
    with pytest.raises(ValueError, match=r"^logits must be finite numbers, got NaN or infinity; "):
        next_token_probabilities(torch.tensor([1.0, bad]), SampleConfig(temperature=temperature))


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    generator = torch.Generator().manual_seed(0)
    drawn = draw(logits.expand(5_000, -1), SampleConfig(), generator)
    assert set(drawn.tolist()) == {1, 3}


def test_the_largest_uniform_number_still_draws_a_token(monkeypatch):
    largest = torch.tensor(1 - 2**-53, dtype=torch.float64)  # once in 2**53 draws
    monkeypatch.setattr(torch, "rand", lambda shape, **_: largest.expand(shape))
    logits = torch.randn(2_000, 9, generator=torch.Generator().manual_seed(0))
    logits[:, 8] = -math.inf
    assert (draw(logits, SampleConfig(), torch.Generator()) == 7).all()
