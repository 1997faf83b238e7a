"use strict";
// Keeps the parts of a page up to date with what the server sends, and copies what a button is for.

const RETRY = 3000; // milliseconds
const SILENCE = 20000; // milliseconds without a word of the server, which says one more often: the connection is dead
const banner = document.querySelector(".banner");
const waiting = new Map(); // parts that somebody is looking into just now, by id

function inUse(part) {
  const selection = window.getSelection();
  const selected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return selected || part.querySelector("svg:hover, td[title]:hover") !== null;
}

function replace(part, news) {
  const open = Array.from(part.querySelectorAll("details"), (one) => one.open);
  const scrolled = Array.from(part.querySelectorAll(".scroll"), (one) => one.scrollLeft);
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  part.innerHTML = news.html; // made by our server, which escapes whatever others wrote
  part.dataset.mark = news.mark;
  part.querySelectorAll("details").forEach((one, place) => { one.open = open[place] || false; });
  part.querySelectorAll(".scroll").forEach((one, place) => { one.scrollLeft = scrolled[place] || 0; });
  if (focused) part.querySelectorAll("a[href]").forEach((one) => { if (one.getAttribute("href") === focused) one.focus(); });
}

function show() {
  for (const [id, news] of waiting) {
    const part = document.getElementById(id);
    if (part && inUse(part)) continue;
    waiting.delete(id);
    if (part && part.dataset.mark !== news.mark) replace(part, news);
  }
}

let source = null;
let asked = 0; // when the stream was last asked for
let heard = Date.now(); // when the server last said something

function hear() {
  heard = Date.now();
  banner.hidden = true;
}

function miss() {
  if (!banner.hidden) return;
  banner.textContent = `Not connected to the dashboard since ${new Date(heard).toLocaleTimeString()}; trying again`;
  banner.hidden = false;
}

function listen() {
  asked = Date.now();
  source = new EventSource(document.body.dataset.events);
  source.onopen = hear;
  source.onmessage = (message) => {
    hear();
    const news = JSON.parse(message.data);
    waiting.set(news.part, news);
    show();
  };
  source.addEventListener("quiet", hear);
  source.onerror = () => {
    miss();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, RETRY);
  };
}

// A connection may die without an error: the machine slept, or is in another network.
function check() {
  show();
  if (source.readyState !== EventSource.CLOSED && Date.now() - Math.max(heard, asked) > SILENCE) {
    miss();
    source.close();
    listen();
  }
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch { /* it is refused; pages by http of another machine have no clipboard at all */ }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (!copied) throw new Error("the browser copies nothing");
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  try {
    await copy(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select it and copy";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

listen();
setInterval(check, 500);
