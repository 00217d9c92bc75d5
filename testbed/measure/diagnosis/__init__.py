"""Who did it: dumps of all ranks' flight recorders judged, for runs that stand, break or are slow."""

from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dump_reader import Evidence, read_evidence, read_stalled
from testbed.measure.diagnosis.limits import CLOCK_ERROR_S
from testbed.measure.diagnosis.verdicts import MEANINGS, Diagnosis, Naive, Verdict

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
