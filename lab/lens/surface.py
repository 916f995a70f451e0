"""The methods of a model that TransformerLens's tools expect: flags, tokens, directions, labels.

This is an abstract base of HookedGPT, with the names and signatures of TransformerLens's
HookedTransformer. The forward pass is in `lab.model`, hooks and caches in `lab.lens.hooked_root`,
weights in `lab.lens.weight_stacks`.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lab.checks import require, require_choice
from lab.families.token_text import encode, token_texts
from lab.lens.weight_stacks import WeightStacks
from lab.naming import quoted
from lab.norms import is_plain
from lab.shapes import Tokens
from lab.vocab import BOS_ID, Vocab

TokenInput = Int[Tensor, "*axes"] | Sequence[int] | int | str


class TransformerLensSurface(WeightStacks, ABC):
    """A model with the methods that TransformerLens's tools call, except `forward`."""

    tokenizer: Any = None
    """A `lab.vocab.Vocab` or a tokenizer of transformers; None: tokens are ids."""
    provenance: str | None = None
    """Source of weights that were not trained here; tables repeat it."""

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> "TransformerLensSurface":
        """Move or cast the parameters, and update cfg.device and cfg.dtype."""
        super()._apply(fn, recurse)
        weight = next(self.parameters())
        self.cfg.device, self.cfg.dtype = str(weight.device), weight.dtype
        return self

    @property
    def device(self) -> torch.device:
        """Device for tokens: that of the weights, also if they are offloaded."""
        return torch.device(self.cfg.device or "cpu")

    # Flags ------------------------------------------------------------------------------------

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Compute the output of each head, for attn.hook_result."""
        self.cfg.use_attn_result = use_attn_result

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Give q, k and v of each head a copy of the stream before ln1: attn.hook_q_input etc."""
        self.cfg.use_split_qkv_input = use_split_qkv_input

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Copy the stream before ln1 for each head, for attn.hook_attn_in.

        Raises:
            ValueError: Query heads share key heads, so a copy would not belong to one head.
        """
        if use_attn_in and self.config.kv_heads != self.config.n_heads:
            raise ValueError(
                "use_attn_in must be off in grouped-query attention, whose heads share keys; "
                "use set_use_split_qkv_input"
            )
        self.cfg.use_attn_in = use_attn_in

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Give the stream before ln2 its own hook, hook_mlp_in."""
        self.cfg.use_hook_mlp_in = use_hook_mlp_in

    # Tokens and their names -------------------------------------------------------------------

    def to_tokens(
        self,
        input: str | Sequence[str] | Int[Tensor, "*axes"] | Sequence[Int[Tensor, "..."]],
        prepend_bos: bool | None = None,
        *_: Any,
        **__: Any,
    ) -> Tokens:
        """Return token ids as a batch: [1, pos] of one text or sequence.

        Args:
            input: A text, ids, or several of either, of equal length in tokens.
            prepend_bos: Put the tokenizer's BOS token before a text; None: use
                cfg.default_prepend_bos.

        Raises:
            ValueError: A text without a tokenizer, or texts of different lengths.
        """
        if isinstance(input, Tensor):
            return input if input.ndim == 2 else input.reshape(1, -1)
        first = self.cfg.default_prepend_bos if prepend_bos is None else prepend_bos
        rows: list[list[int]] = []
        for one in [input] if isinstance(input, str) else input:
            if isinstance(one, Tensor):
                rows += one.reshape(-1, one.shape[-1]).tolist()
                continue
            require(isinstance(one, str), "input", "a tensor of token ids or a text", one)
            rows.append(self._encode(one, first))
        lengths = sorted({len(row) for row in rows})
        if len(lengths) != 1:
            raise ValueError(
                f"texts of a batch must be equally long, got {' and '.join(map(str, lengths))} "
                "tokens; pad the ids on the left and give forward an attention_mask"
            )
        return torch.tensor(rows, dtype=torch.int64, device=self.cfg.device)

    def _encode(self, text: str, prepend_bos: bool = False) -> list[int]:
        if self.tokenizer is None:
            raise ValueError(
                f"input must be token ids, got the text {quoted(text)}: this model has no "
                "tokenizer; assign one to model.tokenizer"
            )
        if isinstance(self.tokenizer, Vocab):
            return [*([BOS_ID] if prepend_bos else []), *self.tokenizer.encode(text)]
        return encode(self.tokenizer, text, prepend_bos)

    def to_string(self, tokens: TokenInput) -> str | list[str]:
        """Return the text of token ids, or a list of texts for a batch [batch, pos].

        Raises:
            ValueError: The model has no tokenizer.
        """
        ids = torch.as_tensor(tokens)
        if ids.ndim == 2:
            return [str(self.to_string(row)) for row in ids]
        listed = ids.reshape(-1).tolist()
        if self.tokenizer is None:
            raise ValueError(
                f"to_string needs a tokenizer to name {quoted(listed)}, got a model without one; "
                "assign one to model.tokenizer"
            )
        if isinstance(self.tokenizer, Vocab):
            return "".join(self.tokenizer.decode(listed))
        if ids.ndim == 0:  # a decoder of whole texts drops the space before some words
            return token_texts(self.tokenizer, listed)[0]
        return self.tokenizer.decode(listed, clean_up_tokenization_spaces=False)

    def to_str_tokens(
        self,
        input: TokenInput | Sequence[str],
        prepend_bos: bool | None = None,
        *_: Any,
        **__: Any,
    ) -> list[Any]:
        """Return the text of each token of a text or of one sequence of ids.

        A list of texts gives a list of such lists.

        Raises:
            ValueError: The model has no tokenizer, or a batch of several sequences was given.
        """
        if isinstance(input, Sequence) and not isinstance(input, str):
            items = list(input)
            if items and isinstance(items[0], str):
                return [self.to_str_tokens(item, prepend_bos) for item in items]
        ids = self.to_tokens(input, prepend_bos) if isinstance(input, str) else input
        ids = torch.as_tensor(ids)
        if ids.ndim > 1 and len(ids) != 1:
            raise ValueError(f"input must be one sequence of tokens, got a batch of {len(ids)}")
        return [self.to_string(int(token)) for token in ids.reshape(-1)]

    def to_single_token(self, string: str | int) -> int:
        """Return the id of a single-token text; ids are returned unchanged.

        Raises:
            ValueError: The text is several tokens, or the model has no tokenizer.
        """
        if isinstance(string, int):
            return string
        ids = self._encode(string)
        if len(ids) != 1:
            raise ValueError(f"{quoted(string)} must be a single token, got {len(ids)} tokens")
        return ids[0]

    def to_single_str_token(self, int_token: int) -> str:
        """Return the text of one token id.

        Raises:
            ValueError: The model has no tokenizer.
        """
        return str(self.to_string(int_token))

    def get_token_position(
        self,
        single_token: str | int,
        input: str | Int[Tensor, "*axes"],
        mode: Literal["first", "last"] = "first",
        prepend_bos: bool | None = None,
    ) -> int:
        """Return the position of a token in a text or in one sequence of ids.

        Raises:
            ValueError: It does not occur.
        """
        require_choice("mode", mode, ("first", "last"))
        ids = self.to_tokens(input, prepend_bos)
        if len(ids) != 1:
            raise ValueError(f"input must be one sequence of tokens, got a batch of {len(ids)}")
        found = (ids[0] == self.to_single_token(single_token)).nonzero().flatten().tolist()
        if not found:
            raise ValueError(f"input must hold {quoted(single_token)}, got a sequence without it")
        return found[0 if mode == "first" else -1]

    # Directions and labels --------------------------------------------------------------------

    def tokens_to_residual_directions(self, tokens: TokenInput) -> Float[Tensor, "*axes d_model"]:
        """Return the direction of the final, normalised stream that gives each token's logit.

        These are the columns of W_U. If the final norm has learned weights, they do not give the
        logits, and the method raises an error.

        Args:
            tokens: Ids of any shape; with a tokenizer also the text of one token.

        Raises:
            ValueError: The final norm is not folded (see fold_ln), or an id has no output.
        """
        if not is_plain(self.ln_final):
            raise ValueError(
                "direct logit attribution needs a final norm with w = 1 and b = 0, got learned "
                "ones: the columns of W_U alone do not give the logits; use model.fold_ln(), which "
                "returns a model of the same logits, or take model.W_U as it is"
            )
        ids = torch.as_tensor(self.to_single_token(tokens) if isinstance(tokens, str) else tokens)
        last = self.config.vocab_out - 1
        if ids.numel() and not 0 <= ids.min() <= ids.max() <= last:
            raise ValueError(
                f"tokens must be ids from 0 to {last}, got {ids.min().item()} to {ids.max().item()}"
            )
        return self.W_U.T[ids.to(self.W_U.device)]

    def blocks_with(self, submodule: str) -> list[tuple[int, nn.Module]]:
        """Return (layer, block) of the blocks that have a submodule, say 'attn'."""
        return [
            (layer, block)
            for layer, block in enumerate(self.blocks)
            if submodule in dict(block.named_children())
        ]
