"""The Python of docs/migration.md runs as it stands, and does what the page says."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.lens.old_config import REFUSED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
FIXTURE = ROOT / "tests" / "fixtures" / "tl39" / "gpt2"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page's code leaves behind, run in order where the two old files are."""
    folder = tmp_path_factory.mktemp("migration")
    torch.save(load_file(f"{FIXTURE}.safetensors"), folder / "old_model.pt")
    shutil.copy(f"{FIXTURE}.json", folder / "old_cfg.json")
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
            exec(block, names)
        names["loaded"] = HookedGPT.load("my_model")
    return names


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


def test_loading(names: dict[str, Any]) -> None:
    seen = load_file(f"{FIXTURE}.seen.safetensors")
    for name in ("model", "same", "loaded"):
        close(names[name](seen["tokens"]), seen["logits"])
    close(names["bridge"](names["tokens"]), names["logits"])


def test_hooks_and_flags(names: dict[str, Any]) -> None:
    model, tokens, cache = names["model"], names["tokens"], names["cache"]
    close(names["ablated"], model(tokens, gates=HeadGates.ablate([(1, 2)], like=model)))
    assert (names["ablated"] - names["logits"]).abs().max() > 1e-2
    close(cache["result", 0].sum(2) + model.blocks[0].attn.b_O, cache["attn_out", 0])


def test_another_attention_scale(names: dict[str, Any]) -> None:
    """Against scores that are divided by another number, in hooks on the scores."""
    model, tokens = names["same"], names["tokens"]
    root = model.config.head_width**0.5
    every = [(f"blocks.{layer}.attn.hook_attn_scores", layer) for layer in range(2)]

    def unscaled(scores: torch.Tensor, hook: object) -> torch.Tensor:
        return scores * root

    hooked = model.run_with_hooks(tokens, fwd_hooks=[(name, unscaled) for name, _ in every])
    close(names["unscaled"](tokens), hooked)
    cfg = names["cfg"] | {"attn_scale": 3.0, "scale_attn_by_inverse_layer_idx": True}
    other = HookedGPT.from_tl_checkpoint(*names["with_usual_scale"](names["state"], cfg))
    scaled = [
        (name, lambda scores, hook, n=layer + 1: scores * (root / (3.0 * n)))
        for name, layer in every
    ]
    close(other(tokens), model.run_with_hooks(tokens, fwd_hooks=scaled))
    with pytest.raises(ValueError, match="attn_scale must be sqrt"):
        HookedGPT.from_tl_checkpoint(names["state"], names["cfg"] | {"attn_scale": 3.0})


def test_fields_and_methods_that_the_page_names_exist() -> None:
    config = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4)
    model = HookedGPT(config)
    for row in re.findall(r"^\| (`.*?) \|", PAGE.split("## Calls")[0], re.M):
        for field in re.findall(r"`(\w+)`", row):
            known = field in ("device", "dtype") or field.startswith("use_")
            assert known or field in config.to_dict(), field
    calls = PAGE.split("## Calls")[1].split("```")[0]
    for method in ("fold_ln", "from_pretrained", "generate", "all_head_labels", "accumulated_bias"):
        assert f"{method}" in calls
        assert callable(getattr(model, method)), method


def test_the_page_tells_of_every_kind_of_refusal() -> None:
    refused = PAGE.split("## Rejected checkpoints")[1]
    for field in ("use_attn_scale", "final_rms", "use_local_attn", "load_in_4bit", "clip_qkv"):
        assert field in REFUSED
        assert field in refused
