"""Models whose heads are known by construction: what every probe must find, and must not find.

`plant` builds one by hand; `probes.planted.cohort` draws many. They are made in
`heads` (what a head attends to), `one_hot_codes` (codes and maps between them), `planted_models`
(weights) and `patterns` (the expected attention).
"""

from probes.planted.heads import PlantedHead
from probes.planted.patterns import expected_pattern, planted_mass
from probes.planted.planted_models import Planted, plant

__all__ = ["Planted", "PlantedHead", "expected_pattern", "plant", "planted_mass"]
