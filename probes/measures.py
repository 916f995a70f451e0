"""The one list of what is measured beside the probes: which table each gives, and how to read it.

A probe of `probes.registry` is mass on target cells; what stands here needs more than cells, or
something else. It is for people who read a table: docs/probes.md is written from it. No torch is
imported: `where` is resolved on use.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureEntry:
    """What a person needs to know to read one table."""

    name: str
    """Name of the function that measures."""
    title: str
    """What it is about."""
    summary: str
    """One sentence: what its numbers tell."""
    formula: str
    """The numbers in plain text."""
    bounds: str
    """Range and unit."""
    source: str
    """Where the definition comes from."""
    caveat: str
    """What its numbers do not show."""
    table: str
    """Name of the table's schema."""
    where: str
    """module:function."""
    drawn: bool = False
    """Whether docs/probes.md shows a picture of it."""


MEASURES: tuple[MeasureEntry, ...] = (
    MeasureEntry(
        name="entropy_profile",
        title="Entropy by position",
        summary="How widely each head spreads its attention, row by row.",
        formula="H(q) = -sum over k of A[q, k] log A[q, k]; normalised: H(q) / log(keys that row q "
        "sees), each row before any mean; effective keys: exp(H); sink-free: of A[q, k] / "
        "(1 - A[q, 0]) over k >= 1, where at least 0.001 is left",
        bounds="nats, from 0 to log(q + 1) in a causal model and to log(n) in a bidirectional one; "
        "normalised from 0 to 1",
        source="Clark et al. 2019, What does BERT look at?; sink-free after Gu et al. 2025",
        caveat="Heads that rest on the first key look focused: 0.9 there and the rest spread over "
        "63 keys is 0.18 normalised, but 1.00 sink-free. Rows of few keys are coarse.",
        table="entropy",
        where="probes.attention.entropy:entropy_profile",
        drawn=True,
    ),
    MeasureEntry(
        name="offset_spectrum",
        title="Distances",
        summary="How far back each head looks.",
        formula="R(d) = mean over rows q of A[q, q - d], d = 0 .. D, all distances on the same "
        "rows q >= D (q > D where BOS or SEP stands first)",
        bounds="mean probability, from 0 to 1; chance is the same at every distance",
        source="Voita et al. 2019 (positional heads), Olsson et al. 2022",
        caveat="On repeated blocks every multiple of the period is a distance of its own: read it "
        "on text or on sequences without a repeat.",
        table="spectrum",
        where="probes.attention.offsets:offset_spectrum",
        drawn=True,
    ),
    MeasureEntry(
        name="head_peaks",
        title="Favourite keys",
        summary="Whether the key that a row looks at most is one of a probe's targets.",
        formula="argmax_share: share of the scored rows whose largest probability is on a target; "
        "p10: mass on the targets that nine rows in ten exceed; largest: mean over the scored rows "
        "of the largest probability",
        bounds="from 0 to 1",
        source="Voita et al. 2019: a positional head has an argmax share of 0.9 or more; largest "
        "is their confidence",
        caveat="A head may look most at its target with little mass: read it beside the score.",
        table="peaks",
        where="probes.attention.peaks:head_peaks",
    ),
    MeasureEntry(
        name="head_values",
        title="What heads write",
        summary="How large each head's output is, and how much of it comes from the first key.",
        formula="sink_mass = A[q, 0]; output_norm = |z_q W_O|; sink_value_share = mean A[q, 0] "
        "|v_0 W_O| / mean |z_q W_O|; layer_share = output_norm / median of the layer",
        bounds="masses from 0 to 1; shares from 0, above 1 where the rest cancels part of the sink",
        source="Kobayashi et al. 2020, Attention is not only a weight",
        caveat="A large output may still not matter to the answer: ablate the head.",
        table="values",
        where="probes.writing.values:head_values",
    ),
    MeasureEntry(
        name="copying_scores",
        title="Copying",
        summary="Whether a head makes the tokens that it looks at likelier.",
        formula="eigenvalue = sum(lambda) / sum |lambda| over the eigenvalues of W_E W_V W_O W_U; "
        "copying C = 2 sum over k of A'[q, k] r_{x_k} / sum over the sample of r_t - 1, r_t the "
        "raise of token t's logit above the mean, 0 where it is lowered, A' without the first key; "
        "top5 = share of tokens that are among the five likeliest after the head alone has "
        "attended to them",
        bounds="eigenvalue and C from -1 to 1, top5 from 0 to 1 (chance: 5 / d_vocab)",
        source="Elhage et al. 2021 (eigenvalues), Olsson et al. 2022 (C; their text leaves room, "
        "this is ours), Wang et al. 2023 (top5)",
        caveat="The direct path only: what later layers make of the output does not show. C "
        "depends on how sharply the head looks: one that spreads evenly has 2 / q - 1 in row q, "
        "about -0.74 over 25 tokens, even if its weights copy perfectly; the eigenvalue score "
        "asks the weights alone, and may be high where no token comes out among the likeliest.",
        table="copying",
        where="probes.writing.copying:copying_scores",
    ),
    MeasureEntry(
        name="head_distances",
        title="Heads that look alike",
        summary="How differently two heads attend.",
        formula="mean over sequences and rows of H((a + b) / 2) - (H(a) + H(b)) / 2, a and b the "
        "two heads' probabilities in a row, H the entropy (Jensen-Shannon)",
        bounds="nats, from 0 (equal) to ln 2 = 0.693 (no key in common)",
        source="Clark et al. 2019 (there summed over tokens, not averaged)",
        caveat="Heads that look alike may write different things. Many heads rest on the first "
        "key, and are alike there.",
        table="distances",
        where="probes.attention.distances:head_distances",
    ),
    MeasureEntry(
        name="find_onsets",
        title="When heads form",
        summary="At which training step each head's score rises.",
        formula="first step of a film whose kappa is at or above the middle between the first and "
        "the highest, there and in the next frame; none where it rises by less than 0.2",
        bounds="training steps, between two frames of the film",
        source="ours; films come from `headlab train --probe-every N` and `headlab probe RUN "
        "--all-checkpoints`",
        caveat="As fine as the film's steps: the table says which step of the film came before.",
        table="onsets",
        where="probes.film.frames:find_onsets",
        drawn=True,
    ),
    MeasureEntry(
        name="ablation_sweep",
        title="Ablation",
        summary="What the model loses without each head, and without each whole layer.",
        formula="delta = metric with the head's z replaced by zero or by its mean over other "
        "sequences - metric of the whole model",
        bounds="loss in nats, unbounded; accuracies from -1 to 1",
        source="Michel et al. 2019, Are sixteen heads really better than one?",
        caveat="A head whose removal costs nothing may have stand-ins: compare whole layers. The "
        "loss hides what a saturated answer would need.",
        table="ablation",
        where="probes.ablation.table:ablation_sweep",
    ),
    MeasureEntry(
        name="head_importance",
        title="Importance to first order",
        summary="How fast a metric changes with the gate of each head: a preview of ablation.",
        formula="G = d metric / d gate at gate 1, by sequence and position; example: sum over "
        "sequences of |sum over positions of G|, token: sum of |G|, batch: |sum of G|, each over "
        "the number of scored rows; token >= example >= batch",
        bounds="the metric's unit, from 0",
        source="Michel et al. 2019 (by example); their code adds by token, other libraries by "
        "batch",
        caveat="A model that is always right has no gradient: take the margin. Normalised by "
        "layer, the heads of an idle layer look as important as those that work.",
        table="importance",
        where="probes.first_order.importance:head_importance",
    ),
    MeasureEntry(
        name="estimated_ablations",
        title="Attribution patching",
        summary="What ablating each head would change, to first order: two passes for all heads.",
        formula="(fill - z) . d metric / d z, of every position; for zeros -d metric / d gate; of "
        "q and k (estimated_patches) the softmax is computed anew and what follows is linear",
        bounds="the metric's unit, with its sign",
        source="Nanda 2023, Attribution patching; Kramar et al. 2024, AtP*",
        caveat="Linear in what a head writes: stand-ins and thresholds do not show, and where "
        "direct and indirect effects cancel it sees nothing (GradDrop does).",
        table="estimates",
        where="probes.first_order.attribution_patching:estimated_ablations",
    ),
    MeasureEntry(
        name="first_order_study",
        title="Estimates against exact ablations",
        summary="How far the estimates agree with exact ablations on this model and input.",
        formula="Spearman's rank correlation over heads, of estimates with a sign to delta and of "
        "the others to |delta|; shared: heads among the largest of both",
        bounds="correlation from -1 to 1; shared from 0 to top, by chance top^2 / heads",
        source="ours: each estimate is known, what it is worth on your model is measured",
        caveat="Of few heads the correlation is rough: its interval resamples sequences only.",
        table="agreement",
        where="probes.first_order.agreement:first_order_study",
    ),
    MeasureEntry(
        name="repair_split",
        title="Self-repair",
        summary="How much of a head's effect the rest of the model makes up for.",
        formula="repair = direct - total; direct: how much worse the metric gets if only the end "
        "of the stream lacks what the head writes, total: if the head is ablated; norm frozen: the "
        "last norm divides by what it divided by in the whole model",
        bounds="the metric's unit; positive where others stand in, negative where later layers "
        "fail with the head",
        source="McGrath et al. 2023, The hydra effect; Rushing and Nanda 2024",
        caveat="The direct effect of a head that works through later layers is small: then repair "
        "is negative, and says so rather than that nothing is repaired.",
        table="self_repair",
        where="probes.first_order.self_repair:repair_split",
    ),
    MeasureEntry(
        name="composition_scores",
        title="Composition",
        summary="Which later head could read what an earlier head writes, by the weights.",
        formula="|W_OV R| / (|W_OV| |R|) in Frobenius norms, R = W_QK (Q), W_QK^T (K) or W_OV (V) "
        "of the later head, norms' weights folded in; excess: less the mean of random heads",
        bounds="from 0 to 1; random heads score about 1 / sqrt(d_model)",
        source="Elhage et al. 2021, A mathematical framework for Transformer circuits",
        caveat="Weak evidence: norms, MLPs and what the heads look at are left out, and rotary "
        "positions count as none. Ablate the earlier head and look at the later one.",
        table="composition",
        where="probes.feeders.composition:composition_scores",
    ),
    MeasureEntry(
        name="patch_activations",
        title="Activation patching",
        summary="How much of an answer comes back with one activation of the clean run.",
        formula="share = sum(patched - corrupt) / sum(clean - corrupt) over sequences, of the "
        "logit of the clean answer less that of the corrupt one",
        bounds="0: nothing comes back, 1: all of it; less and more occur; NaN: equal runs",
        source="Meng et al. 2022, Locating and editing factual associations; TransformerLens's "
        "patching",
        caveat="It depends on the pair: what both runs share cannot come back. One forward pass a "
        "cell. A TransformerBridge's resid_mid is refused: it is what the MLP reads only.",
        table="patching",
        where="probes.borrowed.patching:patch_activations",
    ),
    MeasureEntry(
        name="logit_lens",
        title="Logit lens",
        summary="What the model would say if it stopped after each layer.",
        formula="ln softmax(norm(x_l) W_U + b_U) of the answer; the last layer's is the model's "
        "own; rank: tokens that are likelier",
        bounds="log_prob in nats, at most 0; top1 from 0 to 1; rank from 0; entropy in nats",
        source="nostalgebraist 2020, Interpreting GPT: the logit lens; TransformerLens's lens",
        caveat="Early streams are not written for the last norm: far from sure and sure of "
        "something else look alike. Compare ranks and entropy.",
        table="lens",
        where="probes.borrowed.lens:logit_lens",
    ),
    MeasureEntry(
        name="logit_attribution",
        title="Direct logit attribution",
        summary="What each head, MLP, bias and embedding adds to the answer's logit by itself.",
        formula="(c - mean(c)) / sigma . W_U[:, answer], the last norm's scale sigma of the whole "
        "run, its weights folded into W_U; with b_U the parts sum to the logit",
        bounds="logits, with their sign",
        source="Elhage et al. 2021; Wang et al. 2023, Interpretability in the wild",
        caveat="Direct only: what a head does through later layers is not in it, and a logit "
        "alone has no zero: give wrong answers to compare with. Weights that TransformerLens "
        "centred, or whose value biases it folded, split the logit otherwise: attrs say which were "
        "read.",
        table="attribution",
        where="probes.borrowed.attribution:logit_attribution",
    ),
    MeasureEntry(
        name="edge_attribution",
        title="Edge attribution",
        summary="Which part of the model feeds which, estimated by one gradient.",
        formula="(w_clean - w_corrupt) . d M / d(input of the reader), summed over positions; w is "
        "what the writer adds to the stream, M the answers' logits of the corrupt run",
        bounds="logits, with their sign; a writer's edges sum to the estimate for the writer",
        source="Syed, Rager and Conmy 2023, Attribution patching outperforms automated circuit "
        "discovery",
        caveat="First order: it misses what saturates. Heads that share keys, models without MLPs "
        "and bridges that do not fork their stream have no such edges.",
        table="edges",
        where="probes.borrowed.edges:edge_attribution",
    ),
)
