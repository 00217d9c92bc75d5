"""Tokens that were decoded: how long each took and what its time went to, in words and as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.measure.results.decoding_result import Decoding, TokenParts
from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Variant
from testbed.show.report.charts import series_class
from testbed.show.report.formatting import per_second_text, percent_text, time_text


def decoding_words(variants: Sequence[Variant]) -> list[str]:
    """A sentence for each variant that decodes."""
    own = [(variant, variant.decoding) for variant in variants if variant.decoding is not None]
    cached = _cached([found for _, found in own])
    return [_words(variant, found, cached) for variant, found in own]


def _words(variant: Variant, found: Decoding, cached: TokenParts | None) -> str:
    parts, times = found.parts, found.token_s
    # work: not in runs of earlier versions
    rate = f"{per_second_text(variant.work.per_second)} tokens/s, " if variant.work else ""
    words = f"{variant.name}: {rate}a token takes {time_text(times.p50)}, p99 {time_text(times.p99)}"
    for what, seconds in (
        ("counts gathered", parts.gathered_s),
        ("counts read", parts.read_s),
        ("buffers posted", parts.posted_s),
    ):
        if seconds:
            words += f", {what} {time_text(seconds)} of it"
    rounds_s = parts.dispatch_s + parts.combine_s
    shares = {"control": control_s(parts, cached), "put": parts.put_s, "wait": wait_s(parts, cached)}
    if rounds_s and shares["control"] is not None:
        said = ", ".join(f"{what} {percent_text((part or 0.0) / rounds_s)}" for what, part in shares.items())
        words += f"; dispatch and combine: {said}"
    return f"{words}."


def decoding_rows(variants: Sequence[JsonObject]) -> list[JsonObject]:
    """For each variant that decodes its times and parts; cells: seconds as the table has them, None where unknown."""
    own = [(index, one["name"], one["decoding"]) for index, one in enumerate(variants) if one.get("decoding")]
    typed = [Decoding.model_validate(found) for _, _, found in own]
    cached = _cached(typed)
    rows = []
    for (index, name, found), known in zip(own, typed, strict=True):
        parts = known.parts
        cells: list[float | None] = [parts.compute_s, parts.gathered_s, parts.read_s, parts.posted_s]
        cells += [control_s(parts, cached), parts.put_s, wait_s(parts, cached)]
        rows.append({"name": name, "series": series_class(index), **found, "cells": cells})
    return rows


def control_s(parts: TokenParts, cached: TokenParts | None) -> float | None:
    """What dispatch and combine take beyond their bytes, longer than where nothing but rows travels.

    None without such a variant.
    """
    if cached is None:
        return None
    return max(0.0, _beyond_bytes_s(parts) - _beyond_bytes_s(cached))


def wait_s(parts: TokenParts, cached: TokenParts | None) -> float:
    """The rest of dispatch and combine: on the way, and for others; with control where that is not known."""
    return max(0.0, _beyond_bytes_s(parts) - (control_s(parts, cached) or 0.0))


def _beyond_bytes_s(parts: TokenParts) -> float:
    return parts.dispatch_s + parts.combine_s - parts.put_s


def _cached(found: Sequence[Decoding]) -> TokenParts | None:
    return next((one.parts for one in found if one.cached), None)
