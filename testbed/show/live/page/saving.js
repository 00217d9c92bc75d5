// Export of figures as SVG and PNG, and of their data as CSV.
'use strict';

function save(name, form) {
  if (form === 'CSV') { download(`${name}.csv`, 'text/csv', csvOf(data[name]())); return; }
  const size = sizeOf(name);
  const host = element('div');
  const drawn = echarts.init(form === 'SVG' ? null : host, null, form === 'SVG'
    ? { renderer: 'svg', ssr: true, ...size } : { renderer: 'canvas', devicePixelRatio: 2, ...size });
  drawn.setOption({ ...option[name](), backgroundColor: colour('--page'), animation: false });
  if (form === 'SVG') download(`${name}.svg`, 'image/svg+xml', drawn.renderToSVGString());
  else {
    const bytes = Uint8Array.from(atob(drawn.getDataURL({ type: 'png', pixelRatio: 2 }).split(',')[1]), one => one.charCodeAt(0));
    download(`${name}.png`, 'image/png', bytes);
  }
  drawn.dispose();
}

const data = {
  network: () => {
    const { used, queue_bytes } = linksNow();
    return [['source', 'target', 'plane', 'rate_bps', 'delay_s', 'in_use', 'queue_bytes'],
      ...state.run.network.links.map((link, index) => [link.source, link.target, link.plane, link.rate_bps, link.delay_s,
        used?.[index] ?? 0, queue_bytes?.[index] ?? 0])];
  },
  timeline: () => {
    const own = readings(), found = state.operations;
    return [['what', 'begin_s', 'end_s', 'rank_or_link', 'in_use', 'queue_bytes'],
      ...(found ? found.rank.map((rank, at) => [found.names[found.name[at]], found.start_s[at], found.end_s[at], rank, '', '']) : []),
      ...state.run.network.links.flatMap((link, index) => own.times_s.map((time_s, at) =>
        ['reading', time_s, time_s, linkName(link), own.used[index][at], own.queue_bytes[index][at]]))];
  },
  steps: () => [['variant', 'trial', 'begin_s', 'end_s', 'step_time_s'],
    ...state.run.steps.map(step => [step.variant, step.trial, step.start_s, step.end_s, step.end_s - step.start_s])],
};
