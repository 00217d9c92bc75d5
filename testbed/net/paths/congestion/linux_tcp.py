"""Constants by which Linux's TCP starts, acknowledges and detects losses, whatever its congestion control."""

from testbed.net.fabric.plan import LINUX_RTO_MIN_MS

INITIAL_WINDOW_PACKETS = 10  # RFC 6928
MIN_WINDOW_PACKETS = 2.0
DUP_THRESHOLD = 3  # packets after a lost one that reveal the loss at once
REORDERING = 0.25  # RFC 8985's reordering window, in round trips
# packets per acknowledgement, and the delayed acknowledgement's timer (`TCP_DELACK_MIN`)
PACKETS_PER_ACK, DELAYED_ACK_S = 2, 0.04
MIN_RTO_S = LINUX_RTO_MIN_MS / 1000  # beyond a round trip
