"""What one forward pass tells every layer: an argument of the layers, never state on the model."""

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
    """What one forward pass tells every layer."""

    positions: Positions
    first_pos: int
    sight: Sight
    turns: Turns | None
    """How far rotary positions turn q and k."""
    gates: GateTensors | None = None
    observe: Observer | None = None
    path: AttentionPath = "auto"
    kv_cache: KeyValueCache | None = None
    laid: Sequence[Laid] | None = None
    """The weights of q, k and v of each layer, laid side by side once for many passes."""
    last_read: int | None = None
    """The layer after whose reads nothing is asked for; None: the whole model is."""
    quiet: bool = False
    """Whoever made this pass has looked: no hook stands on the model, and no part is foreign."""

    def hears(self, *hooks: HookPoint) -> bool:
        """Tell whether anybody listens on one of these hook points."""
        return not self.quiet and listened(*hooks)

    def tap(self, hook: HookPoint, x: Tensor) -> Tensor:
        """Return what the listeners of a hook point make of x."""
        return x if self.quiet or not listened(hook) else hook(x)

    def refuse_foreign(self, part: nn.Module, layer: int) -> None:
        """Raise ValueError if this pass says something that a foreign part would not hear."""
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
    """Return the pass of a part that is called on its own: whole sequences, and nothing else."""
    positions = token_positions(None, 0, x.shape[1], x.device)
    return Pass(
        positions=positions,
        first_pos=0,
        sight=Sight(causal=config.attention_dir == "causal"),
        turns=turns_of(config, positions, x.dtype),
    )
