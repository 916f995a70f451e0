"""What a head looks at and what it writes: the tables of scores and facts."""

from probes.schemas.columns import (
    CI_HIGH,
    CI_LOW,
    HEAD,
    LAYER,
    N_SEQUENCES,
    PROBE,
    UNIT,
    Column,
    Schema,
)

HEADS = Schema(
    name="heads",
    version=2,
    columns=(
        LAYER,
        HEAD,
        Column(name="probe", kind="text", meaning="name of the probe"),
        Column(
            name="score", kind="number", meaning="attention mass on the targets, mean over rows"
        ),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        CI_LOW,
        CI_HIGH,
        Column(
            name="control",
            kind="number",
            meaning="mass on the same cells of control tokens; NaN: none were given",
        ),
        N_SEQUENCES,
        Column(
            name="n_rows", kind="whole", meaning="query rows that were scored, over all sequences"
        ),
        UNIT,
    ),
)

ENTROPY = Schema(
    name="entropy",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="query_pos", kind="whole", meaning="position of the query row"),
        Column(name="entropy", kind="number", unit="nats", meaning="entropy of the row"),
        Column(name="normalised", kind="number", meaning="entropy / ln(keys seen)"),
        Column(name="effective_keys", kind="number", unit="keys", meaning="exp(entropy)"),
        Column(name="sink_mass", kind="number", meaning="probability of key 0"),
        Column(
            name="sink_free",
            kind="number",
            unit="nats",
            meaning="entropy with key 0 hidden, over the rows that are not silent",
        ),
        Column(name="sink_free_normalised", kind="number", meaning="sink_free / ln(keys seen - 1)"),
        Column(
            name="silent",
            kind="number",
            meaning="share of sequences whose row leaves less than 0.001 beside key 0",
        ),
        N_SEQUENCES,
        UNIT,
    ),
)

ATTENTION = Schema(
    name="attention",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="query_pos", kind="whole", meaning="row"),
        Column(name="key_pos", kind="whole", meaning="column"),
        Column(name="query_token", kind="text", meaning="token of the row"),
        Column(name="key_token", kind="text", meaning="token of the column"),
        Column(name="probability", kind="number", meaning="attention of the row on the column"),
        Column(name="is_source", kind="flag", meaning="the column holds the row's answer"),
    ),
)

SPECTRUM = Schema(
    name="spectrum",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="offset", kind="whole", meaning="how far back the key is; 0: the token itself"),
        Column(name="mass", kind="number", meaning="attention at that distance, mean over rows"),
        Column(name="chance", kind="number", meaning="mass of a head that spreads evenly"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows, the same for all distances"),
        UNIT,
    ),
)

PEAKS = Schema(
    name="peaks",
    version=1,
    columns=(
        LAYER,
        HEAD,
        PROBE,
        Column(name="argmax_share", kind="number", meaning="rows whose favourite key is a target"),
        CI_LOW,
        CI_HIGH,
        Column(name="p10", kind="number", meaning="mass on targets that 9 rows in 10 exceed"),
        Column(name="largest", kind="number", meaning="largest probability of a row, mean"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows that were scored"),
        UNIT,
    ),
)

DISTANCES = Schema(
    name="distances",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="other_layer", kind="whole", meaning="block of the head compared with"),
        Column(name="other_head", kind="whole", meaning="that head within its layer"),
        Column(
            name="distance", kind="number", unit="nats", meaning="Jensen-Shannon, mean over rows"
        ),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows that see more than one key"),
        UNIT,
    ),
)

VALUES = Schema(
    name="values",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="sink_mass", kind="number", meaning="probability of key 0, mean over rows"),
        Column(
            name="sink_value_share", kind="number", meaning="part of the output read from key 0"
        ),
        Column(name="output_norm", kind="number", meaning="length of what it writes, mean"),
        Column(name="layer_share", kind="number", meaning="output_norm / its layer's median"),
        Column(name="silent", kind="flag", meaning="layer_share below 0.01, or nothing written"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows after the first"),
        UNIT,
    ),
)

COPYING = Schema(
    name="copying",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="eigenvalue", kind="number", meaning="OV eigenvalue score, -1 .. 1"),
        Column(name="copying", kind="number", meaning="C: logits raised of what it looks at"),
        Column(name="top5", kind="number", meaning="tokens that come out among the 5 likeliest"),
        Column(name="top5_chance", kind="number", meaning="5 / d_vocab"),
        N_SEQUENCES,
        Column(name="n_tokens", kind="whole", meaning="tokens of the sample"),
        UNIT,
    ),
)

HEAD_SCHEMAS = (
    HEADS,
    ENTROPY,
    ATTENTION,
    SPECTRUM,
    PEAKS,
    DISTANCES,
    VALUES,
    COPYING,
)
