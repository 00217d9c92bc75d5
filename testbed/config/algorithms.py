"""Names of collectives' algorithms, as `testbed.collectives` has them; "auto" takes one by size and buildings."""

from __future__ import annotations

ALGORITHMS = (
    "ring",
    "bidirectional_ring",
    "halving_doubling",
    "double_tree",
    "hierarchical",
    "hierarchical_tree",
    "auto",
)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v")
GATHERING = (
    *("auto", "ring", "bidirectional_ring", "near_first", "far_first", "bruck", "direct", "hierarchical"),
)
ALGORITHMS_OF = {
    "all_reduce": ALGORITHMS,
    "all_gather": GATHERING,
    "reduce_scatter": GATHERING,
    "all_to_all": ("auto", "direct", "pairwise", "hierarchical"),
    "all_to_all_v": ("auto", "late_counts", "padded"),
}
