"""When a message is whole by each way to mend losses: the closed forms' crossovers beside the SDR-RDMA paper's.

    python benchmarks/datagram_model.py              # 400 Gbit/s, 25 ms, packets of 4 KiB
    python benchmarks/datagram_model.py --simulated  # the same forms and the state machines, on a smaller path

Both print tables of docs/evidence/datagram.md.

The paper (arXiv:2505.05366) counts until its sender knows: half a round trip more than a message takes to be whole.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable

from testbed.comm.transport.datagram.controls import Limits
from testbed.comm.transport.datagram.controls.base import Window
from testbed.net.paths.datagram_recovery import RecoveryForm
from tests.datagram_channel import Channel, Fate

RECOVERIES = ("go_back_n", "selective_repeat", "nack", "erasure", "xor")
RATE_BPS, ROUND_TRIP_S, PACKET_BYTES = 400e9, 0.025, 4096
SIZES = {"128 KiB": 1 << 17, **{f"{size} MiB": size << 20 for size in (1, 8, 64, 128, 1024, 8192)}}
LOSSES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
TAIL = 0.999


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated", action="store_true")
    if parser.parse_args().simulated:
        simulated()
    else:
        table("mean", lambda form: form.mean_s)
        table("p99.9", lambda form: form.quantile_s(TAIL))
        crossovers()


def form_of(recovery: str, size_bytes: int, loss: float) -> RecoveryForm:
    """On the paper's path."""
    packets = -(-size_bytes // PACKET_BYTES)
    return RecoveryForm(recovery, packets, PACKET_BYTES * 8 / RATE_BPS, ROUND_TRIP_S, loss)


def known_s(form: RecoveryForm, whole_s: float) -> float:
    """When the sender knows."""
    return whole_s + form.round_trip_s / 2


def table(what: str, of: Callable[[RecoveryForm], float]) -> None:
    """How many times as long as erasure each takes."""
    print(f"\n{what}, times erasure's")
    print("| message | loss | " + " | ".join(RECOVERIES) + " |")
    for name, size_bytes in SIZES.items():
        for loss in LOSSES:
            forms = {recovery: form_of(recovery, size_bytes, loss) for recovery in RECOVERIES}
            took = {recovery: known_s(form, of(form)) for recovery, form in forms.items()}
            cells = [f"{took[recovery] / took['erasure']:.2f}" for recovery in RECOVERIES]
            print(f"| {name} | {loss:g} | " + " | ".join(cells) + " |")


def crossovers() -> None:
    """From which loss on erasure is ahead of selective repeat, by size, and up to which size, by loss; on average."""
    print("\nerasure is ahead of selective repeat on average")
    for name, size_bytes in SIZES.items():
        found = next((loss for loss in fine(-8, -1) if ahead(size_bytes, loss)), None)
        print(f"  {name}: from a loss of {found:.1e} on" if found else f"  {name}: never")
    for loss in LOSSES:
        sizes = [1 << power for power in range(12, 37) if ahead(1 << power, loss)]
        print(
            f"  loss {loss:g}: " + (f"{min(sizes) >> 10} KiB to {max(sizes) >> 20} MiB" if sizes else "never")
        )


def ahead(size_bytes: int, loss: float) -> bool:
    """Whether erasure is, by a tenth."""
    erasure, repeat = (form_of(name, size_bytes, loss) for name in ("erasure", "selective_repeat"))
    return known_s(erasure, erasure.mean_s) < 0.9 * known_s(repeat, repeat.mean_s)


def fine(least: int, most: int) -> list[float]:
    """Ten steps a decade."""
    return [10 ** (tenth / 10) for tenth in range(10 * least, 10 * most)]


def losing(loss: float, seed: int) -> Fate:
    """Each sending is lost by itself."""
    chance = random.Random(seed)
    return lambda item, times: chance.random() < loss


def simulated(messages: int = 60) -> None:
    """The state machines' mean, and the closed forms'."""
    limits = Limits(1000, window_bytes=115_000, line_bps=80e6)
    print("| recovery | packets | loss | simulated | closed form | ratio |")
    for recovery in RECOVERIES:
        for packets, loss in ((64, 0.01), (640, 0.001), (1280, 0.01)):
            took = [
                Channel(recovery, control=Window, limits=limits, loses=losing(loss, seed)).transfer(packets)
                for seed in range(messages)
            ]
            form = RecoveryForm(recovery, packets, 1e-4, 0.0101, loss)
            mean_s = statistics.mean(took)
            cells = f"{mean_s * 1e3:.1f} ms | {form.mean_s * 1e3:.1f} ms | {mean_s / form.mean_s:.3f}"
            print(f"| {recovery} | {packets} | {loss:g} | {cells} |")


if __name__ == "__main__":
    main()
