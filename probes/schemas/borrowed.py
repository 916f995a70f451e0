"""What TransformerLens's own tools find: the tables of patching, lens, attribution and edges."""

from probes.schemas.columns import CI_HIGH, CI_LOW, LAYER, N_SEQUENCES, UNIT, Column, Schema

N_ROWS = Column(name="n_rows", kind="whole", meaning="rows that were counted")

PATCHING = Schema(
    name="patching",
    version=1,
    columns=(
        Column(name="activation", kind="text", meaning="what is exchanged: z, resid_pre, ..."),
        LAYER,
        Column(
            name="head",
            kind="whole or none",
            meaning="head, of k and v the key head; none: the whole layer",
        ),
        Column(name="pos", kind="whole or none", meaning="position; none: all of them together"),
        Column(name="clean", kind="number", meaning="answers' logits of the clean run"),
        Column(name="corrupt", kind="number", meaning="answers' logits of the corrupt run"),
        Column(name="patched", kind="number", meaning="answers' logits of the patched corrupt run"),
        Column(
            name="share",
            kind="number",
            meaning="(patched - corrupt) / (clean - corrupt); NaN: the runs do not differ",
        ),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        UNIT,
    ),
)

LENS = Schema(
    name="lens",
    version=1,
    columns=(
        Column(
            name="layer", kind="whole", meaning="blocks that have acted; 0: the embeddings alone"
        ),
        Column(name="pos", kind="whole or none", meaning="position; none: all rows that count"),
        Column(name="log_prob", kind="number", unit="nats", meaning="ln p(answer), mean over rows"),
        Column(name="top1", kind="number", meaning="share of rows whose likeliest is the answer"),
        Column(name="rank", kind="number", meaning="tokens likelier than the answer, mean"),
        Column(name="entropy", kind="number", unit="nats", meaning="of what it would say, mean"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        N_ROWS,
        UNIT,
    ),
)

ATTRIBUTION = Schema(
    name="attribution",
    version=1,
    columns=(
        Column(name="part", kind="text", meaning="embed, pos_embed, head, b_O, mlp or b_U"),
        Column(name="layer", kind="whole or none", meaning="block; none: not part of one"),
        Column(name="head", kind="whole or none", meaning="head; none: not one"),
        Column(name="attribution", kind="number", meaning="what it adds to the answers' logit"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        N_ROWS,
        UNIT,
    ),
)

EDGES = Schema(
    name="edges",
    version=1,
    columns=(
        Column(name="writer", kind="text", meaning="embed, head or mlp"),
        Column(name="writer_layer", kind="whole or none", meaning="its block; none: embed"),
        Column(name="writer_head", kind="whole or none", meaning="its head; none: not one"),
        Column(name="reader", kind="text", meaning="q, k or v of a head, mlp or logits"),
        Column(name="reader_layer", kind="whole or none", meaning="its block; none: logits"),
        Column(name="reader_head", kind="whole or none", meaning="its head; none: not one"),
        Column(name="score", kind="number", meaning="first-order effect on the answers' logits"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        UNIT,
    ),
)

BORROWED_SCHEMAS = (PATCHING, LENS, ATTRIBUTION, EDGES)
