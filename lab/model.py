"""GPT: a decoder-only Transformer whose every activation can be read and edited.

The forward pass goes from token ids through the embeddings (`lab.embeddings`) and the layers
(`lab.blocks`) to logits or their loss. `lab.lens.surface` has the methods that TransformerLens's
tools need; `lab.hooked_gpt` adds loading, saving and generation.
"""

from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from lab.attention import Sight
from lab.attention_reads import Observer
from lab.blocks import Block, hand_on, hears, in_steps
from lab.checks import require_choice
from lab.config import ModelConfig
from lab.embeddings import Embed, PosEmbed, TiedUnembed, Unembed, check_tied_weight
from lab.gates import GateTensors, HeadGates, check_gates
from lab.inputs import check_layer, checked_ids, checked_mask, checked_residual
from lab.kv_cache import KeyValueCache
from lab.lens.surface import TransformerLensSurface
from lab.losses import check_loss, next_token_loss
from lab.norms import make_norm
from lab.passes import AttentionPath, Pass
from lab.positions import Positions, token_positions, turns_of
from lab.shapes import GivenMask, Resid, Tokens
from lab.taps import tap


class GPT(TransformerLensSurface):
    """The forward pass of HookedGPT, with its hooks, gates and observers."""

    def __init__(self, config: ModelConfig) -> None:
        """Build the model on the CPU with initial weights drawn from config.seed."""
        super().__init__(config)
        self.embed = Embed(config)
        self.hook_embed = HookPoint()
        self.adds_positions = config.positional_embedding_type in ("standard", "sinusoidal")
        if self.adds_positions:
            self.pos_embed = PosEmbed(config)
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(
            Block(config, self.cfg, layer) for layer in range(config.n_layers)
        )
        self.ln_final = make_norm(config)
        if config.tie_word_embeddings:
            self.unembed = TiedUnembed(config, self.embed)
            self.register_load_state_dict_pre_hook(check_tied_weight)
        else:
            self.unembed = Unembed(config)
        self.init_weights()
        self.setup()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a new `embed` is tied to a tied unembedding."""
        super().__setattr__(name, value)
        unembed = self.__dict__.get("_modules", {}).get("unembed")
        if isinstance(unembed, TiedUnembed) and name == "embed" and isinstance(value, Embed):
            unembed.tie(value)

    def init_weights(self) -> None:
        """Draw every parameter from config.seed; the global generator is not used."""
        self.reset_parameters(torch.Generator().manual_seed(self.config.seed))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise every parameter again, from PyTorch's global generator unless one is given."""
        for module in list(self.modules())[1:]:
            if any(True for _ in module.parameters(recurse=False)):
                module.reset_parameters(generator)  # pyright: ignore[reportCallIssue]

    def forward(
        self,
        input: Tokens | Resid | Int[Tensor, " pos"] | str | list[str],
        return_type: Literal["logits", "loss", "both"] | None = "logits",
        loss_per_token: bool = False,
        *,
        tokens: Tokens | None = None,
        gates: HeadGates | GateTensors | None = None,
        observe: Observer | None = None,
        attention: AttentionPath = "auto",
        attention_mask: GivenMask | None = None,
        kv_cache: KeyValueCache | None = None,
        last_only: bool = False,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Run the model, or some of its layers.

        Args:
            input: Token ids (or a text, if the model has a tokenizer), or with start_at_layer the
                residual stream before that layer.
            return_type: "logits" [batch, pos, d_vocab]; "loss", the mean of -ln p(next token), NaN
                if attention_mask leaves no token to predict; "both", the pair; None, no result (for
                observers: the last layer then stops after its reads, unless it has a hook).
            loss_per_token: Return the loss of each position but the last: [batch, pos - 1].
            tokens: The ids that a loss needs when input is a residual stream.
            gates: Which heads are scaled, and their fill, just before hook_z.
            observe: Called once for each layer, in order, with (layer, AttentionReads).
            attention: "auto" builds scores and pattern only in layers with a hook on them;
                "explicit" builds them always, and runs norms step by step; "fused" never does, and
                rejects such hooks.
            attention_mask: True (or 1) at unpadded tokens, False at padding on the left, the right
                or both: [batch, pos] of this call's tokens, or [1, pos] for all sequences. Padding
                is masked and does not count as a position.
            kv_cache: Keys and values of earlier positions; input then has only the new ones.
            last_only: Normalise and unembed the last position only: logits [batch, 1, d_vocab].
            start_at_layer: First layer to run; negative counts from the end.
            stop_at_layer: Stop before this layer and return the residual stream there.

        Returns:
            What return_type says, or with stop_at_layer the residual stream.

        Raises:
            ValueError: Too many positions, token ids out of range, arguments of another shape or
                type than the model reads, or that exclude each other, or there is no position to
                score.
        """
        require_choice("attention", attention, ("auto", "fused", "explicit"))
        if not torch.compiler.is_compiling():
            self.check_live_hooks()
        if return_type not in ("logits", "loss", "both", None):
            raise ValueError(f"return_type must be logits, loss, both or None, got {return_type!r}")
        if kv_cache is not None and not (start_at_layer is stop_at_layer is None):
            raise ValueError(
                "kv_cache must be used with all layers, got start_at_layer or stop_at_layer"
            )
        config = self.config
        check_layer("start_at_layer", start_at_layer, config.n_layers)
        check_layer("stop_at_layer", stop_at_layer, config.n_layers)
        if start_at_layer is not None:
            given = checked_residual(input, config)
        elif not isinstance(input, Tensor) or input.ndim == 1:
            given = checked_ids(self.to_tokens(input))
        else:
            given = checked_ids(input)
        batch, n_pos = given.shape[:2]
        if isinstance(gates, HeadGates):
            gates = gates.tensors(self)
        if gates is not None:
            check_gates(gates, config, batch)
        real = None
        if attention_mask is not None:
            real = checked_mask(attention_mask, batch, n_pos, given.device)
        first_pos = 0
        if kv_cache is not None:
            kv_cache.check(config, batch)
            first_pos = kv_cache.length
            real = kv_cache.extend_mask(real, batch, n_pos)
        positions = token_positions(real, first_pos, n_pos, given.device)
        layers = range(self.cfg.n_layers)[start_at_layer:stop_at_layer]
        only_reads = observe is not None and return_type is stop_at_layer is None
        residual = given
        if start_at_layer is None:
            residual = self.embed_input(given, positions, first_pos)
        run = Pass(
            positions=positions,
            first_pos=first_pos,
            sight=Sight(causal=config.attention_dir == "causal", real=real),
            turns=turns_of(config, positions, residual.dtype),
            gates=None if gates is None else gates.like(residual),
            observe=observe,
            path=attention,
            kv_cache=kv_cache,
            last_read=layers[-1] if only_reads and layers else None,
        )
        for layer in layers:
            residual = hand_on(self.blocks[layer], (residual,), run, layer)
        if kv_cache is not None:
            kv_cache.length += n_pos
        if stop_at_layer is not None:
            return residual
        if return_type is None:
            return None
        if last_only:
            require_choice("return_type with last_only", return_type, ("logits",))
            residual = residual[:, -1:]
        logits = self.unembed(in_steps(self.ln_final, residual, run))
        if return_type == "logits":
            return logits
        if tokens is None and start_at_layer is not None:
            raise ValueError("a loss with start_at_layer needs tokens=, got none")
        targets = given if tokens is None else checked_ids(tokens, "tokens")
        check_loss(logits, targets, config.d_vocab, loss_per_token)
        real = None if real is None else real[:, first_pos:]
        loss = next_token_loss(logits, targets, real, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    def embed_input(self, tokens: Tokens, positions: Positions, first_pos: int) -> Resid:
        """Return the residual stream before the first layer."""
        n_pos = first_pos + tokens.shape[1]
        if not (tokens.shape[1] and n_pos <= self.cfg.n_ctx):
            past = f" ({first_pos} of them in kv_cache)" if first_pos else ""
            raise ValueError(
                f"a sequence must have 1 to n_ctx = {self.cfg.n_ctx} tokens, got {n_pos}{past}"
            )
        residual = tap(self.hook_embed, self.embed(tokens))
        if self.adds_positions:
            where = (positions, first_pos) if hears(self.pos_embed) else ()
            residual = residual + tap(self.hook_pos_embed, self.pos_embed(tokens, *where))
        return residual


AnyGPT = TypeVar("AnyGPT", bound=GPT)
"""GPT or a subclass of it."""
