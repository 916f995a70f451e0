"""Folding: makes a model with the same logits whose norms have no weights.

The scale and shift of each norm go into the weights that read it, so that directions of the stream
are the same before and after the norm. This happens only on request (`model.fold_ln()`).
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from lab.lens.hook_table import FLAGGED_HOOKS
from lab.model import GPT, AnyGPT
from lab.norms import LayerNorm, NoNorm, Norm


@torch.no_grad()
def fold_norms(model: AnyGPT) -> AnyGPT:
    """Return a new model with the logits and heads of this one, and norms with w = 1 and b = 0.

    For weights W that read a norm: W' = w * W, after a LayerNorm minus its mean over the inputs
    (which has no effect on a centred vector); b' = b + W b_norm. Tied embeddings become untied.
    Direct logit attributions of the new model sum to logit - b_U. The given model is not modified;
    the new one has no hooks, and further training learns norms again.

    Raises:
        ValueError: A LayerNorm with a shift precedes a gated MLP, whose gate has no bias to take
            it, or a module was replaced by one that the config does not describe.
    """
    config = dataclasses.replace(model.config, tie_word_embeddings=False)
    folded = type(model)(config).to(model.W_E.device, model.W_E.dtype)
    check_modules(model, folded)
    folded.load_state_dict(model.state_dict())
    for layer, block in enumerate(folded.blocks):
        attn = block.attn
        for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V)):
            fold_into(block.ln1, weight, bias)
        block.ln1.reset_parameters()
        if config.attn_only:
            continue
        mlp = block.mlp
        if config.gated_mlp:
            if isinstance(block.ln2, LayerNorm) and block.ln2.b.any():
                raise ValueError(
                    "a LayerNorm before a gated MLP must have b = 0 to be folded, got another b in "
                    f"blocks.{layer}.ln2: the gate has no bias that could take it"
                )
            fold_into(block.ln2, mlp.W_gate, None)
            fold_into(block.ln2, mlp.W_in, None)
        else:
            fold_into(block.ln2, mlp.W_in, mlp.b_in)
            if config.act_fn == "solu_ln":
                fold_into(mlp.ln, mlp.W_out, mlp.b_out)
                mlp.ln.reset_parameters()
        block.ln2.reset_parameters()
    fold_into(folded.ln_final, folded.unembed.W_U, folded.unembed.b_U)
    folded.ln_final.reset_parameters()
    folded.tokenizer, folded.provenance = model.tokenizer, model.provenance
    for name in (*set(FLAGGED_HOOKS.values()), "default_prepend_bos"):
        setattr(folded.cfg, name, getattr(model.cfg, name))
    return folded.train(model.training)


def check_modules(model: GPT, built: GPT) -> None:
    """Raise ValueError unless a model has the norms and weights of one that is newly built."""
    modules, state = dict(model.named_modules()), model.state_dict()
    for name, module in built.named_modules():
        own = modules.get(name)
        if isinstance(module, Norm) and type(own) is not type(module):
            raise ValueError(
                f"{name} must be the {type(module).__name__} that model.config describes to be "
                f"folded, got {type(own).__name__}; fold before it is replaced"
            )
    wanted = built.state_dict()
    shapes = [{key: held[key].shape for key in held} for held in (state, wanted)]
    for key in sorted(state.keys() | wanted.keys()):
        got, rule = (held.get(key) for held in shapes)
        if got != rule:
            named = [None if shape is None else list(shape) for shape in (rule, got)]
            raise ValueError(
                f"shape of {key} must be {named[0]}, as model.config describes it, to be folded, "
                f"got {named[1]}; fold before a module is replaced"
            )


def fold_into(
    norm: Norm,
    weight: Float[Tensor, "*head d_in d_out"],
    bias: Float[Tensor, "*head d_out"] | None,
) -> None:
    """Change a weight that reads a norm, and its bias, so that they no longer need w and b."""
    if isinstance(norm, NoNorm):
        return
    if isinstance(norm, LayerNorm) and bias is not None:
        bias += norm.b @ weight
    weight *= norm.w.unsqueeze(1)
    if isinstance(norm, LayerNorm):
        weight -= weight.mean(dim=-2, keepdim=True)
