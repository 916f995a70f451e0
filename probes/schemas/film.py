"""Training as a film: scores over steps, and when each sets in."""

from probes.schemas.columns import HEAD, LAYER, N_SEQUENCES, PROBE, STEP, UNIT, Column, Schema

DYNAMICS = Schema(
    name="dynamics",
    version=1,
    columns=(
        STEP,
        LAYER,
        HEAD,
        PROBE,
        Column(
            name="score", kind="number", meaning="attention mass on the targets, mean over rows"
        ),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        Column(
            name="std_error", kind="number", meaning="standard error of the score, over sequences"
        ),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows that were scored"),
        UNIT,
    ),
)

ONSETS = Schema(
    name="onsets",
    version=1,
    columns=(
        LAYER,
        HEAD,
        PROBE,
        Column(
            name="step", kind="whole", meaning="first step of the film at half of the rise or above"
        ),
        Column(name="step_before", kind="whole", meaning="the step of the film just before"),
        Column(name="score_before", kind="number", meaning="score there"),
        Column(name="score", kind="number", meaning="score at the onset"),
        Column(name="first", kind="number", meaning="score in the first frame"),
        Column(name="highest", kind="number", meaning="highest score of the film"),
        Column(name="last", kind="number", meaning="score in the last frame"),
        UNIT,
    ),
)

FILM_SCHEMAS = (
    DYNAMICS,
    ONSETS,
)
