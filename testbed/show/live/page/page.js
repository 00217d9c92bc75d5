// The live page: holds the server's data (see testbed/show/live/page_data.py) and draws it with charts.js and tables.js; saving.js exports it.
'use strict';

const SHOWN_LINES = 12;  // links shown in the chart at first; others can be enabled in its legend

const state = {
  run: null, operations: null, part: 0, step: null, window: null, selected: {}, cursor: null, charts: {}, asked: 0,
};

// --- small helpers

const median = values => {
  const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};
const readings = () => state.run?.readings?.[state.part];
const ownSteps = () => (state.run?.steps ?? []).filter(step => step.part === state.part);
const runEnd = () => Math.max(readings()?.times_s.at(-1) ?? 0, ...ownSteps().map(step => step.end_s), 1e-3);
const matches = words => words.toLowerCase().includes($('filter').value.trim().toLowerCase());
const width = name => $(name).clientWidth;
const sizeOf = name => {
  const { clientWidth, clientHeight } = $(name).querySelector('.chart');
  return { width: clientWidth, height: clientHeight };
};

function later(work) {  // runs once per frame, however often it is called
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => { waits = false; work(); });
  };
}

// --- data from the server

function listen() {
  const source = new EventSource('news');
  source.onmessage = ({ data }) => {
    const told = JSON.parse(data);
    if (told.all) replace(told.all);
    else add(told.more);
    if (state.run.state !== 'running' && state.run.state !== 'waiting') source.close();
  };
  source.onerror = () => {
    if (state.run?.state === 'finished' || state.run?.state === 'failed') return;
    $('kicker').textContent = 'No answer: has the command that serves this page ended?';
  };
}

function replace(run) {
  const first = state.run === null || state.run.state !== run.state;
  state.run = run;
  if (first) { state.part = Math.min(state.part, Math.max(run.parts.length - 1, 0)); state.step = null; state.window = null; }
  fresh();
}

function add(more) {
  const run = state.run;
  for (const name of ['state', 'words', 'done', 'total', 'progress', 'network']) run[name] = more[name];
  for (const name of ['phases', 'steps', 'events']) run[name].push(...more[name]);
  more.readings.forEach((own, part) => {
    const there = run.readings[part] ??= { times_s: [], used: [], queue_bytes: [], drops: [], losses: [] };
    there.times_s.push(...own.times_s);
    for (const name of ['used', 'queue_bytes', 'drops', 'losses']) own[name].forEach((row, link) => (there[name][link] ??= []).push(...row));
  });
  fresh();
}

const fresh = later(() => {
  const { run } = state;
  drawHead(run);
  drawVariants(run);
  drawChoices(run);
  if (!chooseStep(run)) drawTimeline();
  drawNetwork();
  drawSteps();
  drawLinks();
  drawEvents(run);
  drawVerdict(run);
  document.body.dataset.ready = run.state;
});

// --- head

function drawHead(run) {
  document.title = `${run.name}: ${run.status ?? run.state}`;
  $('kicker').textContent = [run.clock && `${run.clock} clock`, run.ranks && `${run.ranks} ranks`, run.created?.slice(0, 10),
    run.state === 'running' ? run.phases.at(-1) : ''].filter(Boolean).join(' · ');
  $('name').textContent = run.name;
  const badge = $('badge');
  badge.className = `badge ${run.status ?? run.state}`;
  badge.textContent = run.status ?? run.state;
  const answer = run.answer ?? (run.state === 'failed' ? [`Failed: ${run.words}`] : []);
  $('answer').replaceChildren(...answer.map(words => element('p', { class: 'lead' }, words)));
  const failing = (run.variants ?? []).flatMap(variant =>
    (variant.invariants ?? []).filter(one => one.ok === false).map(one => [variant, one]));
  $('failing').replaceChildren(...(failing.length ? [element('section', { class: `banner ${run.status}`, role: 'alert' },
    element('strong', {}, run.status === 'untrusted' ? 'Untrusted: do not use the figures' : 'Caution: read this before you rely on the figures'),
    element('ul', {}, ...failing.slice(0, 5).map(([variant, one]) =>
      element('li', {}, element('b', {}, variant.name), `, ${one.name}: ${one.sentence}`))),
    ...(failing.length > 5 ? [element('p', {}, `and ${failing.length - 5} more, in the last table`)] : []))] : []));
  const bars = run.state === 'running'
    ? [['all', run.done, run.total], ...(run.progress.length > 1 ? run.progress.map(own =>
        [own.name, own.finished ? own.total : own.done, own.total, own.finished ? 'done' : own.clock_s ? `at ${timeText(own.clock_s)}` : 'waits']) : [])]
    : [];
  $('progress').className = 'bars';
  $('progress').replaceChildren(...bars.flatMap(([name, done, total, words]) => [
    element('span', {}, name), element('progress', { max: total || 1, value: total ? done : undefined, 'aria-label': name }),
    element('span', {}, words ?? (total ? `step ${Math.min(done + 1, total)} of ${total}` : 'begins'))]));
  $('footer').replaceChildren(run.folder, ...(run.state === 'finished' ? [' · ', element('a', { href: 'report.html' }, 'report.html')] : []));
}

function drawVariants(run) {
  const rows = (run.variants ?? []).map((variant, index) => {
    const times = run.steps.filter(step => step.variant === variant.name).map(step => step.end_s - step.start_s);
    const middle = variant.median_s ?? (times.length ? median(times) : null);
    const { work } = variant;
    const each = times.length ? times.reduce((sum, time) => sum + time, 0) / times.length : null;
    const rates = variant.rates ?? (work && each ? {
      tokens_per_s: work.tokens / each, sequences_per_s: work.sequences / each, mfu: work.utilisation * work.computing_s / each,
    } : null);
    return [
      { show: element('span', { class: `series-${index % 6}` }, element('span', { class: 'dot' }), variant.name), sort: variant.name },
      { show: variant.status ? element('span', { class: `badge ${variant.status}` }, variant.status) : `${times.length} step${times.length === 1 ? '' : 's'}`, sort: variant.status ?? '' },
      { show: middle === null ? '' : timeText(middle), sort: middle ?? 0 },
      { show: rates ? countText(rates.tokens_per_s) : '', sort: rates?.tokens_per_s ?? 0 },
      { show: rates ? countText(rates.sequences_per_s) : '', sort: rates?.sequences_per_s ?? 0 },
      { show: rates ? shareText(rates.mfu) : '', sort: rates?.mfu ?? 0 },
      { show: variant.predicted_s ? timeText(variant.predicted_s) : '', sort: variant.predicted_s ?? 0 },
      { show: variant.limited_by ?? '', sort: variant.limited_by ?? '' },
    ];
  });
  const columns = ['Variant', 'Verdict', '#Step time', '#Tokens/s', '#Sequences/s', '#MFU', '#Predicted', 'Limited by'];
  const kept = columns.map((_, at) => rows.some(row => row[at].show !== ''));
  drawTable('variants', columns.filter((_, at) => kept[at]), rows.map(row => row.filter((_, at) => kept[at])));
}

// --- choice of part and step

function drawChoices(run) {
  fill($('part'), run.parts.map((part, index) => [index, part.name]), state.part);
  $('part').parentElement.hidden = run.parts.length < 2;
  const steps = ownSteps();
  fill($('step'), steps.map(step => [step.step, `${step.variant}, trial ${step.trial}: ${timeText(step.end_s - step.start_s)}`]), state.step);
}

function fill(select, options, chosen) {
  const key = JSON.stringify(options);
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...options.map(([value, words]) => element('option', { value }, words)));
  }
  if (chosen !== null) select.value = chosen;
}

// Returns whether another step is being fetched, which will be drawn.
function chooseStep(run) {
  $('follow').parentElement.hidden = run.state !== 'running';
  const newest = run.steps.at(-1);
  const over = !ownSteps().length || run.progress[state.part]?.finished;
  if (run.state === 'running' && $('follow').checked && newest && over && newest.part !== state.part) {
    Object.assign(state, { part: newest.part, step: null, operations: null });
    drawChoices(run);
  }
  const steps = ownSteps();
  if (!steps.length) return false;
  let step = steps.find(own => own.step === state.step);
  if (!step || (run.state === 'running' && $('follow').checked)) {
    step = run.state === 'running' ? steps.at(-1) : middleStep(steps);
  }
  if (step.step === state.step) return false;
  showStep(step);
  return true;
}

function middleStep(steps) {
  const own = steps.filter(step => step.variant === steps[0].variant);
  return own.sort((a, b) => (a.end_s - a.start_s) - (b.end_s - b.start_s))[(own.length - 1) >> 1];
}

async function showStep(step) {
  state.step = step.step;
  $('step').value = step.step;
  const asked = ++state.asked, part = state.part;
  const margin = 0.02 * (step.end_s - step.start_s);
  state.window = [Math.max(step.start_s - margin, 0), step.end_s + margin];
  const answer = await fetch(`timeline?part=${part}&step=${step.step}`);
  if (asked !== state.asked || !answer.ok) return;
  const found = await answer.json();
  state.operations = found.ranks.length ? found : null;
  drawTimeline();
}

// --- charts

function chart(name) {
  if (!state.charts[name]) {
    const place = $(name).querySelector('.chart');
    const made = state.charts[name] = echarts.init(place, null, { renderer: 'canvas' });
    $(name).append(element('div', { class: 'saves' }, ...['SVG', 'PNG', 'CSV'].map(form =>
      element('button', { type: 'button', onclick: () => save(name, form), 'aria-label': `${name} as ${form}` }, form))));
    if (name === 'steps') made.on('click', ({ data }) => pick(data.step));
    if (name === 'timeline') {
      made.on('datazoom', ({ batch, start, end }) => {
        const shown = batch?.[0] ?? { start, end };
        state.window = [shown.start, shown.end].map(percent => percent / 100 * runEnd());
        drawNetwork();
      });
      made.on('legendselectchanged', ({ selected }) => { state.selected = selected; });
      made.on('finished', () => { document.body.dataset.step = state.operations ? state.step : ''; });
      made.on('updateAxisPointer', ({ axesInfo }) => { state.cursor = axesInfo?.[0]?.value ?? null; atCursor(); });
      made.getZr().on('mousemove', ({ offsetX, offsetY }) => { state.pointer = [offsetX, offsetY]; });
      made.getZr().on('globalout', () => { state.cursor = null; atCursor(); });
    }
  }
  return state.charts[name];
}

// Hides the cursor, which ECharts cannot draw while it resizes.
function resized(made) {
  const place = made.getDom();
  if (!place.clientWidth || !place.clientHeight) return;
  made.dispatchAction({ type: 'updateAxisPointer', currTrigger: 'leave' });
  made.resize();
}

function pick(step) {
  if (step.part !== state.part) { state.part = step.part; $('part').value = step.part; drawChoices(state.run); drawLinks(); }
  $('follow').checked = false;
  showStep(step);
}

const option = {
  network: () => {
    const { used, queue_bytes } = linksNow();
    return networkOption(state.run.network, used, queue_bytes, sizeOf('network'));
  },
  timeline: () => {
    const links = state.run.network?.links ?? [];
    const lines = readings() ? links.map((_, index) => index).filter(index => matches(linkName(links[index]))) : [];
    return timelineOption({
      operations: state.operations, readings: readings(), links, lines, width: width('timeline'), end: runEnd(),
      events: state.run.events.filter(event => event.part === state.part), window: state.window ?? [0, runEnd()],
      span: () => { const [begin, end] = state.window ?? [0, runEnd()]; return end - begin; },
    });
  },
  steps: () => stepsOption(state.run.variants ?? [], state.run.steps, width('steps')),
};

// Utilisation and queue of each link: at the cursor, else now, else (for a finished run) the mean over the time shown.
function linksNow() {
  const own = readings(), at = moment();
  if (!own || at === null) return {};
  if (state.cursor !== null || state.run.state === 'running') {
    return { used: own.used.map(row => row[at] ?? 0), queue_bytes: own.queue_bytes.map(row => row[at] ?? 0) };
  }
  const [begin, end] = state.window ?? [0, runEnd()];
  // a reading covers the time since the previous one
  const parts = own.times_s.map((time_s, place) => Math.min(time_s, end) - Math.max(own.times_s[place - 1] ?? 0, begin));
  const whole = parts.reduce((sum, part) => sum + Math.max(part, 0), 0);
  if (!whole) return {};
  const mean = row => row.reduce((sum, value, place) => sum + value * Math.max(parts[place], 0), 0) / whole;
  return { used: own.used.map(mean), queue_bytes: own.queue_bytes.map(mean) };
}

// Index of the reading at the cursor, or of the last one.
function moment() {
  const times = readings()?.times_s ?? [];
  if (!times.length) return null;
  if (state.cursor === null) return times.length - 1;
  const at = times.findIndex(time_s => time_s >= state.cursor);
  return at < 0 ? times.length - 1 : at;
}

const drawNetwork = later(() => {
  if (!state.run?.network || !width('network')) return;
  // keeps the position it was dragged to
  chart('network').setOption(option.network(), { replaceMerge: [] });
});

const drawTimeline = later(() => {
  if (!state.run?.network) return;
  const place = $('timeline').querySelector('.chart');
  const height = `${timelineHeight(state.operations, width('timeline') > 600)}px`;
  const made = chart('timeline');
  if (place.style.height !== height) { place.style.height = height; resized(made); }
  const shown = option.timeline();
  const selected = Object.fromEntries(shown.legend.data.map((name, at) => [name, at < SHOWN_LINES]));
  shown.legend.selected = { ...selected, ...state.selected };
  made.setOption(shown, { notMerge: true });
  if (state.cursor !== null && state.pointer) {
    const [x, y] = state.pointer;
    made.dispatchAction({ type: 'updateAxisPointer', currTrigger: 'mousemove', x, y });
  }
  drawNetwork();
  $('kinds').replaceChildren(...(state.operations?.kinds ?? []).map(kind => {
    const mark = element('i');
    mark.style.background = kindColour(kind);
    return element('span', {}, mark, kind.replaceAll('_', ' '));
  }));
});

const drawSteps = later(() => {
  if (!state.run?.variants) return;
  chart('steps').setOption(option.steps());
});

// Describes the operation of the rank at the pointer.
function rankWords() {
  const found = state.operations;
  if (!found || !state.pointer) return '';
  const at = state.charts.timeline.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, state.pointer)[1];
  const rank = found.ranks[Math.floor(at)];
  if (rank === undefined) return '';
  return `Rank ${rank}: ${operationAt(found, rank, state.cursor, at % 1) || 'nothing'}. `;
}

const atCursor = later(() => {
  drawNetwork();
  const at = moment(), own = readings(), links = state.run?.network?.links ?? [];
  if (state.cursor === null || at === null) return;
  const busiest = links.map((link, index) => [own.used[index][at], own.queue_bytes[index][at], link])
    .filter(([, , link]) => matches(linkName(link))).sort((a, b) => b[0] - a[0]).slice(0, 6);
  $('cursor').textContent = `${rankWords()}At ${momentText(state.cursor, (state.window ?? [0, runEnd()])[1] / 100)}: ` + busiest.map(([share, queue, link]) =>
    `${linkName(link)} ${shareText(share)}${queue ? `, ${sizeText(queue)} queued` : ''}`).join('; ');
});

function drawLinks() {
  const { run } = state, own = readings();
  if (!run.network || !own) return;
  const mean = row => row.length ? row.reduce((sum, value) => sum + value, 0) / row.length : 0;
  const peak = row => row.reduce((most, value) => Math.max(most, value), 0);
  drawTable('links', ['From', 'To', '#Plane', '#Rate', '#Delay', '#In use now', '#Mean', '#Peak', '#Longest queue', '#Drops', '#Lost'],
    run.network.links.flatMap((link, index) => matches(linkName(link)) ? [[
      { show: link.source, sort: link.source }, { show: link.target, sort: link.target }, { show: `${link.plane}`, sort: link.plane },
      { show: rateText(link.rate_bps), sort: link.rate_bps }, { show: timeText(link.delay_s), sort: link.delay_s },
      ...[own.used[index]?.at(-1) ?? 0, mean(own.used[index] ?? []), peak(own.used[index] ?? [])].map(share => ({ show: shareText(share), sort: share })),
      { show: sizeText(peak(own.queue_bytes[index] ?? [])), sort: peak(own.queue_bytes[index] ?? []) },
      ...[own.drops, own.losses].map(rows => rows[index]?.at(-1) ?? 0).map(count => ({ show: `${count}`, sort: count })),
    ]] : []), true);
}

function drawEvents(run) {
  const rows = run.events.map(event => [{ show: timeText(event.time_s), sort: event.time_s }, { show: event.words, sort: event.words },
    { show: run.parts[event.part]?.name ?? '', sort: run.parts[event.part]?.name ?? '' }]);
  if (rows.length) drawTable('events', ['#Time', 'What', 'Part'], rows, true);
  else none('events', element('p', { class: 'note' }, run.state === 'running' ? 'None so far.' : 'None: the scenario has no events.'));
}

function drawVerdict(run) {
  const rows = (run.variants ?? []).flatMap(variant => (variant.invariants ?? []).map(one => [
    { show: variant.name, sort: variant.name }, { show: one.name, sort: one.name },
    one.ok === null || one.ok === undefined ? { show: 'n/a', sort: 1, css: 'na' } : one.ok ? { show: '✓ yes', sort: 2, css: 'yes' } : { show: '✗ no', sort: 0, css: 'no' },
    { show: one.bound, sort: one.bound }, { show: one.measured, sort: one.measured }, { show: one.sentence, sort: one.sentence }]));
  rows.sort((a, b) => a[2].sort - b[2].sort);
  if (rows.length) drawTable('invariants', ['Variant', 'Invariant', 'Held', 'Bound', 'Measured', 'What it means'], rows, true);
  else none('invariants', element('p', { class: 'note' }, 'Available when the run has finished.'));
}

// --- user input

$('part').addEventListener('change', () => {
  state.part = Number($('part').value);
  state.step = state.window = state.operations = null;
  fresh();
});
$('step').addEventListener('change', () => {
  $('follow').checked = false;
  showStep(ownSteps().find(step => step.step === Number($('step').value)));
});
$('show-step').addEventListener('click', () => { const step = ownSteps().find(own => own.step === state.step); if (step) showStep(step); });
$('show-all').addEventListener('click', () => { $('follow').checked = false; state.window = [0, runEnd()]; drawTimeline(); });
$('filter').addEventListener('input', () => { drawTimeline(); drawLinks(); });
$('theme').addEventListener('click', () => {
  const dark = $('theme').getAttribute('aria-pressed') !== 'true';
  setTheme(dark);
  if (state.run) fresh();
  drawTimeline();
});
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  $('theme').setAttribute('aria-pressed', dark);
  $('theme').textContent = dark ? 'Light' : 'Dark';
}
const prefers = matchMedia('(prefers-color-scheme: dark)');
setTheme(prefers.matches);
prefers.addEventListener('change', () => { setTheme(prefers.matches); if (state.run) { fresh(); drawTimeline(); } });
addEventListener('resize', later(() => {
  Object.values(state.charts).forEach(resized);
  drawTimeline(); drawNetwork(); drawSteps();
}));

listen();
