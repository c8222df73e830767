/* What runs in the browser itself; callbacks of the pages call these functions by name. */
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.autotune = {
  /* The address of the page, and the viewer's time zone. */
  visit: (path, search) => ({
    path, search, zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
  }),

  /* Load the script of the table, which is large; returns when it can be shown. */
  load_grid: () => new Promise((resolve, reject) => {
    if (window.dash_ag_grid) { resolve(true); return; }
    const script = document.createElement('script');
    script.src = document.querySelector('meta[name=grid-script]').content;
    script.onload = () => resolve(true);
    script.onerror = () => reject(new Error('the script of the table did not load'));
    document.body.append(script);
  }),

  /* The visible rows of the table are requested again. */
  refresh_grid: () => { window.dash_ag_grid?.getApi('trials')?.refreshInfiniteCache(); },

  /* The title of the tab. */
  set_title: (title) => { document.title = title; },
};
