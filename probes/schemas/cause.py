"""What breaks without heads: the tables of ablations, of feeders and of pruned models."""

from probes.schemas import columns as c

ABLATION = c.schema(
    "ablation",
    c.LAYER,
    c.whole_or_none("head", "ablated head; none: several, as a whole layer"),
    c.text("heads", "all ablated heads, written L0H1,L0H2"),
    *c.METRIC_AND_MODE,
    c.BASELINE,
    c.number("ablated", "the metric without the heads"),
    c.number("delta", "ablated - baseline"),
    *c.INTERVAL,
    *c.COUNT_AND_UNIT,
)

PAIRS = c.schema(
    "pairs",
    *c.EACH_HEAD,
    c.whole("other_layer", "block of the other head"),
    c.whole("other_head", "the other head within its layer"),
    *c.METRIC_AND_MODE,
    c.number("first", "delta of ablating the head alone"),
    c.number("second", "delta of ablating the other one alone"),
    c.number("joint", "delta of ablating both"),
    c.number("interaction", "joint - (first + second)"),
    *c.ends("the interval of interaction"),
    *c.COUNT_AND_UNIT,
)

COMPOSITION = c.schema(
    "composition",
    *c.EACH_HEAD,
    c.whole("from_layer", "block of the earlier head"),
    c.whole("from_head", "that head within its layer"),
    c.text("kind", "what reads: queries Q, keys K or values V"),
    c.number("score", "norm of the product / product of the norms"),
    c.number("chance", "mean score of random heads of this shape"),
    c.number("excess", "score - chance"),
    c.UNIT,
)

SHAPLEY = c.schema(
    "shapley",
    *c.EACH_HEAD,
    c.text("heads", "the heads that share the joint effect"),
    *c.METRIC_AND_MODE,
    c.number("value", "mean of what its ablation adds, over orders"),
    *c.INTERVAL,
    c.number("std_error", "of the orders drawn; 0: all were taken"),
    c.number("alone", "delta of ablating this head only"),
    c.number("last", "what its ablation adds to that of the others"),
    c.number("joint", "delta of ablating all: the sum of values"),
    c.whole("n_runs", "sets that were run, the empty one included"),
    *c.COUNT_AND_UNIT,
)

REDUNDANCY = c.schema(
    "redundancy",
    c.text("group", "name of the group: a label"),
    c.whole_or_none("layer", "block; none: the whole group"),
    c.whole_or_none("head", "head; none: the whole group"),
    c.text("heads", "all heads of the group"),
    *c.METRIC_AND_MODE,
    c.BASELINE,
    c.number("delta", "ablated - baseline: of this head alone, or of the whole group"),
    *c.INTERVAL,
    c.number("last", "what its ablation adds to that of its twins"),
    *c.ends("the interval of last", "last_"),
    c.number("value", "Shapley value; NaN: not every set was run"),
    c.number("singles", "of a group: sum of its heads' deltas"),
    c.number("control", "mean delta of as many other heads"),
    c.number("control_low", "least delta of these sets"),
    c.number("control_high", "largest delta of these sets"),
    c.whole("n_controls", "sets of other heads that were run"),
    c.number("control_in_layers", "share of them in its layers"),
    c.text("verdict", "needed, redundant, useless or unresolved"),
    *c.COUNT_AND_UNIT,
)

FEEDERS = c.schema(
    "feeders",
    c.whole_or_none("layer", "block; none: several heads together"),
    c.whole_or_none("head", "head; none: several heads together"),
    c.text("heads", "all ablated heads"),
    c.number("previous", "previous-token score of the ablated head"),
    c.whole("target_layer", "block of the induction head"),
    c.whole("target_head", "the induction head within its layer"),
    c.MODE,
    c.number("baseline", "induction score of the target"),
    c.number("ablated", "its score without the heads"),
    c.number("drop", "baseline - ablated"),
    *c.INTERVAL,
    c.number(
        "control",
        "mean drop of heads of the same layers, or else of the nearest, that do not "
        "attend to the previous token; NaN: no such head",
    ),
    c.number("loss", "loss of the second copy", "nats"),
    c.number("loss_delta", "what it rises by", "nats"),
    *c.ends("its interval", "loss_"),
    c.number("loss_control", "mean rise of the same controls"),
    c.number(
        "frozen_loss_delta",
        "what it rises by where all attention stays as it was; NaN: not asked",
        "nats",
    ),
    c.whole("n_controls", "controls: heads, or sets of heads"),
    c.number("q_composition", "Q score less chance, by the weights"),
    c.number("k_composition", "K score less chance, by the weights"),
    c.number("v_composition", "V score less chance, by the weights"),
    c.flag_or_none(
        "feeds",
        "the target loses half of its score or more, and its controls leave it alone; "
        "none: without a control or an interval that cannot be told",
    ),
    *c.rows_counted("query rows scored, over all sequences"),
    version=2,
)

ORDER = (
    c.text("order", "how it was decided which heads go first"),
    c.text("normalise", "how the scores were made comparable; or empty"),
)

PRUNING = c.schema(
    "pruning",
    *ORDER,
    c.whole_or_none("seed", "seed of a random order"),
    c.whole("n_removed", "heads removed so far"),
    c.whole("n_kept", "heads that are left"),
    c.text("removed", "heads removed since the row before"),
    c.text("kept", "all heads that are left"),
    c.METRIC,
    c.text("mode", "what replaces a removed head: zero or mean"),
    c.number("selection", "the metric where the order was chosen; NaN: at random, it was not"),
    c.number("held_out", "the metric on held-out sequences"),
    *c.ends("the interval of held_out"),
    c.number("delta", "held_out - held_out of the whole model"),
    *c.ends("the interval of delta", "delta_"),
    c.whole("n_parameters", "parameters that are left"),
    c.whole("cache_bytes", "bytes of keys and values of one token"),
    c.whole("n_sequences", "held-out sequences"),
    c.UNIT,
)

RANDOM_BAND = c.schema(
    "random_band",
    c.whole("n_removed", "heads removed"),
    c.whole("n_kept", "heads that are left"),
    c.METRIC,
    c.number("low", "least held-out value of the random orders"),
    c.number("median", "their median"),
    c.number("high", "their largest"),
    c.whole("n_orders", "random orders"),
    c.UNIT,
)

REMOVABLE = c.schema(
    "removable",
    *ORDER,
    c.METRIC,
    c.number("within", "what may be lost, as a share of the whole model's"),
    c.number(
        "removable", "most heads removed with held_out within it; of random orders the median"
    ),
    c.number("low", "the same of the worst order"),
    c.number("high", "the same of the best order"),
    c.whole("n_heads", "heads of the whole model"),
    c.whole("n_orders", "orders; 1: this one"),
)

SURVIVORS = c.schema(
    "survivors",
    *c.EACH_HEAD,
    c.text("before", "what the head did in the whole model"),
    c.text("before_strength", "strong or weak; empty: no class"),
    c.number("before_score", "attention on the targets, before"),
    c.text("label", "what it does among the heads that are left"),
    c.text("strength", "strong or weak; empty: no class"),
    c.number("score", "attention on the targets of its class"),
    c.flag("changed", "the two labels differ"),
    *c.COUNT_AND_UNIT,
)

GATES = c.schema(
    "gates",
    c.whole("step", "steps of learning done"),
    *c.EACH_HEAD,
    c.number("log_a", "what is learned: high is open, low is closed"),
    c.number("open_probability", "probability of a gate above 0"),
    c.number("gate", "one gate that represents them all: 0 .. 1"),
    c.number("loss", "loss of the gated model in the step that follows; NaN: none does", "nats"),
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
