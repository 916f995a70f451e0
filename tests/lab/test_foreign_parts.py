"""Parts called on their own, and parts that a user replaced or wrapped: passes stay right."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lab.config import ModelConfig, SampleConfig
from lab.gates import HeadGates
from lab.generation import steps
from lab.hooked_gpt import HookedGPT
from probes import ablation_sweep, score_heads

CONFIG = ModelConfig(n_layers=2, n_heads=4, d_model=16, d_vocab=11, n_ctx=24, initializer_range=0.5)
ROTARY = replace(
    CONFIG,
    n_key_value_heads=2,
    positional_embedding_type="rotary",
    rotary_dim=4,
    normalization_type="RMS",
)
TOKENS = torch.randint(11, (3, 20), generator=torch.Generator().manual_seed(0))


def built(config: ModelConfig = CONFIG) -> HookedGPT:
    return HookedGPT(config).double().eval()


def four_tokens(model: HookedGPT) -> Tensor:
    drawn = steps(model, TOKENS[:, :5], SampleConfig(temperature=0.0), 4)
    return torch.stack([step.tokens for step in drawn], dim=1)


class Doubled(nn.Module):
    """A transcoder of a kind: no code of ours, one tensor in, one out."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x.tanh()


def swap_mlp(model: HookedGPT) -> None:
    model.blocks[0].mlp = Doubled()


def swap_norms(model: HookedGPT) -> None:
    model.blocks[0].ln1, model.blocks[1].ln2, model.ln_final = (nn.Identity() for _ in range(3))


def wrap_mlp(model: HookedGPT) -> None:
    mlp = model.blocks[1].mlp
    original = mlp.forward
    mlp.forward = lambda x: original(x) + x


def swap_embedding(model: HookedGPT) -> None:
    model.embed = nn.Embedding(11, 16, _weight=model.W_E.detach().flip(0))


class SamePosition(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.full((*tokens.shape, 16), 0.25, dtype=torch.float64)


SWAPS: dict[str, Callable[[HookedGPT], None]] = {
    "mlp replaced": swap_mlp,
    "norms replaced": swap_norms,
    "mlp wrapped": wrap_mlp,
    "embedding replaced": swap_embedding,
}


@pytest.mark.parametrize("config", [CONFIG, ROTARY], ids=["learned", "rotary, grouped"])
def test_parts_called_with_tensors_alone_give_the_pass(config):
    model = built(config)
    _, cache = model.run_with_cache(TOKENS)
    for layer, block in enumerate(model.blocks):
        stream = cache["resid_pre", layer]
        torch.testing.assert_close(block(stream), cache["resid_post", layer], atol=1e-12, rtol=0)
        normalised = block.ln1(stream)
        attn_out = block.attn(normalised, normalised, normalised)
        torch.testing.assert_close(attn_out, cache["attn_out", layer], atol=1e-12, rtol=0)
        mlp_out = block.mlp(block.ln2(cache["resid_mid", layer]))
        torch.testing.assert_close(mlp_out, cache["mlp_out", layer], atol=1e-12, rtol=0)
    if config is CONFIG:
        assert torch.equal(model.pos_embed(TOKENS), cache["pos_embed"])


@pytest.mark.parametrize("n_pos", [3, 20])
def test_attention_reads_each_of_its_three_inputs(n_pos):
    """Also beyond the few positions for which q, k and v have products of their own."""
    attn = built().blocks[0].attn
    draw = torch.Generator().manual_seed(1)
    q_in, k_in, v_in = torch.randn(3, 2, n_pos, 16, dtype=torch.float64, generator=draw)
    q, k, v = (
        torch.einsum("bpd,hde->bphe", x, W) + b
        for x, W, b in (
            (q_in, attn.W_Q, attn.b_Q), (k_in, attn.W_K, attn.b_K), (v_in, attn.W_V, attn.b_V)
        )
    )  # fmt: skip
    scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / attn.W_Q.shape[-1] ** 0.5
    unseen = torch.ones(n_pos, n_pos, dtype=torch.bool).triu(1)
    z = torch.einsum("bhqk,bkhe->bqhe", scores.masked_fill(unseen, -torch.inf).softmax(-1), v)
    wanted = torch.einsum("bqhe,hed->bqd", z, attn.W_O) + attn.b_O
    torch.testing.assert_close(attn(q_in, k_in, v_in), wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("swap", SWAPS)
def test_gates_sweeps_reads_and_generation_on_a_changed_model(swap):
    model = built()
    before = model(TOKENS)
    SWAPS[swap](model)
    plain = model(TOKENS)
    assert not torch.allclose(plain, before)

    def zero(z: Tensor, hook: object) -> Tensor:
        z[:, :, 2] = 0
        return z

    hooks = [("blocks.1.attn.hook_z", zero)]
    by_hook = model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    by_gate = model(TOKENS, gates=HeadGates.ablate([(1, 2)], like=model))
    torch.testing.assert_close(by_gate, by_hook, atol=1e-12, rtol=0)

    loss = model(TOKENS, return_type="loss").item()
    ablated = model.run_with_hooks(TOKENS, fwd_hooks=hooks, return_type="loss").item()
    sweep = ablation_sweep(model, TOKENS)
    wanted = (sweep["layer"] == 1) & (sweep["head"] == 2) & (sweep["metric"] == "loss")
    row = sweep[wanted].iloc[0]
    assert row["baseline"] == pytest.approx(loss, abs=1e-9)
    assert row["ablated"] == pytest.approx(ablated, abs=1e-9)

    _, cache = model.run_with_cache(TOKENS)
    scores = score_heads(model, TOKENS, probes=["previous"]).set_index(["layer", "head"])
    previous = cache["pattern", 1][:, 2, 1:].diagonal(0, -2, -1).mean().item()
    assert scores.loc[(1, 2), "score"] == pytest.approx(previous, abs=0.1)

    text = TOKENS[:, :5]
    for _ in range(4):
        text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(four_tokens(model), text[:, 5:])


def test_foreign_positions_and_attention_work_while_nothing_has_to_reach_them():
    model = built()
    model.pos_embed = SamePosition()
    attn = model.blocks[0].attn
    original = attn.forward
    attn.forward = lambda q, k, v: original(q, k, v)
    whole = built()
    whole.pos_embed = SamePosition()
    torch.testing.assert_close(model(TOKENS), whole(TOKENS), atol=1e-12, rtol=0)
    gates = HeadGates.ablate([(1, 0)], like=model)  # layer 1 is still ours
    torch.testing.assert_close(
        model(TOKENS, gates=gates), whole(TOKENS, gates=gates), atol=1e-12, rtol=0
    )
    refused = r"to hear of gates, got Attention with another forward in layer 0"
    with pytest.raises(ValueError, match=refused):
        model(TOKENS, gates=HeadGates.ablate([(0, 0)], like=model))
    with pytest.raises(ValueError, match=r"to hear of an observer, got Attention"):
        score_heads(model, TOKENS)
    with pytest.raises(ValueError, match=r"to hear of an attention_mask, got Attention"):
        model(TOKENS, attention_mask=torch.ones_like(TOKENS))


def test_a_model_offloaded_to_disk_gives_the_same_numbers(tmp_path):
    """Their weights are on the meta device; a wrapper of forward brings the data."""
    from accelerate import disk_offload

    whole, model = built(), built()
    disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    assert model.blocks[0].attn.W_Q.is_meta
    gates = HeadGates.ablate([(0, 1)], like=model)
    for given in ({}, {"gates": gates}, {"attention_mask": TOKENS > 0}):
        assert torch.equal(model(TOKENS, **given), whole(TOKENS, **given))
    sweeps = [ablation_sweep(each, TOKENS)[["ablated", "delta"]] for each in (model, whole)]
    torch.testing.assert_close(*(torch.tensor(each.to_numpy()) for each in sweeps))
    scores = [score_heads(each, TOKENS)["score"] for each in (model, whole)]
    assert scores[0].tolist() == pytest.approx(scores[1].tolist(), abs=1e-12, nan_ok=True)
    assert torch.equal(four_tokens(model), four_tokens(whole))
