"""Who did it: dumps of all ranks' flight recorders judged, for runs that stand, break or are slow."""

from testbed.diagnosis.judging import diagnose
from testbed.diagnosis.limits import CLOCK_ERROR_S
from testbed.diagnosis.reading import Evidence, read_evidence, read_stalled
from testbed.diagnosis.verdicts import MEANINGS, Diagnosis, Naive, Verdict

__all__ = [
    "CLOCK_ERROR_S",
    "MEANINGS",
    "Diagnosis",
    "Evidence",
    "Naive",
    "Verdict",
    "diagnose",
    "read_evidence",
    "read_stalled",
]
