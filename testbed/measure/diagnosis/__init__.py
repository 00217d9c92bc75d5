"""Who did it: dumps of all ranks' flight recorders judged, for runs that stand, break or are slow."""

from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import Evidence, read_evidence, read_stalled
from testbed.measure.diagnosis.thresholds import CLOCK_ERROR_S
from testbed.measure.diagnosis.verdicts import MEANINGS, Diagnosis, NaiveVerdict, Verdict

__all__ = [
    "CLOCK_ERROR_S",
    "MEANINGS",
    "Diagnosis",
    "Evidence",
    "NaiveVerdict",
    "Verdict",
    "diagnose",
    "read_evidence",
    "read_stalled",
]
