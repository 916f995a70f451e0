"""What breaks without a head: the tables of ablations."""

from probes.schemas.columns import CI_HIGH, CI_LOW, HEAD, LAYER, N_SEQUENCES, UNIT, Column, Schema

ABLATION = Schema(
    name="ablation",
    version=1,
    columns=(
        LAYER,
        Column(name="head", kind="whole or none", meaning="ablated head; none: several, as a whole layer"),
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

CAUSE_SCHEMAS = (
    ABLATION,
    COMPOSITION,
)
