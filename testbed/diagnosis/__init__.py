"""Who did it: dumps of all ranks' flight recorders judged, for runs that stand, break or are slow."""

from testbed.diagnosis.judging import diagnose
from testbed.diagnosis.limits import CLOCK_ERROR_S
from testbed.diagnosis.reading import FLIGHT_FOLDER, Evidence, flight_folder, read_evidence
from testbed.diagnosis.verdicts import MEANINGS, Diagnosis, Naive, Verdict

__all__ = [
    "CLOCK_ERROR_S",
    "FLIGHT_FOLDER",
    "MEANINGS",
    "Diagnosis",
    "Evidence",
    "Naive",
    "Verdict",
    "diagnose",
    "flight_folder",
    "read_evidence",
]
