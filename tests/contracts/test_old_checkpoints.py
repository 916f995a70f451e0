"""Checkpoints of HookedTransformer 3.9 give its logits and its cache, key by key.

The oracle is the old class itself: tests/fixtures/make_old_models.py wrote what it computed.
"""

import copy
import json
import math
import re
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.lens.boot_native import to_boot_native
from lab.lens.old_config import REFUSED, config_fields, translate_config
from probes.pruning.removing import prune_heads

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "tl39"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))


def state_of(name: str) -> dict[str, Tensor]:
    return load_file(FIXTURES / f"{name}.safetensors")


def cfg_of(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def seen_by(name: str) -> dict[str, Tensor]:
    return load_file(FIXTURES / f"{name}.seen.safetensors")


def load(name: str, **changes: Any) -> HookedGPT:
    return HookedGPT.from_tl_checkpoint(state_of(name), {**cfg_of(name), **changes})


def close(got: Tensor, expected: Tensor, what: str = "") -> None:
    """Compare to a millionth of 1, or of the largest number where that is more."""
    largest = expected[expected.isfinite()].abs().max().clamp(min=1).item()
    told = f"{what}: {{}}".format if what else None
    torch.testing.assert_close(got, expected, atol=1e-6 * largest, rtol=0, msg=told)


def test_there_are_fixtures_of_every_kind() -> None:
    assert len(NAMES) == 9
    assert sum(path.stat().st_size for path in FIXTURES.parent.glob("tl*/*")) < 600_000


@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str) -> None:
    model, seen = load(name), seen_by(name)
    close(model(seen["tokens"]), seen["logits"])
    exact = model.double()(seen["tokens"])
    torch.testing.assert_close(exact, seen["logits.float64"], atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_version_2(name: str) -> None:
    """2.18 kept masks of n_ctx x n_ctx, and has fewer fields."""
    stem = FIXTURES.parent / "tl218" / name
    state, seen = load_file(f"{stem}.safetensors"), load_file(f"{stem}.seen.safetensors")
    assert state["blocks.1.attn.mask"].shape == (8, 8)
    model = HookedGPT.from_tl_checkpoint(state, f"{stem}.json")
    close(model(seen["tokens"]), seen["logits"])
    exact = model.double()(seen["tokens"])
    torch.testing.assert_close(exact, seen["logits.float64"], atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_cache_key_by_key(name: str) -> None:
    model, seen = load(name), seen_by(name)
    _, cache = model.run_with_cache(seen["tokens"])
    old = {key for key in seen if not key.startswith(("tokens", "logits", "flags."))}
    # Two views of what hook_normalized and the logits are already.
    apart = {key for key in old ^ set(cache) if not key.startswith("unembed.")}
    assert apart == set()
    for key in sorted(old & set(cache)):
        close(cache[key], seen[key], key)


@pytest.mark.parametrize(
    ("flag", "hooks"),
    [
        ("use_attn_in", ["hook_attn_in"]),
        ("use_split_qkv_input", ["hook_q_input", "hook_k_input", "hook_v_input"]),
        ("use_attn_result", ["attn.hook_result"]),
        ("use_hook_mlp_in", ["hook_mlp_in"]),
    ],
)
def test_what_the_flags_add(flag: str, hooks: list[str]) -> None:
    """The old cfg's flags are kept, and what they ask for is found by its old name."""
    model, seen = load("gpt2", **{flag: True}), seen_by("gpt2")
    logits, cache = model.run_with_cache(seen["tokens"])
    close(logits, seen["logits"])
    for key in (f"blocks.{layer}.{hook}" for layer in range(2) for hook in hooks):
        close(cache[key], seen[f"flags.{key}"], key)
    assert model.cfg.default_prepend_bos is False


def test_every_form_of_checkpoint_and_config_is_the_same(tmp_path: Path) -> None:
    state, cfg = state_of("llama"), cfg_of("llama")
    torch.save(OrderedDict(state), tmp_path / "new.pt")
    torch.save(OrderedDict(state), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    live = SimpleNamespace(**{**cfg, "dtype": torch.float32})
    with_parameters = {name: nn.Parameter(t) for name, t in state.items() if "mask" not in name}
    files = FIXTURES / "llama.safetensors", tmp_path / "new.pt", str(tmp_path / "old.pth")
    wanted = load("llama")
    for source in (*files, with_parameters):
        for config in (cfg, live, FIXTURES / "llama.json", str(FIXTURES / "llama.json")):
            model = HookedGPT.from_tl_checkpoint(source, config)
            assert model.config == wanted.config
            assert not model.training
            for name, tensor in wanted.state_dict().items():
                assert torch.equal(model.state_dict()[name], tensor), name
    assert all(parameter.requires_grad for parameter in wanted.parameters())


def test_the_model_is_a_copy() -> None:
    state = state_of("gpt2")
    model = HookedGPT.from_tl_checkpoint(state, cfg_of("gpt2"))
    with torch.no_grad():
        model.W_E.zero_()
    assert state["embed.W_E"].abs().sum() > 0


def test_buffers_may_be_gone_already() -> None:
    state = state_of("llama")
    bare = {name: t for name, t in state.items() if not re.search("mask|IGNORE|rotary", name)}
    assert len(state) - len(bare) == 2 * 4
    model = HookedGPT.from_tl_checkpoint(bare, cfg_of("llama"))
    close(model(seen_by("llama")["tokens"]), seen_by("llama")["logits"])


def test_keys_and_values_of_groups_may_have_their_plain_names() -> None:
    state = {name.replace("attn._", "attn."): tensor for name, tensor in state_of("llama").items()}
    model = HookedGPT.from_tl_checkpoint(state, cfg_of("llama"))
    close(model(seen_by("llama")["tokens"]), seen_by("llama")["logits"])
    state["blocks.0.attn._W_K"] = state["blocks.0.attn.W_K"]
    with pytest.raises(ValueError, match=r"must hold 'blocks.0.attn.W_K' once, got it with and"):
        HookedGPT.from_tl_checkpoint(state, cfg_of("llama"))


def test_what_the_old_class_filled_in_is_filled_in() -> None:
    cfg = {"n_layers": 2, "d_model": 16, "d_head": 6, "n_ctx": 8, "act_fn": "gelu_new"}
    cfg |= {"d_mlp": 20, "n_heads": 4, "d_vocab": -1, "attn_scale": -1.0}
    model = HookedGPT.from_tl_checkpoint(state_of("gpt2"), cfg)
    assert model.config == load("gpt2").config
    wide = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4, act_fn="relu")
    short = {"n_layers": 1, "d_model": 8, "d_head": 4, "n_ctx": 4}
    got = HookedGPT.from_tl_checkpoint(HookedGPT(wide).state_dict(), short).config
    assert (got.n_heads, got.mlp_width, got.d_vocab, got.act_fn) == (2, 32, 5, "relu")
    assert model.cfg.default_prepend_bos is True


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_is_that_of_the_tensors(dtype: torch.dtype) -> None:
    state = {k: t.to(dtype) if t.is_floating_point() else t for k, t in state_of("gpt2").items()}
    model = HookedGPT.from_tl_checkpoint(state, cfg_of("gpt2"))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model.cfg.dtype == dtype


@pytest.mark.parametrize("name", ["llama-folded", "solu", "algorithmic"])
def test_saved_and_loaded_again(name: str, tmp_path: Path) -> None:
    model, tokens = load(name), seen_by(name)["tokens"]
    model.save(tmp_path / "model")
    assert torch.equal(HookedGPT.load(tmp_path / "model")(tokens), model(tokens))


# The way back -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("neox", "gptj")])
def test_to_boot_native_has_the_same_logits(name: str) -> None:
    model, tokens = load(name), seen_by(name)["tokens"]
    if model.config.gated_mlp:
        with torch.no_grad():
            for block in model.blocks:
                block.mlp.b_in.zero_()
                block.mlp.b_out.zero_()
    before = torch.random.get_rng_state()
    weights = copy.deepcopy(model.state_dict())
    bridge = model.to_boot_native()
    close(bridge(tokens), model(tokens))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "changes",
    [
        {"positional_embedding_type": "none"},
        {"positional_embedding_type": "sinusoidal", "tie_word_embeddings": True},
        {"positional_embedding_type": "rotary", "rotary_dim": 4, "d_head": 6},
        {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": True},
    ],
)
def test_to_boot_native_of_every_position(changes: dict[str, Any]) -> None:
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_vocab": 5, "n_ctx": 6}
    model = HookedGPT(ModelConfig(**sizes, **changes, initializer_range=0.3))
    tokens = torch.tensor([[0, 1, 2, 3, 4, 1], [4, 4, 3, 0, 0, 2]])
    close(to_boot_native(model)(tokens), model(tokens))


def test_to_boot_native_refuses_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="parallel_attn_mlp must be False for boot_native"):
        load("neox").to_boot_native()
    with pytest.raises(ValueError, match=r"must be 0 for boot_native.* in layer 0, 1; stay"):
        load("llama").to_boot_native()
    with pytest.raises(ValueError, match="kept_heads must be None for boot_native, got a"):
        prune_heads(load("gpt2"), [(0, 1)]).to_boot_native()


def test_gates_work_on_what_was_loaded() -> None:
    model, tokens = load("gpt2"), seen_by("gpt2")["tokens"]
    gated = model(tokens, gates=HeadGates.ablate([(1, 2)], like=model))
    with torch.no_grad():
        model.blocks[1].attn.W_O[2] = 0.0
    close(gated, model(tokens))


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", REFUSED)
def test_fields_of_what_a_model_does_not_compute(field: str) -> None:
    off, remedy = REFUSED[field]
    for value in off:
        load("gpt2", **{field: value})
    on = not off[0] if isinstance(off[0], bool) else 8.0
    with pytest.raises(ValueError) as refused:
        load("gpt2", **{field: on})
    told = str(refused.value)
    assert told == f"{field} must be {off[0]!r} in a HookedGPT, got {on!r}; {remedy}"


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_scale": 1.0}, r"attn_scale must be sqrt\(d_head\) = 2.44949 .* got 1.0; multiply"),
        ({"attn_scale": None}, r"attn_scale must be sqrt\(d_head\)"),
        ({"positional_embedding_type": "alibi"}, "must be standard or rotary .* got 'alibi'; run"),
        ({"positional_embedding_type": "shortformer"}, "got 'shortformer'; run this model with"),
        ({"positional_embedding_type": None}, "got None; run this model with"),
        ({"original_architecture": "Olmo2ForCausalLM"}, "that normalises after attention and MLP"),
        ({"act_fn": "xielu"}, "unknown act_fn 'xielu'; choose from gelu, "),
        ({"normalization_type": "Norm"}, "unknown normalization_type 'Norm'; choose from LN, LNP"),
        ({"attention_dir": "both"}, "unknown attention_dir 'both'; choose from bidirectional, ca"),
        ({"d_hed": 6}, r"unknown HookedTransformerConfig field 'd_hed'.*did you mean 'd_head'\?"),
        ({"d_head": "6"}, "d_head must be a whole number of at least 1, got '6'"),
        ({"n_layers": 2.0}, "n_layers must be a whole number of at least 1, got 2.0"),
        ({"gated_mlp": 1}, "gated_mlp must be true or false, got 1"),
        ({"act_fn": "solu_ln", "gated_mlp": True}, "act_fn must be another than solu_ln"),
    ],
)
def test_fields_that_are_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("gpt2", **changes)


ODD = [
    None,
    True,
    -1,
    2,
    2.5,
    math.nan,
    10**400,
    "x",
    "",
    [],
    {"a": 1},
    b"x",
    "LN\n\0",
    "a" * 9_999,
]


@pytest.mark.usefixtures("as_a_user")
def test_any_value_of_any_field_is_taken_or_refused_in_one_line() -> None:
    cfg = cfg_of("gpt2")
    refused = 0
    for field in cfg:
        for value in ODD:
            try:
                translate_config(config_fields({**cfg, field: value}), d_vocab=11)
            except ValueError as error:
                refused += 1
                line = str(error)
                assert line.isprintable() and line.isascii() and 20 < len(line) < 1_000, line
    assert 450 < refused < len(cfg) * len(ODD)


def test_final_rms_says_nothing_new_where_every_norm_is_one() -> None:
    assert load("llama", final_rms=True).config == load("llama").config
    assert load("algorithmic", final_rms=True).config == load("algorithmic").config


def test_a_config_that_lacks_a_field() -> None:
    cfg = cfg_of("gpt2")
    del cfg["d_head"]
    with pytest.raises(ValueError, match="cfg must have the field 'd_head', which has no default"):
        HookedGPT.from_tl_checkpoint(state_of("gpt2"), cfg)
    with pytest.raises(ValueError, match=r"cfg must be a dict, a JSON file or an .* got int"):
        HookedGPT.from_tl_checkpoint(state_of("gpt2"), 5)


def altered(**changes: Any) -> dict[str, Any]:
    """Return the state dict of gpt2 with tensors changed, or removed by None."""
    state = {**state_of("gpt2"), **{name.replace("__", "."): t for name, t in changes.items()}}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ln_final__w": None}, "got no ln_final.w; give the cfg that it was saved with"),
        ({"embed__W_X": torch.ones(1)}, "got unknown embed.W_X; give the cfg"),
        (
            {"unembed__b_U": torch.ones(5)},
            r"got unembed.b_U of shape \[5\] where it must be \[11\]; give",
        ),
        ({"embed__W_E": None}, r"must hold embed\.W_E of two axes, got no such tensor; give one"),
        (
            {"embed__W_U": torch.ones(1), "unembed__W_U": None, "x": torch.ones(1)},
            "got no unembed.W_U; unknown embed.W_U, x; give the cfg",
        ),
        ({"embed__W_E": torch.ones(11, 16, dtype=torch.long)}, "floating-point .* embed.W_E; conv"),
        ({"embed__W_E": torch.ones(11, 16).to_sparse()}, "must be dense .* others in embed.W_E"),
        ({"embed__W_E": torch.ones(11, 16, device="meta")}, "got others in embed.W_E"),
        ({"embed__W_E": torch.ones(11, 16).half()}, "must be of one dtype, got .*float16"),
    ],
)
def test_tensors_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HookedGPT.from_tl_checkpoint(altered(**changes), cfg_of("gpt2"))


def test_a_config_of_another_model() -> None:
    with pytest.raises(ValueError, match=r"embed.W_E of shape \[11, 16\] .* \[11, 8\].* and \d+ m"):
        load("gpt2", d_model=8)
    with pytest.raises(ValueError, match=r"got no blocks.0.ln1.b,"):
        load("llama", normalization_type="LN")
    with pytest.raises(ValueError, match=r"got unknown blocks.0.ln1.b, blocks.0.ln1.w,"):
        load("gpt2", normalization_type="LNPre")
    with pytest.raises(ValueError, match=r"blocks.0.attn.W_K of shape \[2, .* \[4, 16, 6\]"):
        load("llama", n_key_value_heads=None)


@pytest.mark.parametrize(
    "claim", [{"n_layers": 10_000}, {"d_model": 2**24}, {"d_vocab": 2**24, "n_ctx": 2**24}]
)
def test_a_config_that_claims_too_much_costs_nothing(claim: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must hold the tensors that its cfg describes"):
        load("gpt2", **claim)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"model": {"a": 1}, "optimizer": {}}, "got 'model': dict; if it is one entry of a larger"),
        ({0: torch.ones(1)}, "must map names to tensors, got 0: Tensor"),
        (nn.Linear(2, 2), r"got a Linear; give model.state_dict\(\)"),
        ({}, "must hold embed.W_E of two axes, got no such tensor"),
    ],
)
def test_what_is_no_state_dict(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HookedGPT.from_tl_checkpoint(source, {**cfg_of("gpt2"), "d_vocab": -1})


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def one_line(error: pytest.ExceptionInfo[Any]) -> str:
    line = str(error.value)
    assert line.isprintable()
    assert 20 < len(line) < 600
    return line


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_more_than_tensors_is_refused_and_runs_nothing(
    tmp_path: Path, zipped: bool
) -> None:
    proof = tmp_path / "executed"
    foreign = SimpleNamespace(d_model=16)
    for number, held in enumerate((Hostile(proof), foreign, nn.Linear(2, 2), {"cfg": foreign})):
        path = tmp_path / f"{number}.pt"
        torch.save(held, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError) as refused:
            HookedGPT.from_tl_checkpoint(path, cfg_of("gpt2"))
        assert "a .pt checkpoint must hold tensors only, got " in one_line(refused)
        assert "could run any code" in one_line(refused)
    assert not proof.exists()


@pytest.mark.parametrize("suffix", [".pt", ".old.pt", ".safetensors"])
def test_a_file_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    if suffix == ".safetensors":
        save_file(state_of("gpt2"), path)
    else:
        torch.save(state_of("gpt2"), path, _use_new_zipfile_serialization=suffix == ".pt")
    whole = path.read_bytes()
    HookedGPT.from_tl_checkpoint(path, cfg_of("gpt2"))
    # Not zipped, it begins with dotted names: each may be cut in its middle.
    sizes = (*range(400), len(whole) // 2, len(whole) - 1)
    for cut in [whole[:size] for size in sizes] + [b"\0" * 999, b"PK\3\4" * 99, b"{}" * 99]:
        path.write_bytes(cut)
        with pytest.raises(ValueError) as refused:
            HookedGPT.from_tl_checkpoint(path, cfg_of("gpt2"))
        assert "a checkpoint must be a whole ." in one_line(refused)


def test_what_is_no_file(tmp_path: Path) -> None:
    cfg = cfg_of("gpt2")
    with pytest.raises(FileNotFoundError, match=r"No such file .*absent\.pt"):
        HookedGPT.from_tl_checkpoint(tmp_path / "absent.pt", cfg)
    with pytest.raises(FileNotFoundError, match=r"No such file .*absent\.json"):
        HookedGPT.from_tl_checkpoint(state_of("gpt2"), tmp_path / "absent.json")
    with pytest.raises(ValueError, match="a checkpoint must be a file, not a folder, got"):
        HookedGPT.from_tl_checkpoint(tmp_path, cfg)
    with pytest.raises(ValueError, match="cfg must be a file, not a folder, got"):
        HookedGPT.from_tl_checkpoint(state_of("gpt2"), tmp_path)
    other = tmp_path / "model.h5"
    other.write_bytes(b"HDF")
    with pytest.raises(ValueError, match=r"must be a \.safetensors or a \.pt file, got .*model.h5"):
        HookedGPT.from_tl_checkpoint(other, cfg)
    for text in (b"", b"{", b"\xff\xfe", b"[" * 99_999):
        other.write_bytes(text)
        with pytest.raises(ValueError, match=r"cfg must be a JSON file, got .*; write one with"):
            HookedGPT.from_tl_checkpoint(state_of("gpt2"), other)
    other.write_bytes(b"[1]")
    with pytest.raises(ValueError, match="cfg must be a dict, a JSON file or an object"):
        HookedGPT.from_tl_checkpoint(state_of("gpt2"), other)
