"""What Headlab's model is measured against, with the same weights wherever that can be."""

import math

import torch
import transformer_lens.model_bridge.sources.native  # noqa: F401 - attaches boot_native
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2LMHeadModel

from lab.config import ModelConfig


def bridge(config: ModelConfig) -> TransformerBridge:
    """Return TransformerLens's own native model of the same size."""
    return TransformerBridge.boot_native(
        TransformerBridgeConfig(
            d_model=config.d_model,
            d_head=config.head_width,
            n_heads=config.n_heads,
            n_layers=config.n_layers,
            n_ctx=config.n_ctx,
            d_mlp=config.mlp_width,
            d_vocab=config.d_vocab,
            act_fn="gelu",
            normalization_type="LN",
            positional_embedding_type="standard",
            default_prepend_bos=False,
            seed=0,
        )
    ).eval()


def gpt2(config: ModelConfig) -> GPT2LMHeadModel:
    """Return transformers' GPT-2 of the same size."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.d_vocab,
            n_positions=config.n_ctx,
            n_embd=config.d_model,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=None,
        )
    ).eval()


class PlainGPT(nn.Module):
    """A GPT as one writes it when nothing is to be seen: fused projections, fused attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_E = nn.Embedding(config.d_vocab, config.d_model)
        self.W_pos = nn.Embedding(config.n_ctx, config.d_model)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.n_layers))
        self.ln_final = nn.LayerNorm(config.d_model, eps=config.eps)
        self.unembed = nn.Linear(config.d_model, config.d_vocab)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.W_E(tokens) + self.W_pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.ln_final(x))


class PlainBlock(nn.Module):
    """Attention and MLP with nothing between."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, width = config.n_heads, config.d_model
        self.ln1, self.ln2 = (nn.LayerNorm(width, eps=config.eps) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        heads_first = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        z = F.scaled_dot_product_attention(*heads_first, is_causal=True)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


def copy_into_bridge(model: nn.Module, peer: TransformerBridge, config: ModelConfig) -> None:
    """Give TransformerLens's native model our weights, through its own converter."""
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

    peer.load_state_dict(convert_tl_checkpoint(model.state_dict(), peer.cfg), strict=True)
    if not math.isclose(config.eps, peer.cfg.eps):
        raise ValueError(f"eps must be {config.eps}, got {peer.cfg.eps}")
