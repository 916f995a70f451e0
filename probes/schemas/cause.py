"""What breaks without heads: the tables of ablations, of feeders and of pruned models."""

from probes.schemas.columns import CI_HIGH, CI_LOW, HEAD, LAYER, N_SEQUENCES, UNIT, Column, Schema

ABLATION = Schema(
    name="ablation",
    version=1,
    columns=(
        LAYER,
        Column(
            name="head",
            kind="whole or none",
            meaning="ablated head; none: several, as a whole layer",
        ),
        Column(name="heads", kind="text", meaning="all ablated heads, written L0H1,L0H2"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="baseline", kind="number", meaning="the metric of the whole model"),
        Column(name="ablated", kind="number", meaning="the metric without the heads"),
        Column(name="delta", kind="number", meaning="ablated - baseline"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        UNIT,
    ),
)

PAIRS = Schema(
    name="pairs",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="other_layer", kind="whole", meaning="block of the other head"),
        Column(name="other_head", kind="whole", meaning="the other head within its layer"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="first", kind="number", meaning="delta of ablating the head alone"),
        Column(name="second", kind="number", meaning="delta of ablating the other one alone"),
        Column(name="joint", kind="number", meaning="delta of ablating both"),
        Column(name="interaction", kind="number", meaning="joint - (first + second)"),
        Column(name="ci_low", kind="number", meaning="lower end of the interval of interaction"),
        Column(name="ci_high", kind="number", meaning="upper end of the interval of interaction"),
        N_SEQUENCES,
        UNIT,
    ),
)

COMPOSITION = Schema(
    name="composition",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="from_layer", kind="whole", meaning="block of the earlier head"),
        Column(name="from_head", kind="whole", meaning="that head within its layer"),
        Column(name="kind", kind="text", meaning="what reads: queries Q, keys K or values V"),
        Column(name="score", kind="number", meaning="norm of the product / product of the norms"),
        Column(name="chance", kind="number", meaning="mean score of random heads of this shape"),
        Column(name="excess", kind="number", meaning="score - chance"),
        UNIT,
    ),
)

SHAPLEY = Schema(
    name="shapley",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="heads", kind="text", meaning="the heads that share the joint effect"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="value", kind="number", meaning="mean of what its ablation adds, over orders"),
        CI_LOW,
        CI_HIGH,
        Column(name="std_error", kind="number", meaning="of the orders drawn; 0: all were taken"),
        Column(name="alone", kind="number", meaning="delta of ablating this head only"),
        Column(name="last", kind="number", meaning="what its ablation adds to that of the others"),
        Column(name="joint", kind="number", meaning="delta of ablating all: the sum of values"),
        Column(name="n_runs", kind="whole", meaning="sets that were run, the empty one included"),
        N_SEQUENCES,
        UNIT,
    ),
)

REDUNDANCY = Schema(
    name="redundancy",
    version=1,
    columns=(
        Column(name="group", kind="text", meaning="name of the group: a label"),
        Column(name="layer", kind="whole or none", meaning="block; none: the whole group"),
        Column(name="head", kind="whole or none", meaning="head; none: the whole group"),
        Column(name="heads", kind="text", meaning="all heads of the group"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="baseline", kind="number", meaning="the metric of the whole model"),
        Column(
            name="delta",
            kind="number",
            meaning="ablated - baseline: of this head alone, or of the whole group",
        ),
        CI_LOW,
        CI_HIGH,
        Column(name="last", kind="number", meaning="what its ablation adds to that of its twins"),
        Column(name="last_ci_low", kind="number", meaning="lower end of the interval of last"),
        Column(name="last_ci_high", kind="number", meaning="upper end of the interval of last"),
        Column(name="value", kind="number", meaning="Shapley value; NaN: not every set was run"),
        Column(name="singles", kind="number", meaning="of a group: sum of its heads' deltas"),
        Column(name="control", kind="number", meaning="mean delta of as many other heads"),
        Column(name="control_low", kind="number", meaning="least delta of these sets"),
        Column(name="control_high", kind="number", meaning="largest delta of these sets"),
        Column(name="n_controls", kind="whole", meaning="sets of other heads that were run"),
        Column(name="control_in_layers", kind="number", meaning="share of them in its layers"),
        Column(name="verdict", kind="text", meaning="needed, redundant, useless or unresolved"),
        N_SEQUENCES,
        UNIT,
    ),
)

FEEDERS = Schema(
    name="feeders",
    version=2,
    columns=(
        Column(name="layer", kind="whole or none", meaning="block; none: several heads together"),
        Column(name="head", kind="whole or none", meaning="head; none: several heads together"),
        Column(name="heads", kind="text", meaning="all ablated heads"),
        Column(name="previous", kind="number", meaning="previous-token score of the ablated head"),
        Column(name="target_layer", kind="whole", meaning="block of the induction head"),
        Column(name="target_head", kind="whole", meaning="the induction head within its layer"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="baseline", kind="number", meaning="induction score of the target"),
        Column(name="ablated", kind="number", meaning="its score without the heads"),
        Column(name="drop", kind="number", meaning="baseline - ablated"),
        CI_LOW,
        CI_HIGH,
        Column(
            name="control",
            kind="number",
            meaning="mean drop of heads of the same layers, or else of the nearest, that do not "
            "look at the previous token; NaN: there are none",
        ),
        Column(name="loss", kind="number", unit="nats", meaning="loss of the second copy"),
        Column(name="loss_delta", kind="number", unit="nats", meaning="what it rises by"),
        Column(name="loss_ci_low", kind="number", meaning="lower end of its interval"),
        Column(name="loss_ci_high", kind="number", meaning="upper end of its interval"),
        Column(name="loss_control", kind="number", meaning="mean rise of the same controls"),
        Column(
            name="frozen_loss_delta",
            kind="number",
            unit="nats",
            meaning="what it rises by where all attention stays as it was; NaN: not asked",
        ),
        Column(name="n_controls", kind="whole", meaning="controls: heads, or sets of heads"),
        Column(name="q_composition", kind="number", meaning="Q score less chance, by the weights"),
        Column(name="k_composition", kind="number", meaning="K score less chance, by the weights"),
        Column(name="v_composition", kind="number", meaning="V score less chance, by the weights"),
        Column(
            name="feeds",
            kind="flag or none",
            meaning="the target loses half of its score or more, and its controls leave it alone; "
            "none: without a control or an interval that cannot be told",
        ),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows scored, over all sequences"),
        UNIT,
    ),
)

PRUNING = Schema(
    name="pruning",
    version=1,
    columns=(
        Column(name="order", kind="text", meaning="how it was decided which heads go first"),
        Column(
            name="normalise", kind="text", meaning="how the scores were made comparable; or empty"
        ),
        Column(name="seed", kind="whole or none", meaning="seed of a random order"),
        Column(name="n_removed", kind="whole", meaning="heads removed so far"),
        Column(name="n_kept", kind="whole", meaning="heads that are left"),
        Column(name="removed", kind="text", meaning="heads removed since the row before"),
        Column(name="kept", kind="text", meaning="all heads that are left"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what stands for a removed head: zero or mean"),
        Column(
            name="selection",
            kind="number",
            meaning="the metric where the order was chosen; NaN: at random, it was not",
        ),
        Column(name="held_out", kind="number", meaning="the metric on held-out sequences"),
        Column(name="ci_low", kind="number", meaning="lower end of the interval of held_out"),
        Column(name="ci_high", kind="number", meaning="upper end of the interval of held_out"),
        Column(name="delta", kind="number", meaning="held_out - held_out of the whole model"),
        Column(name="delta_ci_low", kind="number", meaning="lower end of the interval of delta"),
        Column(name="delta_ci_high", kind="number", meaning="upper end of the interval of delta"),
        Column(name="n_parameters", kind="whole", meaning="parameters that are left"),
        Column(name="cache_bytes", kind="whole", meaning="bytes of keys and values of one token"),
        Column(name="n_sequences", kind="whole", meaning="held-out sequences"),
        UNIT,
    ),
)

RANDOM_BAND = Schema(
    name="random_band",
    version=1,
    columns=(
        Column(name="n_removed", kind="whole", meaning="heads removed"),
        Column(name="n_kept", kind="whole", meaning="heads that are left"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="low", kind="number", meaning="least held-out value of the random orders"),
        Column(name="median", kind="number", meaning="their median"),
        Column(name="high", kind="number", meaning="their largest"),
        Column(name="n_orders", kind="whole", meaning="random orders"),
        UNIT,
    ),
)

REMOVABLE = Schema(
    name="removable",
    version=1,
    columns=(
        Column(name="order", kind="text", meaning="how it was decided which heads go first"),
        Column(
            name="normalise", kind="text", meaning="how the scores were made comparable; or empty"
        ),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(
            name="within",
            kind="number",
            meaning="what may be lost, as a share of the whole model's",
        ),
        Column(
            name="removable",
            kind="number",
            meaning="most heads removed with held_out within it; of random orders the median",
        ),
        Column(name="low", kind="number", meaning="the same of the worst order"),
        Column(name="high", kind="number", meaning="the same of the best order"),
        Column(name="n_heads", kind="whole", meaning="heads of the whole model"),
        Column(name="n_orders", kind="whole", meaning="orders; 1: this one"),
    ),
)

SURVIVORS = Schema(
    name="survivors",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="before", kind="text", meaning="what the head did in the whole model"),
        Column(name="before_strength", kind="text", meaning="strong or weak; empty: no class"),
        Column(name="before_score", kind="number", meaning="attention on the targets, before"),
        Column(name="label", kind="text", meaning="what it does among the heads that are left"),
        Column(name="strength", kind="text", meaning="strong or weak; empty: no class"),
        Column(name="score", kind="number", meaning="attention on the targets of its class"),
        Column(name="changed", kind="flag", meaning="the two labels differ"),
        N_SEQUENCES,
        UNIT,
    ),
)

GATES = Schema(
    name="gates",
    version=1,
    columns=(
        Column(name="step", kind="whole", meaning="steps of learning done"),
        LAYER,
        HEAD,
        Column(name="log_a", kind="number", meaning="what is learned: high is open, low is closed"),
        Column(name="open_probability", kind="number", meaning="probability of a gate above 0"),
        Column(name="gate", kind="number", meaning="the gate that stands for them all: 0 .. 1"),
        Column(
            name="loss",
            kind="number",
            unit="nats",
            meaning="loss of the gated model in the step that follows; NaN: none does",
        ),
    ),
)

CAUSE_SCHEMAS = (
    ABLATION,
    PAIRS,
    COMPOSITION,
    SHAPLEY,
    REDUNDANCY,
    FEEDERS,
    PRUNING,
    RANDOM_BAND,
    REMOVABLE,
    SURVIVORS,
    GATES,
)
