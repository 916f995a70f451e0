"""Training as a film: scores over steps, and when each sets in."""

from probes.schemas import columns as c

DYNAMICS = c.schema(
    "dynamics",
    c.STEP,
    *c.EACH_HEAD,
    c.PROBE,
    c.SCORE,
    *c.CHANCE_AND_KAPPA,
    c.number("std_error", "standard error of the score, over sequences"),
    *c.rows_counted("query rows that were scored"),
)

ONSETS = c.schema(
    "onsets",
    *c.EACH_HEAD,
    c.PROBE,
    c.whole("step", "first step of the film at half of the rise or above"),
    c.whole("step_before", "the step of the film just before"),
    c.number("score_before", "score there"),
    c.number("score", "score at the onset"),
    c.number("first", "score in the first frame"),
    c.number("highest", "highest score of the film"),
    c.number("last", "score in the last frame"),
    c.UNIT,
)

FILM_SCHEMAS = (DYNAMICS, ONSETS)
