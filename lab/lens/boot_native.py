"""HookedGPT to TransformerLens's own native model, through TransformerLens's own converter."""

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources.native import boot
from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

from lab.model import GPT


def to_boot_native(model: GPT) -> TransformerBridge:
    """Return a TransformerBridge.boot_native with the same logits, on the same device.

    boot_native pairs rotary dimensions as GPT-J does, so the query and key dimensions of a model
    that pairs them as Llama does are reordered: the scores are the same, q and k are not.

    Raises:
        ValueError: boot_native has no such architecture.
    """
    check_boot_native(model)
    config = model.config
    rotary = config.positional_embedding_type == "rotary"
    described = TransformerBridgeConfig(
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_key_value_heads=config.n_key_value_heads,
        d_model=config.d_model,
        d_head=config.head_width,
        d_mlp=config.mlp_width,
        d_vocab=config.d_vocab,
        d_vocab_out=config.vocab_out,
        n_ctx=config.n_ctx,
        act_fn=config.act_fn,
        eps=config.eps,
        normalization_type=config.normalization_type,
        positional_embedding_type="rotary" if rotary else "standard",
        rotary_base=config.rotary_base,
        rotary_dim=config.rotary_width or None,
        rotary_adjacent_pairs=rotary,
        attention_dir=config.attention_dir,
        attn_only=config.attn_only,
        gated_mlp=config.gated_mlp,
        init_weights=False,
        device=str(model.W_E.device),
        dtype=model.W_E.dtype,
    )
    described.default_prepend_bos = model.cfg.default_prepend_bos
    with torch.random.fork_rng(devices=[]):  # layers are built with random weights first
        bridge = boot(described, device=model.W_E.device, dtype=model.W_E.dtype)
    bridge.load_state_dict(convert_tl_checkpoint(native_state(model), described), strict=True)
    return bridge.eval()


def check_boot_native(model: GPT) -> None:
    """Raise ValueError if boot_native does not support the model's architecture."""
    config, rejected = model.config, None
    if config.parallel_attn_mlp:
        rejected = "parallel_attn_mlp must be False for boot_native, got True"
    elif config.kept_heads is not None:
        rejected = "kept_heads must be None for boot_native, got a model with pruned heads"
    elif config.gated_mlp and not config.attn_only:
        biased = [
            str(layer)
            for layer, block in enumerate(model.blocks)
            if block.mlp.b_in.any() or block.mlp.b_out.any()
        ]
        if biased:
            rejected = (
                "b_in and b_out of a gated MLP must be 0 for boot_native, which lacks them, "
                f"got other numbers in layer {', '.join(biased)}"
            )
    if rejected is not None:
        raise ValueError(f"{rejected}; stay with the HookedGPT")


def native_state(model: GPT) -> dict[str, Tensor]:
    """Return the weights as boot_native orders them, by the names of HookedTransformer."""
    config = model.config
    state = dict(model.state_dict())
    if config.positional_embedding_type == "sinusoidal":
        state["pos_embed.W_pos"] = model.W_pos.detach()
    elif config.positional_embedding_type == "none":
        state["pos_embed.W_pos"] = model.W_E.new_zeros(config.n_ctx, config.d_model)
    if config.gated_mlp:  # those are 0, and have no place there
        state = {n: t for n, t in state.items() if not n.endswith(("mlp.b_in", "mlp.b_out"))}
    if config.rotary_width and not config.rotary_adjacent_pairs:
        for name in state:
            if name.endswith((".W_Q", ".W_K", ".b_Q", ".b_K")):
                state[name] = adjacent(state[name], config.rotary_width)
    return state


def adjacent(weight: Float[Tensor, "*axes d_head"], width: int) -> Float[Tensor, "*axes d_head"]:
    """Reorder dimensions so that i and i + width/2 are neighbours; those past width stay."""
    turned = weight[..., :width].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return torch.cat([turned, weight[..., width:]], dim=-1)
