// ECharts options of the page's charts, computed from its data: see page.js, which holds the data and draws.
'use strict';

const KIND_COLOURS = {
  forward: '--sky', backward: '--blue', full_backward: '--blue', backward_input: '--blue', backward_weight: '--green',
  optimizer: '--purple', wait: '--line', communication: '--orange',
};
const SERIES = ['--blue', '--vermillion', '--green', '--purple', '--orange', '--sky'];
const LOADS = [[0.01, '--idle'], [0.5, '--sky'], [0.8, '--orange'], [Infinity, '--vermillion']];

// --- formatting

const round = (value, digits) => Number(value.toPrecision(digits));

function timeText(seconds) {
  const value = Math.abs(seconds);
  if (!value) return '0 s';
  if (value >= 0.9995) return `${round(seconds, 4)} s`;
  if (value >= 0.9995e-3) return `${round(seconds * 1e3, 4)} ms`;
  return `${round(seconds * 1e6, 4)} us`;
}

function scaled(value, units) {
  const unit = units.find(([factor]) => Math.abs(value) >= factor * 0.9995) ?? units[units.length - 1];
  return `${round(value / unit[0], 4)} ${unit[1]}`;
}

const sizeText = bytes => scaled(bytes, [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB'], [1, 'B']]);
const rateText = rate => scaled(rate, [[1e12, 'Tbit/s'], [1e9, 'Gbit/s'], [1e6, 'Mbit/s'], [1e3, 'kbit/s'], [1, 'bit/s']]);
const shareText = share => `${round(100 * share, 3)} %`;
const countText = count => count >= 1000 ? Math.round(round(count, 4)).toLocaleString('en') : `${round(count, 4)}`;

// --- colours of the current style sheet

function colour(name) {
  const probe = document.getElementById('probe') ?? Object.assign(document.createElement('span'), { id: 'probe' });
  if (!probe.isConnected) { probe.hidden = true; document.body.append(probe); }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const seriesColour = index => colour(SERIES[index % SERIES.length]);
const loadColour = share => colour(LOADS.find(([limit]) => share < limit)[1]);
const kindColour = kind => colour(KIND_COLOURS[kind] ?? '--soft');

function axisStyle() {
  const line = { lineStyle: { color: colour('--line') } };
  const text = { color: colour('--soft'), fontSize: 12, hideOverlap: true };
  return { axisLine: { lineStyle: { color: colour('--strong-line') } }, splitLine: line, axisLabel: text };
}

const base = () => ({
  animation: false, textStyle: { color: colour('--ink'), fontSize: 12 },
  backgroundColor: 'transparent',
});

const tip = () => ({
  backgroundColor: colour('--raised'), borderColor: colour('--strong-line'), confine: true,
  textStyle: { color: colour('--ink'), fontSize: 12 },
});

// --- the network at one time

const linkName = link => `${link.source} → ${link.target}, plane ${link.plane}`;
const safe = words => echarts.format.encodeHTML(words);  // tooltips are HTML

// shares, queues: by link, or undefined before the first reading
function networkOption(network, shares, queues, { width, height }) {
  const count = network.buildings.length;
  const turn = count === 2 ? Math.PI : -Math.PI / 2;
  const across = width / 2 - Math.min(100, width / 5), down = count === 2 ? 0 : height / 2 - 40;
  const nodes = network.buildings.map((building, index) => {
    const angle = turn + 2 * Math.PI * index / count;
    const ranks = building.hosts.filter(host => host.rank !== null && host.rank !== undefined).length;
    return {
      id: building.name, name: building.name, x: width / 2 + across * Math.cos(angle), y: height / 2 + down * Math.sin(angle),
      symbol: 'roundRect', symbolSize: [Math.max(64, 9 * building.name.length + 20), 40],
      label: { formatter: `{name|${building.name}}\n{ranks|${building.hosts.length ? `${ranks} ranks` : 'transit'}}` },
      tip: safe(`${building.name}: ${building.hosts.length ? '' : 'a transit site without hosts'}${building.hosts.map(host => host.name).slice(0, 12).join(', ')}${building.hosts.length > 12 ? '…' : ''}`),
    };
  });
  const busy = network.links.length > 12;
  const edges = network.links.map((link, index) => {
    const share = shares?.[index] ?? 0;
    return {
      source: link.source, target: link.target, share,
      lineStyle: { opacity: 1, color: loadColour(share), width: 1.5 + 4.5 * Math.min(share, 1), curveness: 0.09 + 0.16 * link.plane },
      label: { show: !busy && shares !== undefined, formatter: shareText(share), color: colour('--ink'), fontSize: 11 },
      tip: `${safe(linkName(link))}<br>${rateText(link.rate_bps)}, ${timeText(link.delay_s)} one way<br>`
        + `${shareText(share)} in use, ${sizeText(queues?.[index] ?? 0)} of ${sizeText(link.queue_bytes)} queued`,
    };
  });
  // invisible corner nodes make its coordinates pixels
  const corners = [[0, 0], [width, height]].map(([x, y], index) => ({ id: `corner ${index}`, x, y, symbol: 'none', label: { show: false } }));
  return {
    ...base(),
    tooltip: { ...tip(), formatter: item => item.data.tip },
    series: [{
      type: 'graph', layout: 'none', roam: true, nodeScaleRatio: 0, data: [...nodes, ...corners], links: edges,
      left: 0, right: 0, top: 0, bottom: 0,
      edgeSymbol: ['none', 'arrow'], edgeSymbolSize: 9,
      itemStyle: { color: colour('--raised'), borderColor: colour('--strong-line'), borderWidth: 1.5 },
      label: { show: true, rich: {
        name: { fontSize: 14, lineHeight: 18, fontWeight: 650, color: colour('--ink'), align: 'center' },
        ranks: { fontSize: 11, lineHeight: 14, color: colour('--soft'), align: 'center' },
      } },
      edgeLabel: { show: true }, emphasis: { focus: 'adjacency' },
    }],
  };
}

// --- the timeline of a step above utilisation and queues of links, all on one time axis

const ROW = 15;  // pixels per rank
const GAP = 62;

function timelineHeight(operations, wide) {
  const ranks = operations?.ranks.length ?? 0;
  return 40 + ranks * (ROW + 3) + GAP + 150 + GAP + 110 + 76 + (wide ? 0 : 10);
}

// Formats a time with the precision that a view of `span` seconds needs.
function momentText(seconds, span) {
  const digits = Math.min(Math.max(Math.ceil(1.3 - Math.log10(span)), 0), 9);
  return digits > 3 ? `${(seconds * 1e3).toFixed(digits - 3)} ms` : `${seconds.toFixed(digits)} s`;
}

// operations: from /timeline, or null; lines: indices of the links to draw; window: [begin, end] in seconds;
// span: returns how many seconds are shown now, also after zooming
function timelineOption({ operations, readings, links, lines, events, window, span, width, end }) {
  const ranks = operations?.ranks ?? [];
  const high = Math.max(ranks.length * (ROW + 3), 1);
  const left = width > 600 ? 74 : 52;
  const tops = [28, 28 + high + GAP, 28 + high + GAP + 150 + GAP];
  const grid = [high, 150, 110].map((height, index) => ({ left, right: 14, top: tops[index], height }));
  const words = ['ranks', 'share of the rate in use', 'queue length'];
  const pointer = { show: true, type: 'line', snap: false, triggerTooltip: false, lineStyle: { color: colour('--ink') } };
  const xAxis = grid.map((_, index) => ({
    type: 'value', gridIndex: index, min: 0, max: end, ...axisStyle(), splitNumber: width > 600 ? 8 : 3,
    axisPointer: { ...pointer, label: { show: index === 2, formatter: ({ value }) => momentText(value, span() / 100) } },
    axisLabel: { ...axisStyle().axisLabel, formatter: value => momentText(value, span()), showMinLabel: false, showMaxLabel: false },
  }));
  const place = new Map(ranks.map((rank, index) => [rank, index]));
  const yAxis = [
    { type: 'value', min: 0, max: Math.max(ranks.length, 1), inverse: true, interval: Math.ceil(ranks.length / 32) || 1,
      axisLabel: { formatter: at => ranks[at] ?? '' } },
    { type: 'value', min: 0, max: 1, interval: 0.5, axisLabel: { formatter: shareText } },
    { type: 'value', min: 0, axisLabel: { formatter: sizeText }, splitNumber: 2 },
  ].map((axis, index) => {
    const style = axisStyle();
    return {
      ...style, ...axis, gridIndex: index, name: words[index], nameLocation: 'end', nameGap: 12,
      nameTextStyle: { color: colour('--soft'), align: 'left', padding: [0, 0, 0, -left + 4] },
      axisLabel: { ...style.axisLabel, ...axis.axisLabel }, axisPointer: { show: false },
      ...(index ? {} : { nameLocation: 'start', splitLine: { show: false } }),
    };
  });
  const series = [];
  if (operations) series.push(operationsSeries(operations, place));
  const marks = events.map(event => ({ xAxis: event.time_s, name: event.words }));
  lines.forEach((link, order) => {
    const one = { type: 'line', name: linkName(links[link]), showSymbol: false, color: seriesColour(order) };
    const times = readings.times_s;
    const along = rows => rows[link].map((value, at) => [times[at], value]);
    series.push({
      ...one, xAxisIndex: 1, yAxisIndex: 1, data: along(readings.used), step: 'start', lineStyle: { width: 1.3 },
      areaStyle: { opacity: 0.08 },
      ...(order ? {} : { markLine: {
        symbol: 'none', silent: true, data: marks, lineStyle: { color: colour('--ink'), type: 'solid' },
        label: { formatter: '{b}', color: colour('--ink'), position: 'insideEndTop', fontSize: 11 },
      } }),
    });
    series.push({ ...one, xAxisIndex: 2, yAxisIndex: 2, data: along(readings.queue_bytes), lineStyle: { width: 1.3 } });
  });
  return {
    ...base(), grid, xAxis, yAxis, series,
    legend: {
      type: 'scroll', bottom: 34, left: 8, right: 8, itemWidth: 18, textStyle: { color: colour('--ink') },
      data: lines.map(link => linkName(links[link])), pageTextStyle: { color: colour('--soft') },
      pageIconColor: colour('--ink'), pageIconInactiveColor: colour('--line'),
    },
    axisPointer: { link: [{ xAxisIndex: 'all' }] },
    tooltip: { ...tip(), trigger: 'item' },
    dataZoom: [
      { type: 'inside', xAxisIndex: [0, 1, 2], filterMode: 'none', startValue: window[0], endValue: window[1] },
      { type: 'slider', xAxisIndex: [0, 1, 2], filterMode: 'none', bottom: 6, height: 18, left, right: 14,
        startValue: window[0], endValue: window[1], showDetail: false, brushSelect: false,
        borderColor: colour('--line'), fillerColor: colour('--line'), dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } } },
    ],
  };
}

// Draws many rectangles as one shape: one by one, those of 64 ranks would take seconds. rects: x, y, width, height of each.
echarts.graphic.registerShape('bars', echarts.graphic.extendShape({
  shape: { rects: [] },
  buildPath: (path, { rects }) => {
    for (let at = 0; at < rects.length; at += 4) path.rect(rects[at], rects[at + 1], rects[at + 2], rects[at + 3]);
  },
}));

// Operations of each rank by colour: indices into the columns of `operations`.
function byRank(operations, place) {
  const found = operations.ranks.map(() => new Map());
  operations.rank.forEach((rank, at) => {
    const kind = operations.kinds[operations.kind[at]];
    const shade = kind === 'communication' && at % 2 ? '--vermillion' : KIND_COLOURS[kind] ?? '--soft';
    const own = found[place.get(rank)];
    if (!own.has(shade)) own.set(shade, []);
    own.get(shade).push(at);
  });
  return found;
}

function operationsSeries(operations, place) {
  const { start_s, end_s, row, rows } = operations;
  const ranks = byRank(operations, place);
  const high = Math.max((ROW - 6) / Math.max(rows - 1, 1), 0.6);
  const begin = start_s.reduce((least, value) => Math.min(least, value), Infinity);
  const end = end_s.reduce((most, value) => Math.max(most, value), 0);
  return {
    type: 'custom', name: 'operations', silent: true, clip: true, encode: { x: [0, 1], y: 2 },
    data: operations.ranks.map((_, index) => [begin, end, index]),
    renderItem: (params, api) => {
      const [zero, top] = api.coord([0, api.value(2)]);
      const scale = api.coord([1, 0])[0] - zero;
      const { x: left, width } = params.coordSys;
      const children = [...ranks[params.dataIndex]].map(([shade, places]) => {
        const rects = [];
        for (const at of places) {
          const from = Math.max(zero + scale * start_s[at], left);
          const to = Math.min(Math.max(zero + scale * end_s[at], from + 0.7), left + width);
          if (to <= from || zero + scale * end_s[at] < left) continue;
          const y = top + (row[at] ? 6 + (row[at] - 1) * (ROW - 6) / Math.max(rows - 1, 1) : 1);
          rects.push(from, y, to - from, row[at] ? high : 4);
        }
        return { type: 'bars', shape: { rects }, style: { fill: colour(shade) } };
      });
      return { type: 'group', children };
    },
  };
}

// Describes what a rank does at a time. share: vertical position within the rank's rows, from 0 to 1.
function operationAt(operations, rank, seconds, share) {
  const { start_s, end_s } = operations;
  const wanted = share * (ROW + 3) < 5.5 ? 0 : 1;
  const at = operations.rank.findIndex((own, place) => own === rank && start_s[place] <= seconds && end_s[place] >= seconds
    && (operations.row[place] ? 1 : 0) === wanted);
  return at < 0 ? '' : `${operations.names[operations.name[at]]} for ${timeText(end_s[at] - start_s[at])}`;
}

// --- step times

function stepsOption(variants, steps, width) {
  const series = variants.map((variant, index) => ({
    type: 'scatter', name: variant.name, color: seriesColour(index), symbolSize: 9,
    itemStyle: { opacity: variant.status === 'untrusted' ? 0.35 : 1, borderColor: colour('--page'), borderWidth: 1 },
    data: steps.filter(step => step.variant === variant.name)
      .map(step => ({ value: [step.trial, step.end_s - step.start_s], step })),
  }));
  return {
    ...base(), series,
    grid: { left: width > 600 ? 74 : 62, right: 18, top: 18, bottom: 64 },
    legend: { type: 'scroll', bottom: 2, textStyle: { color: colour('--ink') }, pageTextStyle: { color: colour('--soft') } },
    tooltip: { ...tip(), formatter: ({ data }) => `${safe(data.step.variant)}, trial ${data.step.trial}: ${timeText(data.value[1])}` },
    xAxis: { type: 'value', name: 'trial', nameLocation: 'middle', nameGap: 24, minInterval: 1, ...axisStyle(), splitNumber: width > 600 ? 8 : 4 },
    yAxis: { type: 'value', scale: true, ...axisStyle(), axisLabel: { ...axisStyle().axisLabel, formatter: timeText } },
    dataZoom: [{ type: 'inside', xAxisIndex: 0, filterMode: 'none' }],
  };
}
