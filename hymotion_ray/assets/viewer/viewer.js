// The page: cards, playback and keys around the stage. Public: window.hymotionViewer.
'use strict';

(() => {
  const $ = (id) => document.getElementById(id);
  const ICONS = {
    play: '<svg viewBox="0 0 24 24"><path d="M8 5.2v13.6c0 .8.9 1.3 1.6.9l10.4-6.8c.6-.4.6-1.4 0-1.8L9.6 4.3C8.9 3.9 8 4.4 8 5.2Z"/></svg>',
    pause: '<svg viewBox="0 0 24 24"><rect x="6" y="4.5" width="4.2" height="15" rx="1.2"/><rect x="13.8" y="4.5" width="4.2" height="15" rx="1.2"/></svg>',
    grow: '<svg viewBox="0 0 24 24"><path d="M14 4h6v6M20 4l-7 7M10 20H4v-6M4 20l7-7"/></svg>',
  };
  const SHOWS = ['body', 'both', 'skeleton'];
  const HOME = { azimuth: 0.5, elevation: 0.2, zoom: 1 };
  const MAX_ELEVATION = 1.45;

  const view = { ...HOME, follow: true, grid: true, show: 'body' };
  const cards = [];
  const state = { time: 0, playing: false, speed: 1, loop: true, focus: null, dirty: true, theme: 'light' };
  let stage = null;
  let hovered = null;

  // --- cards --------------------------------------------------------------------------------------

  const element = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  function facts(clip) {
    const list = element('div', 'facts');
    const add = (label, value) => {
      if (value === undefined || value === '') return;
      const item = element('span');
      if (label) item.append(element('b', '', label));
      item.append(String(value));
      list.append(item);
    };
    add('', `${(clip.num_frames / clip.fps).toFixed(1)} s`);
    add('', `${clip.num_frames} frames${clip.fps === 30 ? '' : ` at ${+clip.fps.toFixed(3)}`}`);
    add('seed', clip.meta.seed);
    add('id', clip.meta.id);
    add('model', clip.meta.model);
    add('licence', clip.meta.licence);
    return list;
  }

  function addCard(clip) {
    const root = element('section', 'card');
    const box = element('div', 'stage');
    const canvas = element('canvas');
    const grow = element('button', 'icon');
    grow.type = 'button';
    grow.innerHTML = ICONS.grow;
    grow.title = 'Enlarge (Enter)';
    grow.setAttribute('aria-label', 'Enlarge');
    box.append(canvas, grow);
    const caption = element('div', 'caption');
    const text = clip.meta.prompt;
    const prompt = element('p', text ? 'prompt' : 'prompt none', text || 'no prompt');
    prompt.dir = 'auto';
    prompt.title = text || '';
    prompt.addEventListener('click', () => prompt.classList.toggle('open'));
    caption.append(prompt, facts(clip));
    root.append(box, caption);
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', text ? `Motion: ${text}` : 'Motion');
    const card = { clip, root, box, canvas, context: canvas.getContext('2d'), visible: true };
    grow.addEventListener('click', () => setFocus(state.focus === card ? null : card));
    box.addEventListener('dblclick', () => setFocus(state.focus === card ? null : card));
    root.addEventListener('pointerenter', () => { hovered = card; });
    lookAround(box);
    cards.push(card);
    $('clips').append(root);
    seen.observe(box);
    sized.observe(box);
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) cardOf(entry.target).visible = entry.isIntersecting;
    state.dirty = true;
  }, { rootMargin: '80px' });
  const sized = new ResizeObserver(() => { state.dirty = true; });
  const cardOf = (box) => cards.find((card) => card.box === box);

  function setFocus(card) {
    state.focus?.root.classList.remove('focus');
    state.focus = card;
    card?.root.classList.add('focus');
    document.body.classList.toggle('focused', Boolean(card));
    seek(Math.min(state.time, duration()));
  }

  function stepFocus(step) {
    if (!state.focus) return;
    setFocus(cards[(cards.indexOf(state.focus) + step + cards.length) % cards.length]);
  }

  // --- looking around -----------------------------------------------------------------------------

  const pointers = new Map();

  function lookAround(box) {
    let gap = 0;
    const spread = () => {
      const [a, b] = [...pointers.values()];
      return Math.hypot(a.x - b.x, a.y - b.y);
    };
    box.addEventListener('pointerdown', (event) => {
      if (event.target.closest('button')) return;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      box.setPointerCapture(event.pointerId);
      if (pointers.size === 2) gap = spread();
    });
    box.addEventListener('pointermove', (event) => {
      const last = pointers.get(event.pointerId);
      if (!last) return;
      const dx = event.clientX - last.x, dy = event.clientY - last.y;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (pointers.size === 2) {
        zoom(gap / Math.max(spread(), 1));
        gap = spread();
      } else {
        view.azimuth -= dx * 0.008;
        view.elevation = Math.min(Math.max(view.elevation + dy * 0.006, -0.1), MAX_ELEVATION);
      }
      state.dirty = true;
    });
    for (const name of ['pointerup', 'pointercancel', 'lostpointercapture']) {
      box.addEventListener(name, (event) => pointers.delete(event.pointerId));
    }
    box.addEventListener('wheel', (event) => {
      if (!state.focus && !event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      zoom(Math.exp(event.deltaY * (event.ctrlKey ? 0.01 : 0.0012)));
    }, { passive: false });
  }

  function zoom(factor) {
    view.zoom = Math.min(Math.max(view.zoom * factor, 0.3), 4);
    state.dirty = true;
  }

  // --- playback -----------------------------------------------------------------------------------

  const duration = () => (state.focus ? state.focus.clip.duration : Math.max(0, ...cards.map((c) => c.clip.duration)));
  const frameRate = () => Math.max(1, ...cards.map((c) => c.clip.fps));

  function seek(time) {
    state.time = Math.min(Math.max(time, 0), duration());
    state.dirty = true;
  }

  function setPlaying(playing) {
    state.playing = playing && cards.length > 0;
    if (state.playing && !state.loop && state.time >= duration()) state.time = 0;
    $('play').innerHTML = state.playing ? ICONS.pause : ICONS.play;
    $('play').setAttribute('aria-label', state.playing ? 'Pause' : 'Play');
    state.dirty = true;
  }

  function advance(seconds) {
    if (!state.playing) return;
    const end = duration();
    state.time += seconds * state.speed;
    if (state.time > end) {
      if (state.loop) state.time = end > 0 ? state.time % end : 0;
      else { state.time = end; setPlaying(false); }
    }
    state.dirty = true;
  }

  function step(frames) {
    setPlaying(false);
    seek((Math.round(state.time * frameRate()) + frames) / frameRate());
  }

  function changeSpeed(direction) {
    const options = [...$('speed').options];
    const next = $('speed').selectedIndex + direction;
    if (!options[next]) return;
    $('speed').selectedIndex = next;
    state.speed = Number(options[next].value);
  }

  function toggle(name) {
    const owner = name === 'loop' ? state : view;
    owner[name] = !owner[name];
    $(name).setAttribute('aria-pressed', String(owner[name]));
    state.dirty = true;
  }

  function nextShow() {
    view.show = SHOWS[(SHOWS.indexOf(view.show) + 1) % SHOWS.length];
    $('body').setAttribute('aria-pressed', String(view.show !== 'skeleton'));
    state.dirty = true;
  }

  function setTheme(theme) {
    state.theme = theme;
    document.documentElement.dataset.theme = theme;
    stage?.setTheme(theme);
    state.dirty = true;
  }

  function resetView() {
    Object.assign(view, HOME);
    state.dirty = true;
  }

  // --- drawing ------------------------------------------------------------------------------------

  function drawCards() {
    const shown = state.focus ? [state.focus] : cards.filter((card) => card.visible);
    const density = Math.min(window.devicePixelRatio || 1, shown.length > 6 ? 1.5 : 2);
    for (const card of shown) {
      const width = Math.max(1, Math.round(card.box.clientWidth * density));
      const height = Math.max(1, Math.round(card.box.clientHeight * density));
      if (card.canvas.width !== width || card.canvas.height !== height) {
        Object.assign(card.canvas, { width, height });
      }
      stage.draw(card.clip, state.time, view, card.context);
    }
  }

  function showTime() {
    const end = duration();
    const scrub = $('scrub');
    scrub.max = String(end || 1);
    scrub.value = String(state.time);
    scrub.style.setProperty('--at', `${end ? (100 * state.time) / end : 0}%`);
    $('time').textContent = `${state.time.toFixed(2)} / ${end.toFixed(2)} s`;
  }

  let last = 0;
  function tick(now) {
    advance(Math.min((now - last) / 1000, 0.1));
    last = now;
    if (state.dirty && cards.length) {
      state.dirty = false;
      drawCards();
      showTime();
      document.documentElement.dataset.drawn = 'true';
    }
    requestAnimationFrame(tick);
  }

  // --- start --------------------------------------------------------------------------------------

  function message(title, text) {
    const box = element('div', 'message');
    box.append(element('h2', '', title), element('p', '', text));
    $('clips').prepend(box);
  }

  function add(data) {
    $('clips').querySelector('.message')?.remove();
    const figures = data.figures.map((figure) => HyMotionStage.readFigure(figure, data.parents));
    for (const clip of data.clips) addCard(HyMotionStage.readClip(clip, figures));
    $('count').textContent = cards.length ? `${cards.length} ${cards.length === 1 ? 'clip' : 'clips'}` : '';
    $('clips').classList.toggle('few', cards.length < 5);
    $('note').classList.toggle('hidden', !stage || !cards.length);
    $('bar').classList.toggle('hidden', !stage || !cards.length);
    if (!stage && cards.length) {
      for (const card of cards) card.box.remove();
      message('This browser shows no 3D', 'The clips are listed below; playing them needs WebGL, which is switched off or missing here.');
    }
    if (!cards.length) message(...(data.empty ?? ['No clips', 'This page was written without any motion to play.']));
    state.dirty = true;
  }

  function clear() {
    setFocus(null);
    setPlaying(false);
    cards.length = 0;
    $('clips').replaceChildren();
    seek(0);
  }

  // World positions of a clip's joints as last drawn, [[x, y, z], ...] in metres; for checks.
  const joints = (index) => HyMotionStage.joints(cards[index].clip);

  const KEYS = {
    ' ': () => setPlaying(!state.playing),
    ArrowLeft: (event) => step(event.shiftKey ? -10 : -1),
    ArrowRight: (event) => step(event.shiftKey ? 10 : 1),
    Home: () => seek(0),
    End: () => seek(duration()),
    '-': () => changeSpeed(-1), _: () => changeSpeed(-1),
    '+': () => changeSpeed(1), '=': () => changeSpeed(1),
    l: () => toggle('loop'), f: () => toggle('follow'), g: () => toggle('grid'),
    b: nextShow, r: resetView, t: () => setTheme(state.theme === 'dark' ? 'light' : 'dark'),
    Enter: () => setFocus(state.focus ? null : hovered ?? cards[0] ?? null),
    Escape: () => setFocus(null),
    '[': () => stepFocus(-1), ']': () => stepFocus(1),
    '?': () => $('keys').showModal(),
  };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $('keys').open) return;
    const inControl = event.target.closest?.('select, button, summary, a');
    if (inControl && (event.key === 'Enter' || event.key === ' ')) return;
    const act = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
    if (!act || event.target.closest?.('select, textarea, input:not(#scrub)')) return;
    event.preventDefault();
    act(event);
  }

  function listen() {
    $('play').addEventListener('click', () => setPlaying(!state.playing));
    $('scrub').addEventListener('input', () => { setPlaying(false); seek(Number($('scrub').value)); });
    $('speed').addEventListener('change', () => { state.speed = Number($('speed').value); });
    for (const name of ['loop', 'follow', 'grid']) $(name).addEventListener('click', () => toggle(name));
    $('body').addEventListener('click', nextShow);
    $('reset').addEventListener('click', resetView);
    $('theme').addEventListener('click', KEYS.t);
    $('help').addEventListener('click', KEYS['?']);
    $('keys').addEventListener('click', (event) => { if (event.target === $('keys')) $('keys').close(); });
    document.addEventListener('keydown', onKey);
  }

  function start() {
    listen();
    try {
      stage = HyMotionStage.create();
      stage.canvas.addEventListener('webglcontextlost', (event) => event.preventDefault());
      stage.canvas.addEventListener('webglcontextrestored', () => { state.dirty = true; });
    } catch {
      stage = null;
    }
    const dark = matchMedia('(prefers-color-scheme: dark)');
    setTheme(dark.matches ? 'dark' : 'light');
    dark.addEventListener('change', () => setTheme(dark.matches ? 'dark' : 'light'));
    const data = JSON.parse($('data').textContent);
    add(data);
    if (!stage) return;
    setPlaying(!matchMedia('(prefers-reduced-motion: reduce)').matches);
    requestAnimationFrame((now) => { last = now; tick(now); });
  }

  window.hymotionViewer = { add, clear, seek, joints, play: () => setPlaying(true), pause: () => setPlaying(false), state, view };
  start();
})();
