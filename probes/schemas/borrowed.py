"""What TransformerLens's own tools find: the tables of patching, lens, attribution and edges."""

from probes.schemas import columns as c

PATCHING = c.schema(
    "patching",
    c.text("activation", "what is exchanged: z, resid_pre, ..."),
    c.LAYER,
    c.whole_or_none("head", "head, of k and v the key head; none: the whole layer"),
    c.whole_or_none("pos", "position; none: all of them together"),
    c.number("clean", "answers' logits of the clean run"),
    c.number("corrupt", "answers' logits of the corrupt run"),
    c.number("patched", "answers' logits of the patched corrupt run"),
    c.number("share", "(patched - corrupt) / (clean - corrupt); NaN: the runs do not differ"),
    *c.INTERVAL,
    *c.COUNT_AND_UNIT,
)

LENS = c.schema(
    "lens",
    c.whole("layer", "blocks that have acted; 0: the embeddings alone"),
    c.whole_or_none("pos", "position; none: all rows that count"),
    c.number("log_prob", "ln p(answer), mean over rows", "nats"),
    c.number("top1", "share of rows whose likeliest is the answer"),
    c.number("rank", "tokens likelier than the answer, mean"),
    c.number("entropy", "of what it would say, mean", "nats"),
    *c.INTERVAL,
    *c.rows_counted("rows that were counted"),
)

ATTRIBUTION = c.schema(
    "attribution",
    c.text("part", "embed, pos_embed, head, b_O, mlp or b_U"),
    c.whole_or_none("layer", "block; none: not part of one"),
    c.whole_or_none("head", "head; none: not one"),
    c.number("attribution", "what it adds to the answers' logit"),
    *c.INTERVAL,
    *c.rows_counted("rows that were counted"),
)

EDGES = c.schema(
    "edges",
    c.text("writer", "embed, head or mlp"),
    c.whole_or_none("writer_layer", "its block; none: embed"),
    c.whole_or_none("writer_head", "its head; none: not one"),
    c.text("reader", "q, k or v of a head, mlp or logits"),
    c.whole_or_none("reader_layer", "its block; none: logits"),
    c.whole_or_none("reader_head", "its head; none: not one"),
    c.number("score", "first-order effect on the answers' logits"),
    *c.INTERVAL,
    *c.COUNT_AND_UNIT,
)

BORROWED_SCHEMAS = (PATCHING, LENS, ATTRIBUTION, EDGES)
