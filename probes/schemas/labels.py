"""What a head is called, on which evidence, and what it is in truth where it was planted."""

from probes.schemas.columns import HEAD, LAYER, N_SEQUENCES, UNIT, Column, Schema

LABELS = Schema(
    name="labels",
    version=2,
    columns=(
        LAYER,
        HEAD,
        Column(name="label", kind="text", meaning="what the head does: a class, or none"),
        Column(
            name="strength", kind="text", meaning="strong or weak; empty where label is no class"
        ),
        Column(
            name="probe", kind="text", meaning="class of the numbers: the label, or the nearest"
        ),
        Column(name="score", kind="number", meaning="attention mass on that class's targets"),
        Column(
            name="control", kind="number", meaning="the same cells where the content is another"
        ),
        Column(name="effect", kind="number", meaning="what meets the cut: score, less its control"),
        Column(name="ci_low", kind="number", meaning="lower end of the effect's 95 % interval"),
        Column(name="ci_high", kind="number", meaning="upper end of the effect's 95 % interval"),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        Column(name="tested", kind="text", meaning="content class of the three values that follow"),
        Column(name="p_value", kind="number", meaning="sign flips over sequences, two-sided"),
        Column(
            name="q_value", kind="number", meaning="Benjamini-Hochberg over all heads and tests"
        ),
        Column(name="p_max_t", kind="number", meaning="Westfall-Young over all heads and tests"),
        Column(name="runner_up", kind="text", meaning="class that comes next"),
        Column(
            name="runner_up_score", kind="number", meaning="its effect; of first, on probe's rows"
        ),
        Column(name="mixture", kind="text", meaning="classes that share the head, with their mass"),
        Column(name="sink_mass", kind="number", meaning="probability of key 0, mean over rows"),
        Column(
            name="sink_value_share", kind="number", meaning="what key 0 adds to the output norm"
        ),
        Column(name="entropy_normalised", kind="number", meaning="entropy / ln(keys seen)"),
        Column(name="sink_free_normalised", kind="number", meaning="the same with key 0 hidden"),
        Column(name="silent", kind="flag", meaning="writes less than 1 % of its layer's median"),
        Column(name="redundant_with", kind="text", meaning="heads of one label that look alike"),
        Column(name="eigenvalue", kind="number", meaning="OV eigenvalue score, -1 .. 1"),
        Column(name="argmax_share", kind="number", meaning="rows that look most at the targets"),
        Column(
            name="ladder_before", kind="number", meaning="D(-1): what preceded the earlier copy"
        ),
        Column(name="ladder_same", kind="number", meaning="D(0): the earlier copy"),
        Column(name="ladder_after", kind="number", meaning="D(+1): what followed the earlier copy"),
        Column(name="stripe_early", kind="number", meaning="source of the answer one row early"),
        Column(name="stripe", kind="number", meaning="source of the answer; NaN: no task"),
        Column(name="stripe_plus_1", kind="number", meaning="source of the answer one row late"),
        Column(name="stripe_plus_2", kind="number", meaning="source of the answer two rows late"),
        Column(name="half_1", kind="number", meaning="effect over the first half of the sequences"),
        Column(name="half_2", kind="number", meaning="effect over the second half"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="rows scored, over all sequences"),
        Column(name="rows", kind="text", meaning="which rows of which sequences were scored"),
        Column(name="reason", kind="text", meaning="why this label, in a sentence"),
        UNIT,
    ),
)

EVIDENCE = Schema(
    name="evidence",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="probe", kind="text", meaning="class that is asked about"),
        Column(name="score", kind="number", meaning="attention mass on the class's targets"),
        Column(
            name="control", kind="number", meaning="the same cells where the content is another"
        ),
        Column(name="effect", kind="number", meaning="what meets the cut: score, less its control"),
        Column(name="ci_low", kind="number", meaning="lower end of the effect's 95 % interval"),
        Column(name="ci_high", kind="number", meaning="upper end of the effect's 95 % interval"),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        Column(name="sink_mass", kind="number", meaning="probability of key 0 on the class's rows"),
        Column(name="p_value", kind="number", meaning="sign flips over sequences, two-sided"),
        Column(
            name="q_value", kind="number", meaning="Benjamini-Hochberg over all heads and tests"
        ),
        Column(name="p_max_t", kind="number", meaning="Westfall-Young over all heads and tests"),
        Column(
            name="cut", kind="text", meaning="the cut that the lower end clears: strong or weak"
        ),
        Column(
            name="valid", kind="flag", meaning="cut, significance and shape hold: a possible label"
        ),
        Column(name="why_not", kind="text", meaning="the first condition that fails"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="rows scored, over all sequences"),
        UNIT,
    ),
)

PLANTED = Schema(
    name="planted",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="truth", kind="text", meaning="what the head is, and must be called"),
        Column(name="kind", kind="text", meaning="how it is built: see probes.planted.heads"),
        Column(name="variant", kind="text", meaning="what it is an example of"),
        Column(name="beta", kind="number", meaning="its gain: a target scores beta, other keys 0"),
        Column(name="distance", kind="whole", meaning="steps by which it looks aside"),
        Column(
            name="parts", kind="text", meaning="kinds that a mixed head is made of, with shares"
        ),
        Column(name="silent", kind="flag", meaning="it writes nothing"),
        Column(name="redundant_with", kind="text", meaning="heads of its layer that look alike"),
    ),
)

LABEL_SCHEMAS = (
    LABELS,
    EVIDENCE,
    PLANTED,
)
