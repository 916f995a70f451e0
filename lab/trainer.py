"""A model in training: its optimiser, its data and the one step that changes it.

The recipe: AdamW with weight decay on matrices only, linear warm-up then cosine, gradient clipping,
accumulation, several processes. `lab.training` acts between steps.
"""

import contextlib
import math
import time
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.config import TrainConfig
from lab.evaluation import Evaluation, answer_loss, evaluate
from lab.hooked_gpt import HookedGPT
from lab.run_folders import MetricsRow
from lab.runtime import Processes, autocast, git_sha, mean_over, resolve_precision, versions
from lab.tasks.base import Batch, Task


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of a step (the first is 1): linear warm-up, then half a cosine."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    share = config.final_lr_share
    return config.learning_rate * (share + (1 - share) * (1 + math.cos(math.pi * progress)) / 2)


def make_optimizer(model: HookedGPT, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW with weight decay on W_* only; per-head biases have two axes but no decay."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if name.rpartition(".")[2].startswith("W_")]
    others = [p for name, p in named if not name.rpartition(".")[2].startswith("W_")]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)


def micro_batches(
    task: Task, config: TrainConfig, processes: Processes, device: torch.device, step: int
) -> list[Batch]:
    """Return this process's share of a step's global batch, sampled on the CPU, on the device.

    The global batch is split into processes x accumulate slices in order, so two processes get the
    slices that one process gets as two micro-batches.
    """
    size = config.batch_size // (config.accumulate * processes.count)
    batches = []
    for micro in range(config.accumulate):
        first = (processes.index * config.accumulate + micro) * size
        batch = task.sample(size, seed=config.seed, split="train", step=step, first=first)
        if device.type == "cuda":
            pinned = (part.pin_memory() for part in (batch.tokens, batch.loss_mask, batch.sources))
            batch = Batch(*pinned).to(device, non_blocking=True)
        else:
            batch = batch.to(device)
        batches.append(batch)
    return batches


class Trainer:
    """A model in training: parameters, optimiser and the one step that changes them."""

    def __init__(
        self, config: TrainConfig, task: Task, device: torch.device, processes: Processes
    ) -> None:
        self.config, self.task, self.device, self.processes = config, task, device, processes
        self.precision: Literal["fp32", "bf16"] = resolve_precision(config.precision, device)
        # eval(): no module behaves differently in training, and TransformerLens's tools need it.
        self.model = HookedGPT(config.model).to(device).eval()
        self.optimizer = make_optimizer(self.model, config)
        self.parallel: nn.Module = self.model
        if processes.count > 1:
            self.parallel = DistributedDataParallel(self.model, forward_sync_buffers=False)
        self.held_out = task.sample(config.eval_sequences, seed=config.seed, split="test")
        self.upcoming: list[Batch] | None = None

    def step(self, step: int) -> MetricsRow:
        """Do one optimiser step and return its row of the metrics."""
        config = self.config
        began = time.perf_counter()
        rate = learning_rate(config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batches = self.upcoming or self.share(step)
        total = torch.zeros((), device=self.device)
        for micro, batch in enumerate(batches):
            last = micro == len(batches) - 1
            with contextlib.nullcontext() if last else self.local_gradient():
                with autocast(self.precision, self.device):
                    loss = answer_loss(self.parallel(batch.tokens), batch)
                # The mean over the global batch, because all micro-batches are of one size.
                (loss / len(batches)).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # The GPU is still busy with this step: sample the next batch before waiting for the loss.
        ahead = self.device.type == "cuda" and step < config.steps
        self.upcoming = self.share(step + 1) if ahead else None
        mean = mean_over(self.processes, total / len(batches))
        loss_value, norm_value = torch.stack([mean, norm]).tolist()
        seconds = time.perf_counter() - began
        return {
            "step": step,
            "loss": loss_value,
            "learning_rate": rate,
            "grad_norm": norm_value,
            "tokens_per_second": config.batch_size * self.task.n_tokens / seconds,
        }

    def share(self, step: int) -> list[Batch]:
        """Return this process's micro-batches of a step."""
        return micro_batches(self.task, self.config, self.processes, self.device, step)

    def local_gradient(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that accumulates gradients without exchanging them."""
        if isinstance(self.parallel, DistributedDataParallel):
            return self.parallel.no_sync()
        return contextlib.nullcontext()

    def evaluation(self) -> Evaluation:
        """Evaluate on the held-out sequences, in the precision of the weights."""
        return evaluate(self.model, self.held_out.to(self.device))

    def surroundings(self) -> dict[str, Any]:
        """Return the record of machine and software for a run."""
        return {
            "git_sha": git_sha(),
            "versions": versions(),
            "device": str(self.device),
            "precision": self.precision,
            "threads": torch.get_num_threads(),
            "processes": self.processes.count,
        }
