"""Diagnosis of runs that hang, fail or are slow, from the flight recorder dumps of all ranks."""

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
