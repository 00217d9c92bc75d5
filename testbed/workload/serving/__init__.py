"""Serving: arrival of requests, batching, and what nodes of accelerator cards compute and send for them."""

from testbed.workload.serving.costs import Card, ServingProblem, card_of
from testbed.workload.serving.frontend import Batch, Node, draw_arrivals, form_batches, read_arrivals
from testbed.workload.serving.request_plan import Answer, Serving, plan_serving

__all__ = [
    "Answer",
    "Batch",
    "Card",
    "Node",
    "Serving",
    "ServingProblem",
    "card_of",
    "draw_arrivals",
    "form_batches",
    "plan_serving",
    "read_arrivals",
]
