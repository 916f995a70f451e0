"""The suite's type checker: it checks both packages, leaves off after some calls, begins anew."""

import jaxtyping
import numpy as np
import pytest
import torch

from lab.attention import attention_pattern
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.intervals import mean_over_rows
from tests import shape_checks


def test_a_wrong_shape_is_refused_in_both_packages() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        attention_pattern(torch.zeros(3))
    with pytest.raises(jaxtyping.TypeCheckError):
        mean_over_rows(np.zeros(3), np.zeros((2, 2)))


def test_after_some_calls_a_function_is_not_checked_until_the_next_test() -> None:
    for _ in range(shape_checks.CHECKED_CALLS):
        attention_pattern(torch.zeros(1, 1, 2, 2))
    attention_pattern(torch.zeros(3))
    shape_checks.check_again()
    with pytest.raises(jaxtyping.TypeCheckError):
        attention_pattern(torch.zeros(3))


def test_methods_and_properties_are_left_unchecked_too() -> None:
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 4, "d_vocab": 3, "n_ctx": 4}
    model = HookedGPT(ModelConfig(**sizes))
    for _ in range(shape_checks.CHECKED_CALLS):
        model(torch.zeros(1, 2, dtype=torch.long))
        assert model.W_E.shape == (3, 4)
    names = {function.__qualname__ for function in shape_checks.unchecked}
    assert {"GPT.forward", "WeightStacks.W_E"} <= names
