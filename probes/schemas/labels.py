"""What a head is called, on which evidence, and what it is in truth where it was planted."""

from probes.schemas import columns as c

EFFECT = (
    c.number("control", "the same cells where the content is another"),
    c.number("effect", "what meets the threshold: score less control"),
    *c.ends("the effect's 95 % interval"),
    *c.CHANCE_AND_KAPPA,
)

TEST = (
    c.number("p_value", "sign flips over sequences, two-sided"),
    c.number("q_value", "Benjamini-Hochberg over all heads and tests"),
    c.number("p_max_t", "Westfall-Young over all heads and tests"),
)

LABELS = c.schema(
    "labels",
    *c.EACH_HEAD,
    c.text("label", "what the head does: a class, or none"),
    c.text("strength", "strong or weak; empty where label is no class"),
    c.text("probe", "class of the numbers: the label, or the nearest"),
    c.number("score", "attention mass on that class's targets"),
    *EFFECT,
    c.text("tested", "content class of the three values that follow"),
    *TEST,
    c.text("runner_up", "class that comes next"),
    c.number("runner_up_score", "its effect; of first, on probe's rows"),
    c.text("mixture", "classes that share the head, with their mass"),
    c.number("sink_mass", "probability of key 0, mean over rows"),
    c.number("sink_value_share", "what key 0 adds to the output norm"),
    c.number("entropy_normalised", "entropy / ln(keys seen)"),
    c.number("sink_free_normalised", "the same with key 0 hidden"),
    c.flag("silent", "writes less than 1 % of its layer's median"),
    c.text("redundant_with", "heads of one label that look alike"),
    c.number("eigenvalue", "OV eigenvalue score, -1 .. 1"),
    c.number("argmax_share", "rows that look most at the targets"),
    c.number("ladder_before", "D(-1): what preceded the earlier copy"),
    c.number("ladder_same", "D(0): the earlier copy"),
    c.number("ladder_after", "D(+1): what followed the earlier copy"),
    c.number("stripe_early", "score on the source of the answer, read one row early"),
    c.number("stripe", "score of sources; NaN: no task"),
    c.number("stripe_plus_1", "score of sources_plus_1"),
    c.number("stripe_plus_2", "score of sources_plus_2"),
    c.number("half_1", "effect over the first half of the sequences"),
    c.number("half_2", "effect over the second half"),
    c.N_SEQUENCES,
    c.whole("n_rows", "rows scored, over all sequences"),
    c.text("rows", "which rows of which sequences were scored"),
    c.text("reason", "why this label, in a sentence"),
    c.UNIT,
    version=2,
)

EVIDENCE = c.schema(
    "evidence",
    *c.EACH_HEAD,
    c.text("probe", "class that is asked about"),
    c.number("score", "attention mass on the class's targets"),
    *EFFECT,
    c.number("sink_mass", "probability of key 0 on the class's rows"),
    *TEST,
    c.text("cut", "the threshold that the lower end exceeds: strong or weak"),
    c.flag("valid", "threshold, significance and shape hold: a possible label"),
    c.text("why_not", "the first condition that fails"),
    *c.rows_counted("rows scored, over all sequences"),
)

PLANTED = c.schema(
    "planted",
    *c.EACH_HEAD,
    c.text("truth", "what the head is, and must be called"),
    c.text("kind", "how it is built: see probes.planted.heads"),
    c.text("variant", "what it is an example of"),
    c.number("beta", "its gain: a target scores beta, other keys 0"),
    c.whole("distance", "steps by which it looks aside"),
    c.text("parts", "kinds that a mixed head is made of, with shares"),
    c.flag("silent", "it writes nothing"),
    c.text("redundant_with", "heads of its layer that look alike"),
)

LABEL_SCHEMAS = (LABELS, EVIDENCE, PLANTED)
