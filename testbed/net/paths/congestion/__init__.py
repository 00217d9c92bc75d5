"""What the model knows of congestion controls: each says how large its window is while packets are lost.

Each registers under its kernel name in the module where it stands. Somebody's own is a class in a file of its own: see
docs/how-to/plugins/congestion-controls.md.
"""

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, Growth, LossResponse

__all__ = ["CONGESTION_CONTROLS", "CongestionControl", "Growth", "LossResponse"]
