"""Hooks and activation caches.

These methods have the signatures of TransformerLens's HookedRootModule, but they raise errors where
it is silent: a hook that cannot act, an unknown name, an empty cache. A context removes exactly the
hooks that it added; a cache has copies, sliced along the axis of positions. `lab.model` computes
the activations.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint, LensHandle
from transformer_lens.utilities.devices import warn_if_mps
from transformer_lens.utilities.slice import Slice

from lab.config import ModelConfig
from lab.lens.activations import Activations, describe, keep_copy, named
from lab.lens.context_lock import ContextLock
from lab.lens.hook_table import (
    FLAGGED_HOOKS,
    WIDE_HEAD_HOOKS,
    NamedModules,
    leaf,
    numbers_kept,
    position_axis,
    present_name,
    unknown_hook,
)
from lab.lens.view import HookedGPTConfig, PrunedGPTConfig

Direction = Literal["fwd", "bwd"]
NamesFilter = str | Sequence[str] | Callable[[str], bool] | None
Named = tuple[str | Callable[[str], bool], Callable[..., Any]]
"""The name of a hook point, or a predicate on names, and the hook."""


class HookedRoot(HookedRootModule, ABC):
    """A model whose hooks act or raise an error."""

    cfg: HookedGPTConfig

    largest_wide_cache: int = 8 * 2**30
    """Bytes of hook_result and the forks (n_heads times the stream each) that a cache may take."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._config = config
        self.one_thread = ContextLock()
        view = HookedGPTConfig if config.kept_heads is None else PrunedGPTConfig
        self.cfg = view.of(config)

    @property
    def config(self) -> ModelConfig:
        """The frozen description that is saved with the weights."""
        return self._config

    @abstractmethod
    def forward(self, input: Tensor) -> Any:
        """Run the model; see HookedGPT.forward."""

    def setup(self) -> None:
        """Name every module and hook; add_hook calls this again if a module was replaced."""
        super().setup()
        self.mod_dict = NamedModules(self.mod_dict)

    # Hook points -----------------------------------------------------------------------------

    def is_in_place(self, name: str, point: HookPoint) -> bool:
        """Return whether a hook point is still the one that the model runs under this name."""
        module: nn.Module | None = self
        for part in name.split("."):
            if module is None:
                return False
            module = module._modules.get(part)
        return module is point

    def check_live_hooks(self) -> None:
        """Raise ValueError if a hook was left on a module that was replaced since."""
        for name, point in self.hook_dict.items():
            if (point.fwd_hooks or point.bwd_hooks) and not self.is_in_place(name, point):
                raise ValueError(
                    f"hooks must be on modules of the model, got one on {name}, which was "
                    "replaced after the hook was added; call reset_hooks() and setup(), then add "
                    "it again"
                )

    def refresh(self) -> None:
        """Find the hook points again if a module was replaced."""
        modules = dict(self.named_modules())
        del modules[""]
        if modules != self.mod_dict:
            self.check_live_hooks()
            self.setup()

    def hook_point(self, name: str) -> HookPoint:
        """Return a hook point by its name, or by its old one on the block.

        Raises:
            KeyError: There is no such hook point.
        """
        present = present_name(name)
        point = self.hook_dict.get(present)
        if point is None or not self.is_in_place(present, point):
            self.refresh()
            point = self.hook_dict.get(present)
        if point is None:
            raise unknown_hook(name, self.mod_dict)
        return point

    def points(self, name: str | Callable[[str], bool]) -> list[HookPoint]:
        """Return the hook point of a name, or those of computed activations that match a filter.

        Raises:
            KeyError: There is no such hook point.
        """
        if isinstance(name, str):
            return [self.hook_point(name)]
        self.refresh()
        matched = [known for known in self.hook_dict if name(known)]
        if not matched:
            raise KeyError("a filter of hook names must match a hook, got one that matches none")
        found = [self.hook_dict[known] for known in matched if self.computed(known)]
        if not found:
            flag = FLAGGED_HOOKS[leaf(matched[0])]
            raise KeyError(
                "a filter of hook names must match an activation that is computed, got one that "
                f"matches {matched[0]} and its like; set cfg.{flag} = True, or hook it by its name"
            )
        return found

    def computed(self, hook_name: str) -> bool:
        """Return whether a forward pass computes this activation without a hook on it."""
        flag = FLAGGED_HOOKS.get(leaf(hook_name))
        return flag is None or bool(getattr(self.cfg, flag))

    def add_hook(
        self,
        name: str | Callable[[str], bool],
        hook: Callable[..., Any],
        dir: Direction = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Add a hook that stays until reset_hooks(), at a name or wherever a filter matches.

        Raises:
            KeyError: There is no such hook point.
        """
        for point in self.points(name):
            self.check_and_add_hook(
                point, str(point.name), hook, dir, is_permanent, level=level, prepend=prepend
            )

    # The base class annotates lists and defaults to one.
    @contextmanager
    def hooks(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        fwd_hooks: Sequence[Named] = (),
        bwd_hooks: Sequence[Named] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator["HookedRoot"]:
        """Add hooks for the duration of the context; remove exactly those at its end.

        Hooks are state on the model: another thread's hooks() or run_with_cache waits until this
        context ends, but its plain forward calls run these hooks too. Gates and observers are
        arguments of forward and safe in any number of threads.

        Args:
            fwd_hooks: Pairs of a hook's name, or a predicate on names, and the hook.
            bwd_hooks: The same for the backward pass.
            reset_hooks_end: False keeps the hooks until reset_hooks(). An error in the context
                removes them in any case.
            clear_contexts: Also clear the ctx of the hook points.

        Raises:
            KeyError: There is no such hook point.
            RuntimeError: Another thread has been inside hooks() for a minute.
        """
        with self.one_thread:
            self.context_level += 1
            level = self.context_level
            added: list[tuple[HookPoint, LensHandle]] = []
            keep = False
            try:
                directions: tuple[Direction, Direction] = ("fwd", "bwd")
                for direction, pairs in zip(directions, (fwd_hooks, bwd_hooks), strict=True):
                    for name, hook in pairs:
                        added.extend(
                            (point, point.add_hook(hook, dir=direction, level=level))
                            for point in self.points(name)
                        )
                yield self
                keep = not reset_hooks_end
            finally:
                for point, handle in added:
                    if keep:
                        handle.context_level = None
                    else:
                        remove_hook(point, handle)
                if clear_contexts and not keep:
                    self.clear_contexts()
                self.is_caching = False
                self.context_level -= 1

    # Caches ----------------------------------------------------------------------------------

    def run_with_cache(
        self,
        *model_args: Any,
        names_filter: NamesFilter = None,
        device: Any = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Any = None,
        return_cache_object: bool = True,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        """Run the model and return (output, ActivationCache) of copies of the activations.

        One thread at a time: a second one waits (see hooks). A plain forward of another thread
        meanwhile writes into this cache; give it a copy of the model, or observe instead.

        >>> import torch
        >>> from lab import HookedGPT, ModelConfig
        >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
        >>> logits, cache = model.run_with_cache(torch.tensor([[0, 1, 2]]))
        >>> logits.shape, cache["pattern", 0].shape
        (torch.Size([1, 3, 5]), torch.Size([1, 2, 3, 3]))

        Args:
            *model_args: Arguments of forward.
            names_filter: A hook name, several, or a predicate on names; None: every activation that
                is computed anyway (see the use_* flags of cfg).
            device: Device of the copies; None: that of the activations.
            remove_batch_dim: Remove the batch axis of a batch of one.
            incl_bwd: Call backward on the output, a scalar, and cache gradients under
                `<hook name>_grad`.
            reset_hooks_end: False leaves the caching hooks, which overwrite the cache at each run.
            clear_contexts: Also clear the ctx of the hook points.
            pos_slice: Positions to keep (of queries, in scores and patterns): a number, a tuple
                (start, stop), a list, or TransformerLens's Slice.
            return_cache_object: False returns the plain dict of tensors by hook name.
            **kwargs: Keyword arguments of forward.

        Raises:
            KeyError: names_filter names a hook that does not exist or that this run does not reach,
                or matches no hook.
            ValueError: A batch axis of several sequences cannot be removed, the output to call
                backward on is not a scalar, or hook_result and the forks would take more than
                largest_wide_cache.
        """
        cache, fwd, bwd = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, pos_slice=pos_slice
        )
        given = model_args[0] if model_args else kwargs.get("input")
        if isinstance(given, Tensor) and given.ndim > 1:
            if remove_batch_dim and len(given) != 1:
                raise ValueError(
                    f"remove_batch_dim must be used with a batch of one, got {len(given)} sequences"
                )
            names = {name for name, _ in fwd}
            self.check_wide_cache(names, given.shape[0], given.shape[1], pos_slice)
        with self.hooks(fwd, bwd, reset_hooks_end, clear_contexts):
            out = self(*model_args, **kwargs)
            if incl_bwd:
                if not (isinstance(out, Tensor) and out.numel() == 1):
                    raise ValueError(
                        "incl_bwd needs an output of one number for backward, got "
                        f"{describe(out)}; pass return_type='loss'"
                    )
                out.backward()
        if not (names_filter is None or callable(names_filter)):
            for name in named(names_filter):
                if name not in cache:
                    raise KeyError(f"names_filter names {name}, which this run never reached")
        if not return_cache_object:
            return out, cache
        return out, Activations(cache, self, has_batch_dim=not remove_batch_dim)

    def get_caching_hooks(
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: Any = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
        pos_slice: Any = None,
    ) -> tuple[dict[str, Tensor], list[Any], list[Any]]:
        """Return (cache, forward hooks, backward hooks) as TransformerLens does, storing copies.

        Raises:
            KeyError: names_filter names a hook that does not exist, or matches none.
        """
        if device is not None:
            warn_if_mps(device)
        cache = {} if cache is None else cache
        positions = Slice.unwrap(pos_slice)
        self.is_caching = True

        fwd, bwd = [], []
        where = {"cache": cache, "device": device, "remove_batch_dim": remove_batch_dim}
        for name, point in self.asked(names_filter):
            axis = position_axis(str(point.name))
            # Partials, because the tests' type checker would compile a closure each time.
            keep = partial(keep_copy, axis=axis, positions=positions, **where)
            fwd.append((point.name, partial(keep, key=name)))
            if incl_bwd:
                bwd.append((point.name, partial(keep, key=f"{name}_grad")))
        return cache, fwd, bwd

    def add_caching_hooks(
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: Any = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Add hooks that store copies until reset_hooks(), and return the dict that they fill.

        Raises:
            KeyError: names_filter names a hook that does not exist, or matches none.
        """
        cache, fwd, bwd = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, cache
        )
        for name, hook in fwd:
            self.hook_point(name).add_hook(hook, dir="fwd")
        for name, hook in bwd:
            self.hook_point(name).add_hook(hook, dir="bwd")
        return cache

    def asked(self, names_filter: NamesFilter) -> list[tuple[str, HookPoint]]:
        """Return the names of names_filter as they were given, each with its hook point."""
        if names_filter is None or callable(names_filter):
            found = self.points(names_filter or (lambda _: True))
            return [(str(point.name), point) for point in found]
        return [(name, self.hook_point(name)) for name in named(names_filter)]

    def cache_bytes(
        self,
        batch: int,
        n_pos: int,
        names_filter: NamesFilter = None,
        pos_slice: Any = None,
        n_key: int | None = None,
    ) -> int:
        """Return how many bytes run_with_cache would keep, without running the model.

        Args:
            batch: Sequences.
            n_pos: Positions of the input.
            names_filter: As in run_with_cache.
            pos_slice: As in run_with_cache.
            n_key: Keys, of earlier calls too; None: n_pos.

        Raises:
            KeyError: names_filter names a hook that does not exist, or matches none.
        """
        names = {str(point.name) for _, point in self.asked(names_filter)}
        return self._bytes_of(names, batch, n_pos, pos_slice, n_key)

    def check_wide_cache(self, names: set[str], batch: int, n_pos: int, pos_slice: Any) -> None:
        """Raise ValueError if hook_result and the forks of a cache would take too many bytes."""
        wide = {name for name in names if leaf(name) in WIDE_HEAD_HOOKS}
        needed = self._bytes_of(wide, batch, n_pos, pos_slice, None)
        if needed > self.largest_wide_cache:
            kinds = " and ".join(sorted({leaf(name) for name in wide}))
            raise ValueError(
                f"a cache of {kinds} must be at most largest_wide_cache = "
                f"{self.largest_wide_cache} bytes, got {needed} for {batch} x {n_pos} tokens; "
                "name fewer layers in names_filter, keep fewer positions with pos_slice, or raise "
                "model.largest_wide_cache"
            )

    def _bytes_of(
        self, names: set[str], batch: int, n_pos: int, pos_slice: Any, n_key: int | None
    ) -> int:
        kept = Slice.unwrap(pos_slice).indices(n_pos).size
        n_key = n_pos if n_key is None else n_key
        numbers = sum(numbers_kept(name, self.config, batch, kept, n_key) for name in names)
        return numbers * self.cfg.dtype.itemsize


def remove_hook(point: HookPoint, handle: LensHandle) -> None:
    handle.hook.remove()
    point.fwd_hooks = [other for other in point.fwd_hooks if other is not handle]
    point.bwd_hooks = [other for other in point.bwd_hooks if other is not handle]
