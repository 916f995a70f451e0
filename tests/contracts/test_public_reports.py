"""Public bug reports of other libraries, as behaviours of this one.

Where each is tested, or why it cannot occur here, stands in REPORTS; those that no other file
tests are tested below it. TL is TransformerLensOrg/TransformerLens.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.lens.hook_table import FLAGGED_HOOKS

Built = Callable[..., HookedGPT]
TESTS = Path(__file__).resolve().parents[1]

REPORTS: dict[str, list[str]] = {
    # Hooks
    "TL PR #156: hooks survive an exception": [
        "contracts/test_hooks.py::test_an_error_leaves_no_hook_a_thousand_times",
        "contracts/test_hooks.py::test_a_wrong_name_after_good_ones_leaves_none",
    ],
    "TL #1636, #1638: run_with_cache removed a user's hooks": [
        "contracts/test_hooks.py::test_users_hooks_outlive_caches",
        "contracts/test_hooks.py::test_kept_hooks_outlive_later_runs",
    ],
    "TL #1323, #1324: backward hooks leak from a context": [
        "contracts/test_hooks.py::test_backward_hooks_end_with_their_context",
    ],
    "TL PR #1187: aliasing of cached tensors": [
        "contracts/test_hooks.py::test_an_edit_in_place_changes_no_cache",
    ],
    "TL #340, #45: names_filter ignored, empty cache": [
        "contracts/test_hooks.py::test_every_form_of_a_filter_caches_the_same",
        "contracts/test_transformer_lens_tools.py::test_unknown_names_are_errors",
    ],
    "TL #1526, #1527: edits of hook_scale and hook_normalized ignored": [
        "contracts/test_architectures.py::test_every_hook_is_live",
    ],
    "TL #1317, #335: q, k and v inputs are forks before the norm, which fires once": [
        "contracts/test_public_reports.py::test_forks_are_copies_of_the_stream_before_the_norm",
        "contracts/test_architectures.py::test_flags_change_nothing_but_what_is_cached",
    ],
    "TL #1648: hook_attn_out not additive": [
        "contracts/test_transformer_lens_tools.py::test_decompose_resid",
        "contracts/test_transformer_lens_tools.py::test_stack_head_results",
    ],
    "TL #659: use_attn_result crashed, and takes n_heads times the memory": [
        "contracts/test_public_reports.py::test_every_flag_goes_forward_and_backward",
        "contracts/test_hooks.py::test_bytes_are_known_beforehand",
        "contracts/test_hooks.py::test_a_cache_of_results_beyond_the_limit_is_refused",
    ],
    # Attention, masks, generation
    "TL #389, #1607, #1608, pytorch #41508: rows that see nothing are NaN": [
        "contracts/test_architectures.py::test_padding_shifts_nothing",
    ],
    "TL #1609, #1610, #240, PR #344: left padding shifts positions": [
        "contracts/test_architectures.py::test_padding_shifts_nothing",
        "lab/test_positions.py::test_left_padding_shifts_nothing",
    ],
    "TL #1607: the loss counts padding": [
        "contracts/test_architectures.py::test_padding_shifts_nothing",
    ],
    "TL #697, #1337: no activations of generated tokens": [
        "lab/test_generation.py::test_hooks_act_on_every_token",
        "lab/test_generation.py::test_cached_generation_equals_uncached_token_for_token",
    ],
    "transformers PR #30652, pytorch #119811: the fused kernel lost mask or weights": [
        "contracts/test_architectures.py::test_paths_agree",
        "contracts/test_public_reports.py::test_the_pattern_is_there_whenever_it_is_asked_for",
    ],
    "pytorch #117758, #173452: a compiled model ignores later hooks": [
        "lab/test_compile.py::test_a_hook_added_later_takes_effect_and_goes_again",
    ],
    "TL #980: heads of keys under grouped queries": [
        "contracts/test_patching_tools.py::test_key_heads_are_patched_as_they_are",
    ],
    # Ablation, pruning, scores
    "thought-anchors #7, nnsight #525: slices of the output taken for heads": [
        "lab/test_gates.py::test_gate_equals_hook_equals_zero_weights",
        "lab/test_gates.py::test_zeroing_values_or_output_slices_is_something_else",
    ],
    "ACDC PR #82: zero ablation that was none; mean ablation": [
        "lab/test_gates.py::test_zeroing_values_or_output_slices_is_something_else",
        "lab/test_gates.py::test_mean_fill_and_positions",
        "probes/ablation/test_table.py::test_mean_reference_is_the_mean_of_hook_z",
        "probes/ablation/test_table.py::test_head_that_writes_nothing_changes_nothing",
        "probes/ablation/test_table.py::test_split_into_pieces_changes_nothing",
    ],
    "TL #1787, #1788: attribution from dropout alone": [
        "contracts/test_patching_tools.py::"
        "test_identical_inputs_have_no_effect_and_training_is_refused",
        "contracts/test_attribution_tools.py::test_identical_inputs_have_no_attribution",
    ],
    "TL PR #1745: detect_head drops kwargs and changes a cache": [
        "contracts/test_transformer_lens_tools.py::"
        "test_a_list_is_the_mean_and_the_cache_is_left_alone",
        "probes/attention/test_heads.py::test_nothing_to_score_is_missing_and_not_zero",
    ],
    "TL PR #255, #235: a mask of ones wins": [
        "probes/attention/test_heads.py::test_uniform_head_has_kappa_zero_on_every_probe",
        "probes/attention/test_heads.py::test_planted_head_scores_what_its_construction_says",
    ],
    "entropix #62, #63, transformers #19944: entropy over masked cells": [
        "lab/test_attention.py::test_one_hot_and_uniform_rows",
        "probes/attention/test_entropy.py::test_even_head_reaches_every_ceiling",
    ],
    "pyvene #158, #159: interventions that work on GPT-2 only": [
        "contracts/test_architectures.py::test_pruning_is_gating",
    ],
    # Numbers, life, screens
    "TL #902, #1568: NaN weights, another scale": [
        "contracts/test_weight_tools.py::test_scale_of_the_old_class",
        "lab/test_model.py::test_initial_weights",
    ],
    "TL #1178, #1062, #1068: MPS computes wrongly without a word": [
        "contracts/test_public_reports.py::test_apple_gpus_compute_what_the_cpu_computes",
        "lab/test_runtime.py::test_versions_are_of_what_numbers_depend_on",
    ],
    "TL #217, #246, #250, #837, #907: caches on the wrong device, several GPUs": [
        "contracts/test_hooks.py::test_on_another_device",
        "contracts/test_public_reports.py::test_a_model_stands_on_one_device",
    ],
    "TL #1580, #1272, #509: folding wrongly, or unasked": [
        "contracts/test_weight_tools.py::test_logits_and_heads_stay",
        "contracts/test_attribution_tools.py::test_sums_to_the_logit",
        "contracts/test_attribution_tools.py::test_is_refused_where_the_norm_has_weights",
    ],
    "TL #1076, #1180, #1677: scale and positions of the logit lens": [
        "contracts/test_attribution_tools.py::"
        "test_each_row_is_the_head_of_the_model_on_that_stream",
    ],
    "streamlit #5998: one model shared by all sessions": [
        "contracts/test_public_reports.py::test_an_ablation_in_one_thread_leaves_another_alone",
        "apps/test_studio_pages.py::test_two_sessions_do_not_disturb_each_other",
    ],
    "CircuitsVis #49: slow drawings": [
        "browser/test_studio_in_chromium.py::test_the_first_screen_comes_from_this_machine_only",
        "apps/test_studio_charts.py::test_a_large_grid_fits_the_page_without_numbers",
    ],
}
"""Report -> the tests of it.

Not here, because they cannot occur: dropout (a HookedGPT has none; the guard of eval mode is
tested all the same), and models spread over devices (no field of ModelConfig asks for it).
"""


@pytest.mark.parametrize("report", REPORTS)
def test_every_report_has_its_tests(report: str) -> None:
    for place in REPORTS[report]:
        file, _, name = place.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text(), place


def test_forks_are_copies_of_the_stream_before_the_norm(
    tool_model: HookedGPT, tokens: Tensor
) -> None:
    config = tool_model.config
    tool_model.set_use_split_qkv_input(True)
    fired: list[str] = []
    every = [(lambda name: True, lambda x, hook: fired.append(hook.name))]
    tool_model.run_with_hooks(tokens, fwd_hooks=every)
    assert len(set(fired)) == len(fired)
    _, cache = tool_model.run_with_cache(tokens)
    for letter, heads in (("q", config.n_heads), ("k", config.kv_heads), ("v", config.kv_heads)):
        fork = cache[f"blocks.1.attn.hook_{letter}_input"]
        wanted = cache["resid_pre", 1].unsqueeze(2).expand(-1, -1, heads, -1)
        assert torch.equal(fork, wanted)
    assert cache["scale", 0, "ln1"].shape == (3, 8, 1)


@pytest.mark.parametrize("flag", sorted(set(FLAGGED_HOOKS.values())))
def test_every_flag_goes_forward_and_backward(build: Built, tokens: Tensor, flag: str) -> None:
    for name in ("gpt2", "llama"):
        model = build(name)
        model(tokens, return_type="loss").backward()
        wanted = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
        plain = model(tokens)
        getattr(model, f"set_{flag}")(True)
        assert getattr(model.cfg, flag)
        torch.testing.assert_close(model(tokens), plain, atol=1e-11, rtol=0)
        model.zero_grad()
        model(tokens, return_type="loss").backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, wanted[key], atol=1e-11, rtol=0)
        getattr(model, f"set_{flag}")(False)
        assert torch.equal(model(tokens), plain)


def test_the_pattern_is_there_whenever_it_is_asked_for(
    tool_model: HookedGPT, tokens: Tensor
) -> None:
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, :3] = False
    causal = tool_model.config.attention_dir == "causal"
    for some, real in ((tokens, None), (tokens, mask), (tokens[:, :1], None)):
        seen: list[Tensor] = []

        def look(x: Tensor, hook: HookPoint, seen: list[Tensor] = seen) -> None:
            seen.append(x.clone())

        names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
        hooks = [(name, look) for name in names]
        got = tool_model.run_with_hooks(some, attention_mask=real, fwd_hooks=hooks)
        fused = tool_model(some, attention_mask=real, attention="fused")
        torch.testing.assert_close(got, fused, atol=1e-11, rtol=0)
        assert len(seen) == 2
        rows = torch.ones(some.shape, dtype=torch.bool) if real is None else real
        for pattern in seen:
            sums = pattern.sum(-1)
            torch.testing.assert_close(sums, rows[:, None].expand_as(sums).double())
            assert not (causal and pattern.triu(1).any())


@pytest.mark.usefixtures("as_a_user")
def test_an_ablation_in_one_thread_leaves_another_alone(build: Built, tokens: Tensor) -> None:
    model = build("gpt2")
    gates = HeadGates.ablate([(0, 1), (1, 2)], like=model)
    clean, ablated = model(tokens), model(tokens, gates=gates)
    wrong: list[str] = []

    def repeat(name: str, wanted: Tensor, **kwargs: object) -> None:
        runs = (model(tokens, **kwargs) for _ in range(30))
        wrong.extend(name for got in runs if not torch.equal(got, wanted))

    threads = [
        threading.Thread(target=repeat, args=("clean", clean)),
        threading.Thread(target=repeat, args=("ablated", ablated), kwargs={"gates": gates}),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not torch.equal(clean, ablated)


def test_apple_gpus_compute_what_the_cpu_computes(build: Built, tokens: Tensor) -> None:
    if not torch.backends.mps.is_available():
        pytest.skip("needs an Apple GPU (MPS); there is none here")
    for name in ("gpt2", "llama, 3 heads a key"):
        model = build(name).float()
        wanted = model(tokens)
        got = model.to("mps")(tokens.to("mps")).cpu()
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_a_model_stands_on_one_device(build: Built) -> None:
    with pytest.raises(ValueError, match="unknown ModelConfig key 'n_devices'"):
        ModelConfig.from_dict({**build("gpt2").config.to_dict(), "n_devices": 2})
    model = build("gpt2").to("meta")
    assert {str(parameter.device) for parameter in model.parameters()} == {"meta"}
    assert model.cfg.device == "meta"
