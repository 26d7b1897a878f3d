// The page: composer, progress, players, downloads, history. Uses HyMotionCalls and hymotionViewer.
'use strict';

(() => {
  const $ = (id) => document.getElementById(id);
  const calls = HyMotionCalls;
  const HISTORY = 'hymotion.history';
  const MAX_HISTORY = 60;
  const MAX_TAKES = 8;
  const ENDED = ['succeeded', 'failed', 'canceled', 'expired'];
  const FORMATS = { glb: 'GLB', bvh: 'BVH', npz: 'NPZ', json: 'JSON', html: 'Web page' };
  const FIELDS = { text: 'text', duration: 'length', num_frames: 'length', seeds: 'seed', num_seeds: 'seed', guidance_scale: 'guidance', num_steps: 'steps', model: 'model' };
  const CODES = { bad_length: 'duration', clip_too_long: 'duration', bad_seeds: 'seeds', too_many_seeds: 'seeds', no_such_model: 'model', model_not_allowed: 'model' };
  const ERROR_SLOT = { num_frames: 'duration', num_seeds: 'seeds' };
  const WARNINGS = { clamped: 'lengthened to what the model makes', not_english: 'the model knows English best', seeds_repeated: 'repeated seeds were left out' };
  const EXAMPLES = ['A person walks in a circle', 'Someone jumps twice and lands softly', 'A person sits down, then stretches both arms', 'A dancer spins on the left foot'];
  const FPS = 30;

  let takes = 2;
  let shown = null; // the job on the page: { id, job, ... }
  let following = null; // AbortController of its events
  let retry = null; // a request that waits to be sent again
  let past = readPast();

  const element = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const button = (name, text, act) => {
    const node = element('button', name, text);
    node.type = 'button';
    node.addEventListener('click', act);
    return node;
  };
  const show = (id, visible) => $(id).classList.toggle('hidden', !visible);
  const sleep = (seconds, signal) => new Promise((resolve) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener('abort', () => { clearTimeout(timer); resolve(); });
  });

  // --- composer -----------------------------------------------------------------------------------

  function showLength() {
    const seconds = Number($('length').value);
    $('length-shown').textContent = `${seconds.toFixed(1)} s · ${Math.round(seconds * FPS)} frames`;
    const { min, max } = $('length');
    $('length').style.setProperty('--at', `${(100 * (seconds - min)) / (max - min)}%`);
  }

  function setTakes(count) {
    takes = Math.min(Math.max(count, 1), MAX_TAKES);
    $('takes').textContent = String(takes);
    $('fewer').disabled = takes === 1;
    $('more').disabled = takes === MAX_TAKES;
  }

  // The request of the form, or null with the errors shown.
  function readForm() {
    clearErrors();
    const text = $('text').value.trim();
    const errors = {};
    if (!text) errors.text = 'Write what should happen, such as: a person jumps over a puddle.';
    const number = (id, name, whole) => {
      const raw = $(id).value.trim().replace(',', '.');
      if (!raw) return undefined;
      const value = Number(raw);
      if (!Number.isFinite(value) || value < 0 || (whole && !Number.isSafeInteger(value))) {
        errors[name] = whole ? 'A whole number, or nothing.' : 'A number, or nothing.';
        return undefined;
      }
      return value;
    };
    const seed = number('seed', 'seeds', true);
    const request = { text, duration: Number($('length').value) };
    const guidance = number('guidance', 'guidance_scale', false);
    const steps = number('steps', 'num_steps', true);
    if (guidance !== undefined) request.guidance_scale = guidance;
    if (steps !== undefined) request.num_steps = steps;
    if ($('model').value && $('model').options.length > 1) request.model = $('model').value;
    if (Object.keys(errors).length) { showErrors(errors); return null; }
    const first = seed ?? crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
    request.seeds = Array.from({ length: takes }, (_, k) => first + k);
    return request;
  }

  function clearErrors() {
    for (const slot of document.querySelectorAll('.error')) slot.textContent = '';
    for (const field of document.querySelectorAll('[aria-invalid]')) field.removeAttribute('aria-invalid');
  }

  function showErrors(errors) {
    let first = null;
    for (const [name, message] of Object.entries(errors)) {
      const field = $(FIELDS[name] ?? 'text');
      const slot = $(`${ERROR_SLOT[name] ?? name}-error`) ?? $('text-error');
      slot.textContent = message;
      field.setAttribute('aria-invalid', 'true');
      if ($('options').contains(field)) $('options').open = true;
      first ??= field;
    }
    first?.focus();
  }

  const newId = () => {
    const random = crypto.getRandomValues(new Uint32Array(2));
    return `web-${Date.now().toString(36)}-${random[0].toString(36)}${random[1].toString(36)}`;
  };

  async function ask(event) {
    event?.preventDefault();
    if (retry) return;
    const request = readForm();
    if (request) await send(newId(), request);
  }

  // Send a request until it is taken: a full queue and a server that starts are waited for.
  async function send(id, request) {
    const stopper = new AbortController();
    retry = stopper;
    $('go').disabled = true;
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          const job = await calls.submit(id, request);
          remember({ id, text: request.text, seconds: request.duration, takes: request.seeds.length, at: Date.now(), state: job.state });
          open(id, job, request.text);
          if (matchMedia('(max-width: 860px)').matches) document.querySelector('.work').scrollIntoView({ behavior: 'smooth' });
          return;
        } catch (error) {
          if (!(await waitAfter(error, attempt, stopper.signal))) return;
        }
      }
    } finally {
      retry = null;
      $('go').disabled = false;
      if (!stopper.signal.aborted) hideNoticeUnlessBad();
    }
  }

  // Show an error; true when the request is to be sent again.
  async function waitAfter(error, attempt, signal) {
    if (error.kind === 'invalid' || CODES[error.code]) {
      hideNotice();
      showErrors(Object.keys(error.fields).length ? error.fields : { [CODES[error.code] ?? 'text']: sentence(error.message) });
      return false;
    }
    if (error.kind === 'key') { hideNotice(); askForKey(error.message); return false; }
    if (!['busy', 'away', 'lost'].includes(error.kind)) { notice(error.message, { bad: true }); return false; }
    const seconds = Math.ceil(error.retryAfter ?? Math.min(2 + 2 * attempt, 15));
    const reason = sentence(error.message.split(';')[0]);
    for (let left = seconds; left > 0 && !signal.aborted; left--) {
      notice(`${reason} Trying again in ${left} s.`, { stop: true });
      await sleep(1, signal);
    }
    if (signal.aborted) { hideNotice(); return false; }
    notice(`${reason} Trying again.`, { stop: true });
    return true;
  }

  const sentence = (text) => {
    const clean = text.trim();
    const upper = clean.charAt(0).toUpperCase() + clean.slice(1);
    return /[.!?]$/.test(upper) ? upper : `${upper}.`;
  };

  function notice(text, { bad = false, stop = false } = {}) {
    $('notice').querySelector('p').textContent = bad ? sentence(text) : text;
    $('notice').classList.toggle('bad', bad);
    show('notice-stop', stop);
    show('notice', true);
  }
  const hideNotice = () => show('notice', false);
  const hideNoticeUnlessBad = () => { if (!$('notice').classList.contains('bad')) hideNotice(); };

  // --- key ----------------------------------------------------------------------------------------

  function askForKey(reason) {
    if (reason) $('key-reason').textContent = sentence(reason);
    if (!$('key-dialog').open) $('key-dialog').showModal();
    $('key').focus();
  }

  // --- the job on the page ------------------------------------------------------------------------

  function open(id, job, text) {
    following?.abort();
    following = new AbortController();
    shown = { id, text, job: null, played: false };
    hymotionViewer.clear();
    $('clips').replaceChildren();
    for (const name of ['bar', 'note', 'lost', 'downloads']) show(name, false);
    show('job', true);
    $('job-text').textContent = text;
    document.title = `${text} · HY-Motion`;
    showPast();
    update(job ?? { state: 'queued' });
    if (!job || !ENDED.includes(job.state)) watch(id, following.signal);
  }

  // Follow a job's events, through lost connections, until it has ended.
  async function watch(id, signal) {
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        update(await calls.job(id));
        if (ENDED.includes(shown.job.state)) return;
        await calls.follow(id, (data) => { attempt = 0; if (!signal.aborted) update(data); }, signal);
        if (ENDED.includes(shown.job.state)) return;
        await sleep(0.3, signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error.kind === 'gone') { update({ state: 'expired' }); return; }
        if (error.kind === 'key') { askForKey(error.message); return; }
        const wait = error.retryAfter ?? Math.min(1 + attempt, 10);
        $('lost').textContent = `${sentence(error.message)} The work goes on there; looking again in ${Math.ceil(wait)} s.`;
        show('lost', true);
        await sleep(wait, signal);
      }
    }
  }

  function update(news) {
    if (news.id && news.id !== shown.id) return;
    show('lost', false);
    const job = shown.job = { ...shown.job, ...news };
    const ended = ENDED.includes(job.state);
    showState(job);
    show('cancel', !ended);
    showProgress(job, ended);
    showGhosts(ended ? 0 : Math.min(job.seeds?.length ?? 1, MAX_TAKES));
    changePast(shown.id, { state: job.state });
    if (job.state === 'succeeded' && !shown.played) { shown.played = true; play(shown.id, job); }
    else if (ended && !shown.played) { shown.played = true; failed(job); }
  }

  function showState(job) {
    const words = {
      queued: 'Waiting for its turn', running: 'Making the motion', succeeded: '',
      failed: 'This did not work', canceled: 'Cancelled', expired: 'No longer kept on the server',
    };
    const parts = [words[job.state] ?? job.state];
    if (job.state === 'queued' && job.paused) parts[0] = 'Paused';
    if (job.state === 'running' && job.progress > 0) parts.push(`${Math.round(100 * job.progress)} %`);
    if (!ENDED.includes(job.state) && job.eta_s > 1) parts.push(`about ${Math.ceil(job.eta_s)} s left`);
    if (job.state === 'failed') parts.push(errorText(job));
    if (job.state === 'succeeded') {
      if (job.num_frames) parts.push(`${(job.num_frames / FPS).toFixed(1)} s`);
      if (job.seeds) parts.push(`${job.seeds.length} ${job.seeds.length === 1 ? 'take' : 'takes'}`);
      if (job.model) parts.push(job.model);
      if (job.started && job.ended) parts.push(`made in ${(job.ended - job.started).toFixed(1)} s`);
      const lost = (job.clips ?? []).filter((clip) => clip.state === 'failed').length;
      if (lost) parts.push(`${lost} failed`);
      for (const warning of job.warnings ?? []) parts.push(WARNINGS[warning] ?? warning);
      if (job.truncated) parts.push('the end of the prompt was too long to be read');
    }
    $('job-state').textContent = parts.filter(Boolean).join(' · ');
    $('job-state').classList.toggle('bad', job.state === 'failed');
  }

  const errorText = (job) => job.error?.message ?? (job.clips ?? []).find((clip) => clip.error)?.error.message ?? '';

  function showProgress(job, ended) {
    const share = job.state === 'running' ? job.progress ?? 0 : 0;
    show('progress', !ended);
    $('progress').classList.toggle('waiting', !ended && !share);
    $('progress').querySelector('span').style.width = share ? `${100 * share}%` : '';
    $('progress').setAttribute('aria-valuenow', String(Math.round(100 * share)));
  }

  function showGhosts(count) {
    if ($('ghosts').childElementCount !== count) {
      $('ghosts').replaceChildren(...Array.from({ length: count }, () => element('div', 'ghost')));
    }
    show('clips', !count);
  }

  async function play(id, job) {
    const signal = following.signal;
    let data = null;
    for (let attempt = 0; !data && !signal.aborted; attempt++) {
      try {
        data = await (await calls.result(id, 'viewer')).answer.json();
      } catch (error) {
        if (error.kind !== 'lost' && error.kind !== 'away') { failedText(error.kind === 'gone' ? 'The clips are no longer kept on the server.' : error.message); return; }
        $('lost').textContent = `${sentence(error.message)} The clips are there; fetching them again.`;
        show('lost', true);
        await sleep(Math.min(1 + attempt, 10), signal);
      }
    }
    if (signal.aborted) return;
    show('lost', false);
    hymotionViewer.clear();
    hymotionViewer.add(data);
    hymotionViewer.seek(0);
    if (!matchMedia('(prefers-reduced-motion: reduce)').matches) hymotionViewer.play();
    $('clips').classList.toggle('one', data.clips.length === 1);
    [...document.querySelectorAll('#clips .card')].forEach((card, k) => card.append(cardActions(id, data.clips, k)));
    showDownloads(id, data.clips.length);
    if (document.hidden) document.title = `✓ ${shown.text} · HY-Motion`;
  }

  function cardActions(id, clips, k) {
    const row = element('div', 'actions');
    for (const format of ['glb', 'bvh', 'npz']) row.append(download(id, format, clips.length > 1 ? k : undefined));
    const seed = clips[k].meta.seed;
    if (seed !== undefined) {
      row.append(button('chip', 'Keep this seed', () => {
        $('seed').value = String(seed);
        $('options').open = true;
        setTakes(1);
        $('seed').focus();
      }));
    }
    return row;
  }

  function showDownloads(id, count) {
    const list = count > 1 ? Object.keys(FORMATS) : ['json', 'html'];
    $('downloads').replaceChildren(element('span', 'about', count > 1 ? 'All takes' : 'Also as'), ...list.map((format) => download(id, format)), button('chip', 'Use this prompt', () => {
      $('text').value = shown.text;
      $('text').focus();
    }));
    show('downloads', true);
  }

  function download(id, format, clip) {
    const whole = clip === undefined;
    const node = button('chip save', FORMATS[format], async () => {
      node.disabled = true;
      try {
        const { answer, name } = await calls.result(id, format, clip);
        const link = element('a');
        link.href = URL.createObjectURL(await answer.blob());
        link.download = name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
        node.textContent = FORMATS[format];
      } catch (error) {
        if (error.kind === 'key') askForKey(error.message);
        node.textContent = `${FORMATS[format]}: try again`;
        node.title = error.message;
      } finally {
        node.disabled = false;
      }
    });
    node.setAttribute('aria-label', `Download ${whole ? 'all' : `take ${clip + 1}`} as ${FORMATS[format]}`);
    return node;
  }

  function failed(job) {
    const texts = {
      failed: ['This did not work', errorText(job) || 'The server gave no reason.'],
      canceled: ['Cancelled', 'Nothing more is computed for this one.'],
      expired: ['No longer there', 'The server keeps clips for a limited time. The prompt is still yours to send again.'],
    };
    message(...(texts[job.state] ?? texts.failed));
  }

  const failedText = (text) => message('The clips cannot be shown', sentence(text));

  function message(title, text) {
    const box = element('div', 'message');
    const { text: prompt } = shown;
    box.append(element('h2', '', title), element('p', '', text), element('br'), button('quiet', 'Edit and send again', () => {
      $('text').value = prompt;
      $('text').focus();
    }));
    show('clips', true);
    $('clips').replaceChildren(box);
  }

  async function cancelShown() {
    const { id } = shown;
    $('cancel').disabled = true;
    try {
      const job = await calls.cancel(id);
      if (shown.id === id) update(job);
    } catch (error) {
      if (error.kind === 'key') askForKey(error.message);
      else if (shown.id === id) { $('lost').textContent = sentence(error.message); show('lost', true); }
    } finally {
      $('cancel').disabled = false;
    }
  }

  // --- history ------------------------------------------------------------------------------------

  function readPast() {
    try {
      const list = JSON.parse(localStorage.getItem(HISTORY) ?? '[]');
      return Array.isArray(list) ? list.filter((item) => typeof item?.id === 'string' && typeof item.text === 'string') : [];
    } catch { return []; }
  }

  function keepPast() {
    try { localStorage.setItem(HISTORY, JSON.stringify(past)); } catch { /* full or forbidden */ }
    showPast();
  }

  function remember(item) {
    past = [item, ...past.filter((other) => other.id !== item.id)].slice(0, MAX_HISTORY);
    keepPast();
  }

  function changePast(id, change) {
    const item = past.find((one) => one.id === id);
    if (!item || Object.entries(change).every(([name, value]) => item[name] === value)) return;
    Object.assign(item, change);
    keepPast();
  }

  function showPast() {
    show('past', past.length > 0);
    $('history').replaceChildren(...past.map((item) => {
      const row = element('li');
      const entry = button('open', undefined, () => {
        open(item.id, null, item.text);
        document.querySelector('.work').scrollIntoView({ block: 'nearest' });
      });
      const state = { succeeded: '', running: 'running', queued: 'waiting' }[item.state] ?? item.state;
      const facts = [`${Number(item.seconds).toFixed(1)} s`, `${item.takes} ${item.takes === 1 ? 'take' : 'takes'}`, ago(item.at), state];
      const title = element('b', '', item.text);
      title.dir = 'auto';
      entry.append(title, element('small', '', facts.filter(Boolean).join(' · ')));
      entry.setAttribute('aria-current', String(item.id === shown?.id));
      row.append(entry);
      return row;
    }));
  }

  function ago(at) {
    const minutes = Math.round((Date.now() - at) / 60_000);
    if (minutes < 1) return 'now';
    if (minutes < 60) return `${minutes} min ago`;
    if (minutes < 1440) return `${Math.round(minutes / 60)} h ago`;
    return new Date(at).toLocaleDateString();
  }

  // --- server -------------------------------------------------------------------------------------

  async function lookAfterServer() {
    for (;;) {
      const { state, reason } = await calls.readiness();
      $('status').dataset.state = state;
      $('status').textContent = state === 'ready' ? 'ready' : state === 'starting' ? `starting: ${reason}` : reason;
      $('status').title = reason;
      if (state === 'ready' && !$('model').options.length) await loadModels();
      await sleep(document.hidden ? 30 : state === 'ready' ? 15 : 2);
    }
  }

  async function loadModels() {
    try {
      const { data } = await calls.models();
      const names = data.map((model) => model.id);
      $('model').replaceChildren(...names.map((name) => new Option(name, name)));
      const longest = Math.max(...data.map((model) => model.max_duration_s ?? (model.max_frames ?? 360) / FPS));
      if (longest > 1) $('length').max = String(longest);
      for (const id of ['model', 'model-label']) show(id, names.length > 1);
      showLength();
    } catch (error) {
      if (error.kind === 'key') askForKey(error.message);
    }
  }

  function offerExamples() {
    const row = element('div', 'examples');
    row.append(...EXAMPLES.map((text) => button('chip', text, () => { $('text').value = text; clearErrors(); $('text').focus(); })));
    $('clips').querySelector('.message')?.append(row);
  }

  // --- start --------------------------------------------------------------------------------------

  function extendHelp() {
    const list = $('keys').querySelector('dl');
    for (const [key, text] of [['/', 'write a prompt'], ['ctrl ↵', 'make the motion, from anywhere']]) {
      const term = element('dt');
      term.append(element('kbd', '', key));
      list.append(term, element('dd', '', text));
    }
  }

  function onKey(event) {
    const typing = event.target.closest?.('textarea, input:not([type=range]), select');
    if (document.querySelector('dialog[open]')) return;
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask(); }
    else if (event.key === '/' && !typing) { event.preventDefault(); $('text').focus(); }
    else if (event.key === 'Escape' && typing) event.target.blur();
  }

  $('ask').addEventListener('submit', ask);
  $('text').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); ask(); }
  });
  $('text').addEventListener('input', () => { if ($('text-error').textContent) clearErrors(); });
  $('length').addEventListener('input', showLength);
  $('fewer').addEventListener('click', () => setTakes(takes - 1));
  $('more').addEventListener('click', () => setTakes(takes + 1));
  $('notice-stop').addEventListener('click', () => { retry?.abort(); hideNotice(); });
  $('cancel').addEventListener('click', cancelShown);
  $('forget').addEventListener('click', () => { past = []; keepPast(); });
  $('key-open').addEventListener('click', () => askForKey(calls.key() ? 'A key is in use. Enter another one, or nothing to forget it.' : ''));
  $('key-cancel').addEventListener('click', () => $('key-dialog').close());
  $('key-form').addEventListener('submit', () => {
    calls.setKey($('key').value.trim(), $('key-keep').checked);
    $('key').value = '';
    loadModels();
    if (shown && !ENDED.includes(shown.job?.state)) open(shown.id, null, shown.text);
  });
  document.addEventListener('keydown', onKey);
  extendHelp();
  setTakes(takes);
  showLength();
  for (const id of ['model', 'model-label']) show(id, false);
  showPast();
  offerExamples();
  if (past.length && !ENDED.includes(past[0].state)) open(past[0].id, null, past[0].text);
  if (matchMedia('(hover: hover)').matches) $('text').focus();
  window.addEventListener('online', () => { if (shown && !ENDED.includes(shown.job?.state)) open(shown.id, null, shown.text); });
  lookAfterServer();
})();
