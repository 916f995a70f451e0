"""model.cfg: what of TransformerLens's view can change on a model that is built."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch

from lab.config import ModelConfig
from lab.lens.view import HookedGPTConfig, PrunedGPTConfig

SMALL = ModelConfig(n_layers=2, n_heads=2, d_model=8, d_vocab=5, n_ctx=7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("eps", 1.0), ("attention_dir", "bidirectional"), ("normalization_type", None)),
        *(("act_fn", "relu"), ("n_layers", 1), ("n_heads", 4), ("final_rms", True)),
    ],
)
@pytest.mark.parametrize("kind", [HookedGPTConfig, PrunedGPTConfig])
def test_what_the_model_was_built_with_is_fixed(kind: Any, name: str, value: Any):
    cfg = kind.of(SMALL)
    with pytest.raises(ValueError, match=rf"^cfg.{name} is fixed once the model is built, got .*;"):
        setattr(cfg, name, value)
    if name != "n_heads":
        assert getattr(cfg, name) == getattr(kind.of(SMALL), name)


@pytest.mark.parametrize("name", ["attn_result", "attn_scale", "default_prepend_boss"])
def test_a_field_that_nobody_reads_is_no_field(name: str):
    with pytest.raises(ValueError, match=rf"^unknown field of cfg '{name}'; choose from "):
        setattr(HookedGPTConfig.of(SMALL), name, True)


@pytest.mark.parametrize("value", ["False", 1, None])
def test_a_flag_is_true_or_false(value: Any):
    with pytest.raises(ValueError, match=r"^cfg.use_attn_result must be true or false, got "):
        HookedGPTConfig.of(SMALL).use_attn_result = value


@pytest.mark.parametrize("kind", [HookedGPTConfig, PrunedGPTConfig])
def test_copies_change_as_the_original_does(kind: Any):
    cfg = kind.of(SMALL)
    cfg.use_attn_result, cfg.device, cfg.dtype = True, "cuda:1", torch.float64
    for other in (copy.deepcopy(cfg), copy.copy(cfg), pickle.loads(pickle.dumps(cfg))):
        assert vars(other) == vars(cfg)
        other.default_prepend_bos = True
        with pytest.raises(ValueError, match=r"eps is fixed"):
            other.eps = 1.0
    assert cfg.default_prepend_bos is False


def test_another_view_is_made_by_replacing_fields():
    assert dataclasses.replace(HookedGPTConfig.of(SMALL), n_layers=1).n_layers == 1
