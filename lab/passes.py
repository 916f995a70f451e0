"""Settings of one forward pass: an argument of the layers, never state on the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from lab.attention import Sight
from lab.attention_reads import Observer
from lab.config import ModelConfig
from lab.gates import GateTensors
from lab.kv_cache import KeyValueCache
from lab.positions import Positions, Turns, token_positions, turns_of
from lab.projections import Laid
from lab.taps import listened

AttentionPath = Literal["auto", "fused", "explicit"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Settings of one forward pass that all layers share."""

    positions: Positions
    first_pos: int
    sight: Sight
    turns: Turns | None
    """Rotation of q and k at rotary positions."""
    gates: GateTensors | None = None
    observe: Observer | None = None
    path: AttentionPath = "auto"
    kv_cache: KeyValueCache | None = None
    laid: Sequence[Laid] | None = None
    """Concatenated weights of q, k and v of each layer, computed once for many passes."""
    last_read: int | None = None
    """Last layer that the pass needs, up to its reads; None: run the whole model."""
    quiet: bool = False
    """The caller has checked that the model has no hooks and only this package's modules."""

    def hears(self, *hooks: HookPoint) -> bool:
        """Return whether one of these hook points has a hook."""
        return not self.quiet and listened(*hooks)

    def tap(self, hook: HookPoint, x: Tensor) -> Tensor:
        """Pass x through a hook point and return the result."""
        return x if self.quiet or not listened(hook) else hook(x)

    def reject_foreign(self, part: nn.Module, layer: int) -> None:
        """Raise ValueError if this pass has a setting that a foreign module would ignore."""
        unheard = {
            "gates": self.gates is not None and bool((self.gates.g[layer] != 1).any()),
            "an observer": self.observe is not None,
            "an attention_mask": self.sight.real is not None,
            "a kv_cache": self.kv_cache is not None,
        }
        asked = [what for what, is_asked in unheard.items() if is_asked]
        if asked:
            raise ValueError(
                f"attention must be headlab's own, with its own forward, to hear of {asked[0]}, "
                f"got {type(part).__name__} with another forward in layer {layer}; put the "
                "original module back, or run the model without"
            )


def pass_alone(config: ModelConfig, x: Tensor) -> Pass:
    """Return the settings for a module that is called alone: whole sequences, no options."""
    positions = token_positions(None, 0, x.shape[1], x.device)
    return Pass(
        positions=positions,
        first_pos=0,
        sight=Sight(causal=config.attention_dir == "causal"),
        turns=turns_of(config, positions, x.dtype),
    )
