"""What needs a HookedGPT says so, and what to do, before any work on another library's model."""

import inspect

import pytest
import torch

import probes
from lab.gates import GateTensors

TOKENS = torch.tensor([[1, 2, 3, 1, 2, 3]])
HEADS = [(0, 0), (1, 1)]
ASKED = {
    "ablation_sweep": lambda model, own, out: probes.ablation_sweep(model, TOKENS),
    "certify": lambda model, own, out: probes.certify(
        own, model, GateTensors(g=torch.ones(2, 1, 1, 3)), TOKENS, mode="zero"
    ),
    "estimated_ablations": lambda model, own, out: probes.estimated_ablations(model, TOKENS),
    "estimated_patches": lambda model, own, out: probes.estimated_patches(model, TOKENS, TOKENS),
    "export_pruned_model": lambda model, own, out: probes.export_pruned_model(
        model, HEADS, out, TOKENS
    ),
    "feeder_scores": lambda model, own, out: probes.feeder_scores(model),
    "first_order_study": lambda model, own, out: probes.first_order_study(model, TOKENS),
    "head_donors": lambda model, own, out: probes.head_donors(model, TOKENS),
    "head_importance": lambda model, own, out: probes.head_importance(model, TOKENS),
    "head_redundancy": lambda model, own, out: probes.head_redundancy(model, TOKENS),
    "learn_gates": lambda model, own, out: probes.learn_gates(model, TOKENS, steps=1),
    "mean_reference": lambda model, own, out: probes.mean_reference(model, TOKENS),
    "next_token_table": lambda model, own, out: probes.next_token_table(model, TOKENS),
    "pair_effects": lambda model, own, out: probes.pair_effects(model, TOKENS),
    "prune_heads": lambda model, own, out: probes.prune_heads(model, HEADS),
    "pruning_curve": lambda model, own, out: probes.pruning_curve(model, TOKENS, held_out=TOKENS),
    "repair_split": lambda model, own, out: probes.repair_split(model, TOKENS),
    "shapley_values": lambda model, own, out: probes.shapley_values(model, TOKENS, HEADS),
    "survivor_labels": lambda model, own, out: probes.survivor_labels(own, model),
    "sweep_sets": lambda model, own, out: probes.sweep_sets(model, TOKENS, [HEADS]),
    "write_report": lambda model, own, out: probes.write_report(model, out),
}
"""One call of every public function that takes a HookedGPT: of another model, one that is one, and
where something would go."""


def test_every_public_function_that_needs_a_hooked_gpt_is_asked():
    functions = {name: getattr(probes, name) for name in probes.__all__}
    needing = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function)
        and any(
            "HookedGPT" in str(p.annotation)
            for p in inspect.signature(function).parameters.values()
        )
    }
    assert needing == set(ASKED)


@pytest.mark.parametrize("name", ASKED)
def test_a_model_without_gates_is_refused(name, build_model, tmp_path, as_a_user):
    own, out = build_model(), tmp_path / "out"
    message = (
        "a model whose heads are ablated must be a HookedGPT, got a TransformerBridge; load its "
        r"weights with HookedGPT\.from_pretrained"
    )
    with pytest.raises(ValueError, match=message):
        ASKED[name](own.to_boot_native(), own, out)
    assert not out.exists()
