/* What runs in the browser itself; callbacks of the pages call the functions by name. */

/* Keep a choice in the address, so that it can be shared and is there after Back. */
const keepInAddress = (name, value) => {
  const url = new URL(window.location);
  if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
  window.history.replaceState(window.history.state, '', url);
};

/* Keep how far a page was scrolled, and go there again on Back, when the page is long enough. */
const SCROLL_POLL_MS = 100;
const SCROLL_POLLS = 80;
let restoring = null;
const stopRestoring = () => { clearInterval(restoring); restoring = null; };
const placeOf = () => `scroll:${window.location.pathname}`;
window.history.scrollRestoration = 'manual';
window.addEventListener('scroll', () => {
  if (restoring === null) sessionStorage.setItem(placeOf(), String(window.scrollY));
}, { passive: true });
window.addEventListener('popstate', () => {
  stopRestoring();
  const wanted = Number(sessionStorage.getItem(placeOf()) || 0);
  let polls = 0;
  restoring = setInterval(() => {
    polls += 1;
    const room = document.documentElement.scrollHeight - window.innerHeight;
    if (room >= wanted) window.scrollTo(0, wanted);
    if (polls > SCROLL_POLLS) stopRestoring();
  }, SCROLL_POLL_MS);
});
['wheel', 'touchstart', 'keydown', 'mousedown'].forEach(
  (kind) => window.addEventListener(kind, stopRestoring, { passive: true }));

/* Charts stand above the table, so their script, which is large, too, has the network first. */
const CHARTS_BEGIN_MS = 700;
const CHARTS_POLL_MS = 50;
const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
const chartsAreThere = async () => {
  if (document.getElementById('rest') === null) return;
  await pause(CHARTS_BEGIN_MS);
  const loading = document.querySelector('script[src*="/plotly"]');
  if (loading === null) return;
  loading.addEventListener('error', () => { loading.dataset.failed = 'true'; });
  while (!window.Plotly && !loading.dataset.failed) await pause(CHARTS_POLL_MS);
};

/* Ctrl+Enter runs the query. */
document.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && event.target.id === 'sql') {
    document.getElementById('ask').click();
  }
});

window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.autotune = {
  /* The address of the page, and the viewer's time zone. */
  visit: (path, search) => ({
    path, search, zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
  }),

  /* Load the script of the table, which is large; returns when it can be shown. */
  load_grid: async () => {
    if (window.dash_ag_grid) return true;
    await chartsAreThere();
    const script = document.createElement('script');
    script.src = document.querySelector('meta[name=grid-script]').content;
    await new Promise((resolve, reject) => {
      script.onload = resolve;
      script.onerror = () => reject(new Error('the script of the table did not load'));
      document.body.append(script);
    });
    return true;
  },

  /* The visible rows of the table are requested again. */
  refresh_grid: () => {
    try {
      window.dash_ag_grid?.getApi('trials')?.refreshInfiniteCache();
    } catch {
      // The table is not there yet; it requests its rows when it comes.
    }
  },

  keep_colour: (value) => keepInAddress('colour', value),
  keep_columns: (values) => keepInAddress('columns', values.join(',')),
  keep_filter: (model) => keepInAddress(
    'filter', Object.keys(model || {}).length ? JSON.stringify(model) : ''),
  keep_other: (value) => keepInAddress('with', value),
  keep_sql: (clicks, sql) => { if (clicks) keepInAddress('sql', sql); },

  /* The title of the tab. */
  set_title: (title) => { document.title = title; },
};
