"""What would break without a head, by one gradient: the tables of estimates, and of their worth."""

from probes.schemas import columns as c

IMPORTANCE = c.schema(
    "importance",
    *c.EACH_HEAD,
    c.METRIC,
    c.text("reduce", "absolute value of each example, token or all"),
    c.text("normalise", "by nothing, its layer or its parameters"),
    c.number("importance", "|d metric / d gate|, added up by reduce"),
    *c.INTERVAL,
    c.number("gradient", "d metric / d gate, with its sign"),
    *c.ends("its interval", "gradient_"),
    *c.COUNT_AND_UNIT,
)

ESTIMATES = c.schema(
    "estimates",
    *c.EACH_HEAD,
    c.text("node", "what is exchanged: z, or q, k or v of the head"),
    c.text("mode", "by what: zero, mean, resample, or an example"),
    c.METRIC,
    c.number("estimate", "first order of ablated - baseline"),
    *c.INTERVAL,
    c.number(
        "grad_drop", "its size where no gradient passes one layer, mean over layers; NaN: not asked"
    ),
    *c.COUNT_AND_UNIT,
)

FIRST_ORDER = c.schema(
    "first_order",
    *c.EACH_HEAD,
    *c.METRIC_AND_MODE,
    c.BASELINE,
    c.number("ablated", "the metric without the head"),
    c.number("delta", "ablated - baseline, exact"),
    *c.INTERVAL,
    c.number("estimate", "of delta, by attribution patching"),
    *c.ends("its interval", "estimate_"),
    c.number("grad_drop", "GradDrop; NaN: not requested"),
    c.number("importance", "|d metric / d gate| by example"),
    c.number("importance_token", "the same by token"),
    c.number("importance_batch", "the same of the whole batch"),
    *c.COUNT_AND_UNIT,
)

AGREEMENT = c.schema(
    "agreement",
    c.text("estimator", "what ranks the heads"),
    c.text("compared_with", "the exact delta, or its size"),
    *c.METRIC_AND_MODE,
    c.number("spearman", "rank correlation over heads"),
    *c.INTERVAL,
    c.whole("top", "heads of the largest size that are compared"),
    c.whole("shared", "heads that are among the top of both"),
    c.number("shared_chance", "of two random picks: top^2 / heads"),
    c.whole("n_heads", "heads that are ranked"),
    *c.COUNT_AND_UNIT,
)

SELF_REPAIR = c.schema(
    "self_repair",
    c.LAYER,
    c.whole_or_none("head", "head; none: several together"),
    c.text("heads", "all heads that go"),
    *c.METRIC_AND_MODE,
    c.text("norm", "the last norm's scale: free, or frozen"),
    c.BASELINE,
    c.number("direct", "how much worse by the head's writing alone"),
    c.number("total", "how much worse once all has reacted"),
    c.number("repair", "direct - total: what others make up for"),
    *c.ends("the interval of repair"),
    *c.COUNT_AND_UNIT,
)

FIRST_ORDER_SCHEMAS = (IMPORTANCE, ESTIMATES, FIRST_ORDER, AGREEMENT, SELF_REPAIR)
