"""Tokens, sequences and model FLOPs utilisation in words, for beside a step's time."""

from __future__ import annotations

from testbed.measure.results.committed_work import Work
from testbed.measure.results.rates import Rates, rates_of
from testbed.measure.results.result import Variant
from testbed.prediction.step_flops import StepWork
from testbed.show.report.formatting import per_second_text, percent_text, time_text


def rates_words(rates: Rates) -> str:
    """Such as: 32,760 tokens/s, 4 sequences/s, MFU 20.1 %."""
    said = [f"{per_second_text(rates.tokens_per_s)} tokens/s"]
    if rates.sequences_per_s:  # which searches of before did not count
        said.append(f"{per_second_text(rates.sequences_per_s)} sequences/s")
    return ", ".join([*said, f"MFU {percent_text(rates.mfu)}"])


def variant_words(variant: Variant) -> str:
    """A sentence with a variant's rates; empty where nobody may use its figures, or its step times say it all."""
    done = variant.done
    if variant.verdict.status == "untrusted" or not (variant.rates or done.with_stalls):
        return ""
    rates = (
        rates_words(variant.rates) if variant.rates else f"{per_second_text(done.per_second)} {done.unit}/s"
    )
    return f"{variant.name}: {rates}{elapsed_words(done)}."


def elapsed_words(done: Work) -> str:
    """Over which time a variant's rates are, where that is more than its steps; empty elsewhere."""
    if not done.with_stalls:
        return ""
    lacking = f", {done.partial_steps} of its steps without all replicas" if done.partial_steps else ""
    return f", over {time_text(done.elapsed_s)} with all stalls{lacking}"


def work_words(name: str, work: StepWork | None, step_time_s: float) -> str:
    """The same of a step that is predicted to take so long; empty where it trains no model."""
    rates = rates_of(work, step_time_s)
    return f"{name}: {rates_words(rates)}." if rates else ""
