// Keeps the moving part of a page up to date, and switches between light and dark. Pages work without it.
"use strict";

const live = document.getElementById("live");
const pause = document.getElementById("pause");
const state = document.getElementById("state");
let stream = null;
let waiting = null;
let pressed = false;

// While somebody selects, types or presses a button: a click is lost if its link is replaced before the button is up.
function busy() {
  if (pressed) return true;
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  return selected || live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
}

// Puts the new part in place of the old one, and gives the focus back to what had it.
function show(html) {
  if (busy()) {
    waiting = html;
    return;
  }
  waiting = null;
  const active = live.contains(document.activeElement) ? document.activeElement : null;
  const href = active && active.getAttribute("href");
  const open = [...live.querySelectorAll("details")].map((one) => one.open);
  live.innerHTML = html;
  live.querySelectorAll("details").forEach((one, number) => { one.open = open[number] || false; });
  if (href) {
    const again = [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
    if (again) again.focus({ preventScroll: true });
  }
}

function start() {
  stream = new EventSource(live.dataset.live);
  stream.onmessage = (event) => {
    state.textContent = "";
    document.documentElement.dataset.live = "on";
    show(event.data);
  };
  stream.addEventListener("over", () => {
    stream.close();
    location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
  });
  stream.onerror = () => { state.textContent = "The console does not answer. What you see may be old."; };
}

if (live && live.dataset.live) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    const paused = pause.getAttribute("aria-pressed") === "true";
    pause.setAttribute("aria-pressed", String(!paused));
    pause.textContent = paused ? "Pause updates" : "Updates are paused";
    if (paused) start();
    else { stream.close(); waiting = null; }
  });
  const catchUp = () => { if (waiting !== null && !busy()) show(waiting); };
  const released = () => setTimeout(() => { pressed = false; catchUp(); });  // behind the click
  document.addEventListener("selectionchange", catchUp);
  live.addEventListener("pointerdown", () => { pressed = true; });
  addEventListener("pointerup", released);
  addEventListener("pointercancel", released);
  addEventListener("pagehide", () => stream && stream.close());
  start();
}

const theme = document.getElementById("theme");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  });
}
