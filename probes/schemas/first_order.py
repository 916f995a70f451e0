"""What would break without a head, by one gradient: the tables of estimates, and of their worth."""

from probes.schemas.columns import CI_HIGH, CI_LOW, HEAD, LAYER, N_SEQUENCES, UNIT, Column, Schema

IMPORTANCE = Schema(
    name="importance",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="reduce", kind="text", meaning="absolute value of each example, token or all"),
        Column(name="normalise", kind="text", meaning="by nothing, its layer or its parameters"),
        Column(name="importance", kind="number", meaning="|d metric / d gate|, added up by reduce"),
        CI_LOW,
        CI_HIGH,
        Column(name="gradient", kind="number", meaning="d metric / d gate, with its sign"),
        Column(name="gradient_ci_low", kind="number", meaning="lower end of its interval"),
        Column(name="gradient_ci_high", kind="number", meaning="upper end of its interval"),
        N_SEQUENCES,
        UNIT,
    ),
)

ESTIMATES = Schema(
    name="estimates",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="node", kind="text", meaning="what is exchanged: z, or q, k or v of the head"),
        Column(name="mode", kind="text", meaning="by what: zero, mean, resample, or an example"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="estimate", kind="number", meaning="first order of ablated - baseline"),
        CI_LOW,
        CI_HIGH,
        Column(
            name="grad_drop",
            kind="number",
            meaning="its size where no gradient passes one layer, mean over layers; NaN: not asked",
        ),
        N_SEQUENCES,
        UNIT,
    ),
)

FIRST_ORDER = Schema(
    name="first_order",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="baseline", kind="number", meaning="the metric of the whole model"),
        Column(name="ablated", kind="number", meaning="the metric without the head"),
        Column(name="delta", kind="number", meaning="ablated - baseline, exact"),
        CI_LOW,
        CI_HIGH,
        Column(name="estimate", kind="number", meaning="of delta, by attribution patching"),
        Column(name="estimate_ci_low", kind="number", meaning="lower end of its interval"),
        Column(name="estimate_ci_high", kind="number", meaning="upper end of its interval"),
        Column(name="grad_drop", kind="number", meaning="GradDrop; NaN: not asked for"),
        Column(name="importance", kind="number", meaning="|d metric / d gate| by example"),
        Column(name="importance_token", kind="number", meaning="the same by token"),
        Column(name="importance_batch", kind="number", meaning="the same of the whole batch"),
        N_SEQUENCES,
        UNIT,
    ),
)

AGREEMENT = Schema(
    name="agreement",
    version=1,
    columns=(
        Column(name="estimator", kind="text", meaning="what ranks the heads"),
        Column(name="compared_with", kind="text", meaning="the exact delta, or its size"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="spearman", kind="number", meaning="rank correlation over heads"),
        CI_LOW,
        CI_HIGH,
        Column(name="top", kind="whole", meaning="heads of the largest size that are compared"),
        Column(name="shared", kind="whole", meaning="heads that are among the top of both"),
        Column(name="shared_chance", kind="number", meaning="of two random picks: top^2 / heads"),
        Column(name="n_heads", kind="whole", meaning="heads that are ranked"),
        N_SEQUENCES,
        UNIT,
    ),
)

SELF_REPAIR = Schema(
    name="self_repair",
    version=1,
    columns=(
        LAYER,
        Column(name="head", kind="whole or none", meaning="head; none: several together"),
        Column(name="heads", kind="text", meaning="all heads that go"),
        Column(name="metric", kind="text", meaning="name of what is measured"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero, mean or resample"),
        Column(name="norm", kind="text", meaning="the last norm's scale: free, or frozen"),
        Column(name="baseline", kind="number", meaning="the metric of the whole model"),
        Column(name="direct", kind="number", meaning="how much worse by the head's writing alone"),
        Column(name="total", kind="number", meaning="how much worse once all has reacted"),
        Column(name="repair", kind="number", meaning="direct - total: what others make up for"),
        Column(name="ci_low", kind="number", meaning="lower end of the interval of repair"),
        Column(name="ci_high", kind="number", meaning="upper end of the interval of repair"),
        N_SEQUENCES,
        UNIT,
    ),
)

FIRST_ORDER_SCHEMAS = (IMPORTANCE, ESTIMATES, FIRST_ORDER, AGREEMENT, SELF_REPAIR)
