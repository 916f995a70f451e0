"""Models whose heads are known by construction: what every probe must find, and must not find.

`plant` builds one by hand; `probes.planted.cohort` draws many. How they are made is told in
`heads` (what a head looks at), `codes` (one-hot codes and maps between them), `building` (weights)
and `patterns` (the attention that must come out).
"""

from probes.planted.heads import PlantedHead
from probes.planted.patterns import expected_pattern, planted_mass
from probes.planted.planted_models import Planted, plant

__all__ = ["Planted", "PlantedHead", "expected_pattern", "plant", "planted_mass"]
