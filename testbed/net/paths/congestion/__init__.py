"""Models of congestion-control algorithms: each gives its window size under packet loss.

Each registers under its kernel name in its own module. For user-defined ones see
docs/how-to/plugins/congestion-controls.md.
"""

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, Growth, LossResponse

__all__ = ["CONGESTION_CONTROLS", "CongestionControl", "Growth", "LossResponse"]
