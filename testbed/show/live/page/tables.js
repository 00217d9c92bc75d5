// Tables with sorting, filtering and export.
'use strict';

const $ = id => document.getElementById(id);
const tables = {};  // by element id: content and view state

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children);
  return made;
}

// columns: headings, those of numbers prefixed with #; rows: cells {show, sort}
function drawTable(name, columns, rows, filtered = false) {
  const key = columns.join();
  if (tables[name]?.key !== key) tables[name] = { key, column: null, down: false, words: '', built: false };
  const own = tables[name];
  const place = $(name);
  if (!own.built) {
    own.built = true;
    own.body = element('tbody');
    own.head = element('tr', {}, ...columns.map((heading, index) => element('th', { class: heading.startsWith('#') ? 'number' : undefined, scope: 'col' },
      element('button', { type: 'button', onclick: () => { own.down = own.column === index && !own.down; own.column = index; own.draw(); } }, heading.replace('#', '')))));
    own.count = element('span', { class: 'count' });
    const filter = element('input', { type: 'search', placeholder: 'filter', 'aria-label': `filter ${name}`, oninput: () => { own.words = filter.value; own.draw(); } });
    const csv = element('button', { type: 'button', onclick: () => download(`${name}.csv`, 'text/csv', csvOf([columns.map(heading => heading.replace('#', '')),
      ...own.rows.map(row => row.map(cell => cell.sort))])) }, 'CSV');
    place.replaceChildren(element('div', { class: 'table-tools' }, ...(filtered ? [filter] : []), csv, own.count),
      element('table', {}, element('thead', {}, own.head), own.body));
    own.draw = () => {
      const words = own.words.trim().toLowerCase();
      let shown = own.rows.filter(row => row.some(cell => String(cell.sort).toLowerCase().includes(words)));
      if (own.column !== null) {
        const at = own.column, sign = own.down ? -1 : 1;
        shown = [...shown].sort((a, b) => sign * (typeof a[at].sort === 'number' ? a[at].sort - b[at].sort : String(a[at].sort).localeCompare(String(b[at].sort))));
      }
      [...own.head.children].forEach((heading, index) =>
        heading.setAttribute('aria-sort', index !== own.column ? 'none' : own.down ? 'descending' : 'ascending'));
      own.body.replaceChildren(...shown.map(row => element('tr', {}, ...row.map((cell, index) => element('td', {
        class: [columns[index].startsWith('#') ? 'number' : '', cell.css ?? ''].join(' ').trim() || undefined,
        'data-label': columns[index].replace('#', '') }, cell.show)))));
      own.count.textContent = `${shown.length} of ${own.rows.length}`;
    };
  }
  own.rows = rows;
  own.draw();
}

function none(name, said) {
  delete tables[name];
  $(name).replaceChildren(said);
}

function download(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  element('a', { href: address, download: `${document.title.split(':')[0]}-${name}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const quoted = value => /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
const csvOf = rows => rows.map(row => row.map(quoted).join(',')).join('\n') + '\n';
