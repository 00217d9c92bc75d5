"""Drawing of the network of a run: buildings with their hosts, and the WAN links between them.

Figures are real; tooltips add emulated ones. Each link is drawn as two lines, one per direction (traffic keeps to the
right). The more of its capacity a step of the shown variant used, the thicker and warmer a line is.
"""

from __future__ import annotations

import cmath
import math
from collections import defaultdict
from dataclasses import dataclass

from markupsafe import Markup

from testbed.measure.results.records import JsonObject, LinkKey, hosts_by_building
from testbed.show.report.run_data import RunData
from testbed.show.report.svg import CHART_WIDTH, Box, Drawing, Line, between_walls, shorten, text_width
from testbed.spec.scale import Scale
from testbed.spec.units import percent_text, rate_text, size_text, time_text

_LABEL_FONT = 12
_LABEL_LINE = 16
_HOST_FONT = 12
_PILL_HEIGHT = 24.0
_LEAST_PILL_WIDTH = 104.0
_GAP = 6.0
_HEADER = 30.0
_MARGIN = 8.0
_TRANSIT_WIDTH = 190.0
"""Width of a building without hosts: room for the longest name and a word."""
_LISTED_HOSTS = 16
_DOTS_PER_ROW, _DOTS_PER_ROW_ON_PHONES = 8, 5
_DOT = 18.0
_ARROW = 10.0
_LANE_OFFSET = 5.0
_APART = 62.0
_CLOSE = 30.0
"""Distance between parallel links with a label each, and with one label for all."""
_LABELLED_PLANES = 4
# Arrow heads for the eight directions that a line can have on the page, clockwise from east (y grows downwards).
_ARROWS = "→↘↓↙←↖↑↗"

LOAD_CLASSES = (("load-idle", 0.01), ("load-low", 0.5), ("load-medium", 0.8), ("load-high", math.inf))
"""Style classes for utilisation, each with its upper bound (exclusive)."""


@dataclass(frozen=True)
class _Route:
    """The position of one WAN link: parallel to the line between two buildings' centres, `shift` to its right."""

    link: JsonObject
    a: Box
    b: Box
    shift: float

    def visible(self, more: float = 0.0) -> Line:
        """Return the part of the link's line between the buildings' walls, or of a line `more` to its right."""
        line = Line(complex(self.a.x, self.a.y), complex(self.b.x, self.b.y)).shifted(self.shift + more)
        return between_walls(line, self.a, self.b)


def load_class(utilisation: float | None) -> str:
    """Return the style class of a utilisation (share of capacity; None if not measured)."""
    if utilisation is None:
        return "load-unknown"
    return next(css for css, limit in LOAD_CLASSES if utilisation < limit)


def topology_drawing(data: RunData, variant: JsonObject, width: float = CHART_WIDTH) -> Markup:
    """Draw the network of a run, with WAN links coloured by their use in a variant."""
    fabric = data.fabric(variant["name"])
    used = {LinkKey.of(record): record for record in variant["wan_links"]}
    title = f"Buildings and WAN links, coloured by use in {variant['name']}"
    return network_drawing(fabric, data.scale, used, title, width).markup()


def network_drawing(
    fabric: JsonObject,
    scale: Scale,
    used: dict[LinkKey, JsonObject],
    title: str,
    width: float = CHART_WIDTH,
) -> Drawing:
    """Draw buildings, hosts (name, building, ip, rank) and links (a, b, plane, both directions) of a manifest.

    `used` is the utilisation per step; empty to show none. Narrow drawings of more than two buildings have no labels.
    """
    hosts = hosts_by_building(fabric)
    pairs: dict[frozenset[str], list[JsonObject]] = defaultdict(list)
    for link in fabric["wan"]:
        pairs[frozenset((link["a"], link["b"]))].append(link)

    widest_bundle = max((len(links) for links in pairs.values()), default=1)
    one_label_each = len(hosts) <= 2 and widest_bundle <= _LABELLED_PLANES
    narrow = width < CHART_WIDTH
    boxes, height = _place_buildings(hosts, widest_bundle if one_label_each else 1, width)
    spacing = _APART if one_label_each else _CLOSE
    routes = [route for links in pairs.values() for route in _routes(links, boxes, spacing)]
    drawing = Drawing(width, height, title)
    for route in routes:
        _draw_direction(drawing, route.visible(_LANE_OFFSET), used.get(_key(route.link, "a_to_b")))
        _draw_direction(
            drawing, route.visible(-_LANE_OFFSET).reversed(), used.get(_key(route.link, "b_to_a"))
        )
    for name, box in boxes.items():
        _draw_building(drawing, name, box, hosts[name], dots=_dots(len(hosts[name]), len(hosts), width))
    taken = list(boxes.values())
    if narrow and len(hosts) > 2:
        return drawing
    for bundle in [[route] for route in routes] if one_label_each else _group_alike(scale, routes):
        link = bundle[0].link
        siblings = len(pairs[frozenset((link["a"], link["b"]))]) > len(bundle)
        taken.append(_draw_label(drawing, scale, bundle, used, taken, name_planes=siblings))
    return drawing


def _key(link: JsonObject, direction: str) -> LinkKey:
    return LinkKey.of({**link, "direction": direction})


# --- buildings


def _columns(hosts: list[JsonObject]) -> int:
    return 1 if len(hosts) <= 4 else 2


def _pill_width(hosts: list[JsonObject]) -> float:
    longest = max(text_width(f"{host['name']} {_role(host)}", _HOST_FONT) for host in hosts)
    return min(max(longest + 18, _LEAST_PILL_WIDTH), 1.6 * _LEAST_PILL_WIDTH)


def _role(host: JsonObject) -> str:
    if "rank" not in host:
        return ""
    return "no rank" if host["rank"] is None else f"rank {host['rank']}"


def _dots(hosts: int, buildings: int, width: float) -> int:
    """Return the number of hosts per row if they are drawn as dots; 0 to show hosts by name."""
    narrow = width < CHART_WIDTH
    if hosts > _LISTED_HOSTS or (narrow and buildings > 2):
        return _DOTS_PER_ROW_ON_PHONES if narrow and buildings > 2 else _DOTS_PER_ROW
    return 0


def _box_size(hosts: list[JsonObject], dots: int) -> tuple[float, float]:
    if not hosts and not dots:
        return _TRANSIT_WIDTH, _HEADER + _MARGIN
    if dots:
        rows = math.ceil(len(hosts) / dots)
        return dots * _DOT + 2 * _MARGIN, _HEADER + rows * _DOT + _MARGIN
    columns = _columns(hosts)
    rows = math.ceil(len(hosts) / columns)
    width = columns * _pill_width(hosts) + (columns - 1) * _GAP + 2 * _MARGIN
    return width, _HEADER + rows * (_PILL_HEIGHT + _GAP) - _GAP + _MARGIN


def _place_buildings(
    hosts: dict[str, list[JsonObject]], bundle: int, width: float
) -> tuple[dict[str, Box], float]:
    """Place buildings on an ellipse that fills the drawing; return them and the drawing's height.

    Walls are long enough for `bundle` parallel links with a label each. In a narrow drawing, two buildings are stacked.
    """
    count, narrow = len(hosts), width < CHART_WIDTH
    sizes = {name: _box_size(own, _dots(len(own), count, width)) for name, own in hosts.items()}
    if bundle > 1 and narrow:
        sizes = {name: (max(wide, _APART * bundle), high) for name, (wide, high) in sizes.items()}
    elif bundle > 1:
        sizes = {name: (width, max(height, _APART * bundle)) for name, (width, height) in sizes.items()}
    tallest = max(height for _, height in sizes.values())
    widest = max(width for width, _ in sizes.values())
    height = tallest + 16
    if narrow and count == 2:
        height += tallest + 70 + 50 * bundle
    elif narrow and count > 2:
        height += (tallest + 70) * math.ceil(count / 2)
    elif count > 2:
        height += tallest + (190 if count <= 4 else 330)
    # The first building is at the top, except for two (left and right) and four (one in each corner).
    first_angle = {2: -0.5 * math.pi if narrow else math.pi, 4: -0.75 * math.pi}.get(count, -0.5 * math.pi)
    angles = [first_angle + 2 * math.pi * index / count for index in range(count)]
    reach = max(1e-6, *(abs(math.cos(angle)) for angle in angles))
    levels = [round(math.sin(angle), 6) for angle in angles]
    top, bottom = min(levels), max(levels)
    boxes = {}
    for (name, size), angle, level in zip(sizes.items(), angles, levels, strict=True):
        x, y = width / 2, height / 2
        if count > 2 or (count > 1 and not narrow):
            x += math.cos(angle) / reach * (width - widest - 4) / 2
        if count > 2 or (count > 1 and narrow):
            # Buildings on one level share a centre line, so that links between them are horizontal.
            row = max(own[1] for own, its in zip(sizes.values(), levels, strict=True) if its == level)
            y = 8 + row / 2 + (level - top) / (bottom - top) * (height - row - 16)
        boxes[name] = Box(x, y, *size)
    return boxes, height


def _draw_building(drawing: Drawing, name: str, box: Box, hosts: list[JsonObject], dots: int) -> None:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    group = drawing.group("building" if hosts else "building transit")
    drawing.rect(left, top, box.width, box.height, "building-wall", radius=8, parent=group)
    count = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''}" if box.width > 120 else str(len(hosts))
    if not hosts:
        count = "transit" if box.width >= _TRANSIT_WIDTH else ""
    room = box.width - 2 * _MARGIN - text_width(count, _HOST_FONT) - 8
    drawing.text(left + _MARGIN + 2, top + 20, shorten(name, room, 16), "building-name", parent=group)
    drawing.text(left + box.width - _MARGIN - 2, top + 20, count, "host-rank", anchor="end", parent=group)
    pill = _pill_width(hosts) if hosts else 0.0
    for index, host in enumerate(hosts):
        css = "host idle" if host.get("rank", 0) is None else "host"
        one = drawing.group(
            css, ", ".join(filter(None, (str(host["name"]), _role(host), str(host["ip"])))), group
        )
        if dots:
            row, column = divmod(index, dots)
            x, y = left + _MARGIN + column * _DOT, top + _HEADER + row * _DOT
            drawing.rect(x + 2, y + 2, _DOT - 4, _DOT - 4, "host-box", radius=3, parent=one)
            continue
        column, row = divmod(index, math.ceil(len(hosts) / _columns(hosts)))
        x = left + _MARGIN + column * (pill + _GAP)
        y = top + _HEADER + row * (_PILL_HEIGHT + _GAP)
        room = pill - text_width(_role(host), _HOST_FONT) - 16
        drawing.rect(x, y, pill, _PILL_HEIGHT, "host-box", radius=4, parent=one)
        drawing.text(x + 7, y + 16, shorten(str(host["name"]), room, _HOST_FONT), "host-name", parent=one)
        drawing.text(x + pill - 7, y + 16, _role(host), "host-rank", anchor="end", parent=one)


# --- links


def _routes(links: list[JsonObject], boxes: dict[str, Box], spacing: float) -> list[_Route]:
    """Place the links of one pair of buildings in parallel, `spacing` apart or closer if walls are short."""
    first, second = boxes[links[0]["a"]], boxes[links[0]["b"]]
    if spacing < _APART:
        room = 0.8 * min(first.height, second.height, first.width, second.width)
        spacing = min(spacing, room / max(len(links) - 1, 1))
    routes = []
    for index, link in enumerate(links):
        shift = (index - (len(links) - 1) / 2) * spacing
        # Links of one pair may name its buildings in either order, which must not affect their position.
        same_order = link["a"] == links[0]["a"]
        routes.append(_Route(link, boxes[link["a"]], boxes[link["b"]], shift if same_order else -shift))
    return routes


def _group_alike(scale: Scale, routes: list[_Route]) -> list[list[_Route]]:
    """Group routes between the same buildings with the same figures, to be labelled together."""
    bundles: dict[tuple[str, str, str, str], list[_Route]] = defaultdict(list)
    for route in routes:
        link = route.link
        forth, back = _figures(scale, link["a_to_b"]), _figures(scale, link["b_to_a"])
        bundles[link["a"], link["b"], forth, back].append(route)
    return list(bundles.values())


def _draw_direction(drawing: Drawing, line: Line, use: JsonObject | None) -> None:
    """Draw one direction of a link: a line with an arrow head at its end."""
    utilisation = None if use is None else float(use["utilisation"])
    css = load_class(utilisation)
    neck, half = line.end - line.direction * _ARROW, line.direction * 5j
    group = drawing.group("wan")
    drawing.line(
        _point(line.start), _point(neck), css, width=2 + 3 * min(utilisation or 0.0, 1.0), parent=group
    )
    drawing.polygon(list(map(_point, (line.end, neck + half, neck - half))), css, parent=group)


def _point(place: complex) -> tuple[float, float]:
    return place.real, place.imag


def _draw_label(
    drawing: Drawing,
    scale: Scale,
    bundle: list[_Route],
    used: dict[LinkKey, JsonObject],
    taken: list[Box],
    *,
    name_planes: bool,
) -> Box:
    """Label a bundle of equal links where the label covers least; return the label's box."""
    middle = sum(route.shift for route in bundle) / len(bundle)
    line = bundle[0].visible(middle - bundle[0].shift)
    lines = _label_lines(scale, bundle, line, used, name_planes)
    width = max(text_width(content, _LABEL_FONT) for content in lines) + 14
    height = len(lines) * _LABEL_LINE + 6
    box = _label_place(line, width, height, taken, drawing.width)
    tooltip = "\n".join(
        _tooltip(scale, route.link, direction, used) for route in bundle for direction in ("a_to_b", "b_to_a")
    )
    group = drawing.group("wan-label", tooltip)
    left, top = box.x - width / 2, box.y - height / 2
    drawing.rect(left, top, width, height, "wan-label-box", radius=5, parent=group)
    for index, content in enumerate(lines):
        y = top + (index + 1) * _LABEL_LINE - 1
        drawing.text(box.x, y, content, "wan-label-text", anchor="middle", parent=group)
    return box


def _label_place(line: Line, width: float, height: float, taken: list[Box], room: float) -> Box:
    candidates = []
    for distance in (0.0, 0.06, 0.12, 0.18, 0.24, 0.3, 0.36):
        for share in (0.5 - distance, 0.5 + distance):
            place = line.at(share)
            x = min(max(place.real, width / 2 + 2), room - width / 2 - 2)
            candidates.append(Box(x, place.imag, width, height))
    return min(candidates, key=lambda box: sum(box.overlap(other) for other in taken))


def _label_lines(
    scale: Scale, bundle: list[_Route], line: Line, used: dict[LinkKey, JsonObject], name_planes: bool
) -> list[str]:
    link = bundle[0].link
    eighth = round(cmath.phase(line.direction) / (math.pi / 4)) % 8
    arrows = {"a_to_b": _ARROWS[eighth], "b_to_a": _ARROWS[(eighth + 4) % 8]}
    figures = {direction: _figures(scale, link[direction]) for direction in arrows}
    which = (
        f"{len(bundle)} planes of " if len(bundle) > 1 else f"plane {link['plane']} · " if name_planes else ""
    )
    shares = {
        direction: _shares_text([used.get(_key(route.link, direction)) for route in bundle])
        for direction in (arrows if used else ())
    }
    if figures["a_to_b"] == figures["b_to_a"]:
        shares_text = " · ".join(f"{arrows[direction]} {share}" for direction, share in shares.items())
        return [which + figures["a_to_b"], *([shares_text] if shares_text else [])]
    lines = [
        " · ".join([f"{arrow} {figures[direction]}", *([shares[direction]] if used else [])])
        for direction, arrow in arrows.items()
    ]
    return [which.removesuffix(" of ").rstrip(" ·"), *lines] if which else lines


def _shares_text(uses: list[JsonObject | None]) -> str:
    """Return the utilisation of one direction of a bundle: one figure, or a range."""
    shares = [use["utilisation"] for use in uses if use is not None]
    if not shares:
        return "not measured"
    least, most = percent_text(min(shares)), percent_text(max(shares))
    return f"{most} used" if least == most else f"{least} to {most} used"


def _figures(scale: Scale, direction: JsonObject) -> str:
    """Return rate and delay of one direction, with jitter and loss if any, in real units."""
    parts = [
        rate_text(scale.real_bps(direction["rate_bps"])),
        time_text(scale.real_s(direction["delay_s"])),
    ]
    if direction["jitter_s"]:
        parts[-1] += f" ± {time_text(scale.real_s(direction['jitter_s']))}"
    if direction["loss"]:
        parts.append(f"{percent_text(direction['loss'])} loss")
    return " · ".join(parts)


def _tooltip(scale: Scale, link: JsonObject, direction: str, used: dict[LinkKey, JsonObject]) -> str:
    key, figures = _key(link, direction), link[direction]
    queue = figures["queue_bytes"]
    sentence = (
        f"{key.source} → {key.target}, plane {key.plane}: {_figures(scale, figures)} one way; "
        f"queue {size_text(scale.real_bytes(queue))}."
    )
    if used:
        emulated = (
            f"{rate_text(figures['rate_bps'])}, {time_text(figures['delay_s'])}, queue {size_text(queue)}"
        )
        sentence += f" Emulated: {emulated}."
    use = used.get(key)
    if use is not None:
        sentence += (
            f" {size_text(use['bytes'])} per step, {percent_text(use['utilisation'])} of the capacity."
        )
    return sentence
