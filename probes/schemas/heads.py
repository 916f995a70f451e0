"""What a head attends to and what it writes: the tables of scores and facts."""

from probes.schemas import columns as c

HEADS = c.schema(
    "heads",
    *c.EACH_HEAD,
    c.PROBE,
    c.SCORE,
    *c.CHANCE_AND_KAPPA,
    *c.INTERVAL,
    c.number("control", "mass on the same cells of control tokens; NaN: none were given"),
    *c.rows_counted("query rows that were scored, over all sequences"),
    version=2,
)

ENTROPY = c.schema(
    "entropy",
    *c.EACH_HEAD,
    c.whole("query_pos", "position of the query row"),
    c.number("entropy", "entropy of the row", "nats"),
    c.number("normalised", "entropy / ln(keys seen)"),
    c.number("effective_keys", "exp(entropy)", "keys"),
    c.number("sink_mass", "probability of key 0"),
    c.number("sink_free", "entropy with key 0 hidden, over the rows that are not silent", "nats"),
    c.number("sink_free_normalised", "sink_free / ln(keys seen - 1)"),
    c.number("silent", "share of sequences whose row leaves less than 0.001 beside key 0"),
    *c.COUNT_AND_UNIT,
)

ATTENTION = c.schema(
    "attention",
    *c.EACH_HEAD,
    c.whole("query_pos", "row"),
    c.whole("key_pos", "column"),
    c.text("query_token", "token of the row"),
    c.text("key_token", "token of the column"),
    c.number("probability", "attention of the row on the column"),
    c.flag("is_source", "the column holds the row's answer"),
)

SPECTRUM = c.schema(
    "spectrum",
    *c.EACH_HEAD,
    c.whole("offset", "how far back the key is; 0: the token itself"),
    c.number("mass", "attention at that distance, mean over rows"),
    c.number("chance", "mass of a head that spreads evenly"),
    *c.INTERVAL,
    *c.rows_counted("query rows, the same for all distances"),
)

PEAKS = c.schema(
    "peaks",
    *c.EACH_HEAD,
    c.PROBE,
    c.number("argmax_share", "rows whose favourite key is a target"),
    *c.INTERVAL,
    c.number("p10", "mass on targets that 9 rows in 10 exceed"),
    c.number("largest", "largest probability of a row, mean"),
    *c.rows_counted("query rows that were scored"),
)

DISTANCES = c.schema(
    "distances",
    *c.EACH_HEAD,
    c.whole("other_layer", "block of the head compared with"),
    c.whole("other_head", "that head within its layer"),
    c.number("distance", "Jensen-Shannon, mean over rows", "nats"),
    *c.rows_counted("query rows that see more than one key"),
)

VALUES = c.schema(
    "values",
    *c.EACH_HEAD,
    c.number("sink_mass", "probability of key 0, mean over rows"),
    c.number("sink_value_share", "part of the output read from key 0"),
    c.number("output_norm", "length of what it writes, mean"),
    c.number("layer_share", "output_norm / its layer's median"),
    c.flag("silent", "layer_share below 0.01, or nothing written"),
    *c.rows_counted("query rows after the first"),
)

COPYING = c.schema(
    "copying",
    *c.EACH_HEAD,
    c.number("eigenvalue", "OV eigenvalue score, -1 .. 1"),
    c.number("copying", "C: raises the logits of what it attends to"),
    c.number("top5", "tokens that come out among the 5 likeliest"),
    c.number("top5_chance", "5 / d_vocab"),
    c.N_SEQUENCES,
    c.whole("n_tokens", "tokens of the sample"),
    c.UNIT,
)

HEAD_SCHEMAS = (HEADS, ENTROPY, ATTENTION, SPECTRUM, PEAKS, DISTANCES, VALUES, COPYING)
