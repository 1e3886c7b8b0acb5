// The page of the explorer. Names come as JSON and become text, never markup: nothing here sets innerHTML. A path is the encoded bytes of its names, joined by slashes, so that names
// which are no text can be opened, too.
"use strict";

// Where answers come from: the server of this page, or, in the page that is alone, what it brings along (`alone.js`).
const source = typeof oleo !== "undefined" ? oleo : {
  fetch: (address, options) => fetch(address, options),
  link: (a, address) => { a.href = address; return a; },
  page: (a) => a,
  picture: (img, address) => { img.src = address; },
  whenOpened: (call) => call(),
};

const $ = (id) => document.getElementById(id);
const PAGE = 200;
const LINES_MAX = 2000;
let here = "";
let running = null;
let offers = [];

function element(name, text, attributes) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return made;
}

function human(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let n = bytes, unit = 0;
  while (n >= 1024 && unit + 1 < units.length) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(2) : n) + " " + units[unit];
}

function day(seconds) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  return isNaN(date) ? String(seconds) : date.toISOString().slice(0, 19).replace("T", " ");
}

function say(text, bad) {
  $("status").textContent = text;
  $("status").className = bad ? "bad" : "";
}

async function ask(address) {
  const answer = await source.fetch(address);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return parsed(await answer.text());
}

// Numbers that this language cannot hold stay as they are written, if the browser says how that is.
function parsed(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && context && /^[0-9]+$/.test(context.source || "") ? context.source : value);
}

// Lines of JSON as they come, as long as `each` does not return false.
async function lines(address, each) {
  if (running) running.abort();
  const mine = new AbortController();
  running = mine;
  const answer = await source.fetch(address, { signal: mine.signal });
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part && each(parsed(part)) === false) { mine.abort(); return; }
    }
  }
}

const place = (raw) => "#" + raw;
// What a name that is no text is called on the way is its escaped form; only links need the bytes.
const shown = new Map([["", "volume"]]);

// Characters that a terminal obeys, that turn the order of letters around, or that are not seen: those of `name_text` on the server.
const HIDDEN = /[\p{Cc}\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff]/u;

function way(raw) {
  const nav = $("way");
  nav.replaceChildren(element("a", shown.get("") || "volume", { href: place("") }));
  let so_far = "";
  for (const part of raw.split("/").filter(Boolean)) {
    so_far = so_far ? so_far + "/" + part : part;
    let text = shown.get(so_far);
    if (text === undefined) { try { text = decodeURIComponent(part); } catch { text = part; } }
    if (HIDDEN.test(text)) text = part;
    nav.append(" / ", element("a", text, { href: place(so_far) }));
  }
  nav.lastElementChild.setAttribute("aria-current", "page");
}

function row(entry) {
  const raw = here ? here + "/" + entry.raw : entry.raw;
  shown.set(raw, entry.name);
  const tr = element("tr");
  const name = element("td");
  name.append(element("a", entry.name, { href: place(raw) }));
  if (entry.link !== null) name.append(" → " + entry.link);
  const kind = entry.subvolume ? "subvolume " + entry.subvolume : entry.kind;
  tr.append(name, element("td", kind), element("td", entry.kind === "file" ? human(entry.size) : "", { class: "number" }),
    element("td", day(entry.mtime)), element("td", entry.mode));
  return tr;
}

async function page(raw, after) {
  const list = await ask("api/list?path=" + raw + "&limit=" + PAGE + "&after=" + after);
  if (raw !== here) return;
  if (list.kind !== "dir") return file(raw, list);
  $("file").hidden = true;
  $("entries").hidden = false;
  if (!after) {
    $("rows").replaceChildren();
    $("actions").replaceChildren();
    if (offers.includes("tar")) $("actions").append(source.link(element("a", "Download as tar"), "tar?path=" + raw, failed), " · ");
    $("actions").append(source.link(element("a", offers.includes("tar") ? "as zip" : "Download as zip"), "zip?path=" + raw, failed));
  }
  // A directory that is whole on one page is sorted by name; others come in the order of their making.
  if (!after && list.next === null) list.entries.sort((a, b) => (a.kind === "dir" ? 0 : 1) - (b.kind === "dir" ? 0 : 1) || (a.name < b.name ? -1 : 1));
  $("rows").append(...list.entries.map(row));
  $("more").hidden = list.next === null;
  $("more").onclick = () => page(raw, list.next).catch(failed);
  const count = $("rows").childElementCount;
  say(count + (list.next === null ? " entries" : " entries so far"));
}

function file(raw, about) {
  $("entries").hidden = true;
  $("file").hidden = false;
  $("file-title").textContent = $("way").lastElementChild.textContent;
  const facts = $("file-facts");
  facts.replaceChildren();
  const fact = (name, value) => { if (value !== null && value !== undefined) facts.append(element("dt", name), element("dd", value)); };
  fact("Kind", about.kind);
  fact("Size", about.size + " bytes (" + human(about.size) + ")");
  fact("Changed", day(about.mtime));
  fact("Mode", about.mode);
  fact("Owner", about.uid + ":" + about.gid);
  fact("Subvolume, inode", about.subvolume + ", " + about.inode);
  fact("Target", about.link);
  $("picture").hidden = true;
  $("picture").removeAttribute("src");
  $("content").hidden = true;
  $("content-more").hidden = true;
  const actions = $("file-actions");
  actions.replaceChildren();
  if (about.kind !== "file") return say("");
  actions.append(source.link(element("a", "Download"), "file?path=" + raw, failed));
  for (const [text, show] of [["As text", text_of], ["As hex", hex_of]]) {
    const button = element("button", text, { type: "button" });
    button.onclick = () => show(raw, 0).catch(failed);
    actions.append(" ", button);
  }
  if (about.picture) {
    source.picture($("picture"), "image?path=" + raw, failed);
    $("picture").alt = "Contents of " + $("file-title").textContent;
    $("picture").hidden = false;
  } else {
    text_of(raw, 0).catch(failed);
  }
  say("");
}

async function text_of(raw, at) {
  const part = await ask("api/text?path=" + raw + "&at=" + at);
  if (raw !== here) return;
  if (!part.is_text && !at) return hex_of(raw, 0);
  content(part.text, "", at, part.next, () => text_of(raw, part.next));
}

async function hex_of(raw, at) {
  const part = await ask("api/hex?path=" + raw + "&at=" + at);
  if (raw !== here) return;
  content(part.rows.map((line) => line + "\n").join(""), "hex", at, part.next, () => hex_of(raw, part.next));
}

function content(text, kind, at, next, more) {
  const pre = $("content");
  pre.className = kind;
  if (at) pre.append(text); else pre.textContent = text;
  pre.hidden = false;
  $("content-more").hidden = next === null;
  $("content-more").onclick = () => more().catch(failed);
}

function failed(error) {
  if (error.name !== "AbortError") say(error.message, true);
}

function found(title) {
  $("found").hidden = false;
  $("found-title").textContent = title;
  $("found-list").replaceChildren();
  // What is told of a path, the path's link, and the path.
  return (text, raw, path = text) => {
    if ($("found-list").childElementCount >= LINES_MAX) return false;
    const li = element("li");
    if (raw) { shown.set(raw, path.slice(path.lastIndexOf("/") + 1)); }
    li.append(raw ? element("a", text, { href: place(raw) }) : text);
    $("found-list").append(li);
    return true;
  };
}

// What a path as a whole is encoded as has its slashes encoded, too.
const split = (raw) => raw.replaceAll("%2F", "/");

$("search").onsubmit = (event) => {
  event.preventDefault();
  const add = found("Names with “" + $("name").value + "”");
  lines("api/search?path=" + here + "&name=" + encodeURIComponent($("name").value), (line) => {
    if (line.path !== undefined) add(line.path, split(line.raw));
    else say(line.looked_at + " names looked at" + (line.done ? (line.more ? "; there are more finds than are shown" : "; that is all") : " …")
      + (line.left_out ? "; what is in " + line.left_out + " further directories is left out" : "")
      + (line.unread ? "; " + line.unread + " directories cannot be read" : ""), line.unread > 0 || line.left_out > 0);
  }).catch(failed);
};

$("compare").onsubmit = (event) => {
  event.preventDefault();
  const add = found("From " + $("old").selectedOptions[0].textContent + " to " + $("new").selectedOptions[0].textContent);
  say("comparing …");
  lines("api/compare?old=" + $("old").value + "&new=" + $("new").value, (line) => {
    if (line.error) say(line.error, true);
    else if (line.done) say(line.told + " differences" + (line.more ? " and more" : ""));
    else if (!add(line.change + ": " + line.path, line.raw && split(line.raw), line.path)) {
      say("The list is cut: there are more than " + LINES_MAX + " differences");
      return false;
    }
  }).catch(failed);
};

function check(data) {
  const add = found("What a check found");
  say("checking …");
  lines("api/check?data=" + data, (line) => {
    if (line.error) say(line.error, true);
    else if (line.finished) say((line.sound ? "sound" : "damaged") + ", " + line.findings + " findings" + (line.left_out ? " and " + line.left_out + " more" : ""), !line.sound);
    else if (line.what) say("checking " + line.what + ": " + line.done + " of at most " + line.expected);
    else add(line.severity + ": " + line.kind + (line.at === null ? "" : " at " + line.at) + ": " + line.text
      + (line.paths.length ? " — " + line.paths.join(", ") + (line.more_paths ? " and more" : "") : ""));
  }).catch(failed);
}
$("check").onclick = () => check(0);
$("check-data").onclick = () => check(1);
$("found-close").onclick = () => { if (running) running.abort(); $("found").hidden = true; };

function show() {
  here = location.hash.slice(1);
  way(here);
  page(here, 0).catch((error) => { $("entries").hidden = true; $("file").hidden = true; failed(error); });
}

async function live() {
  try {
    const now = await ask("api/live");
    if (!now.mounted) return;
    const state = now.balance ? JSON.stringify(now.balance.state || now.balance) : "none";
    $("live").hidden = false;
    $("live").textContent = "Mounted, generation " + now.generation + ". Balance: " + state;
  } catch (error) {
    $("live").textContent = "The mount does not answer: " + error.message;
  }
  setTimeout(live, 2000);
}

async function begin() {
  const info = await ask("api/info");
  const name = info.label || info.uuid;
  shown.set("", name);
  $("label").textContent = name;
  document.title = name + " – Oleo explorer";
  $("facts").textContent = human(info.total) + (info.available === null ? "" : ", " + human(info.available) + " available") + "; UUID " + info.uuid + ", generation " + info.generation
    + (info.missing ? "; " + info.missing + " of " + info.devices + " devices are missing" : "")
    + (info.cut_short && info.cut_short.length ? "; cut short, so that not everything can be read: " + info.cut_short.join(", ") : "")
    + (info.unapplied ? "; what was synced since the last commit is not shown: " + info.unapplied : "");
  offers = info.offers;
  $("maps").hidden = !offers.includes("maps");
  for (const a of document.querySelectorAll("#maps a")) source.page(a, failed);
  $("damage").hidden = !offers.includes("check");
  $("subvolumes").replaceChildren();
  for (const select of ["old", "new"]) $(select).replaceChildren();
  $("found").hidden = true;
  show();
  const list = await ask("api/subvolumes");
  for (const subvolume of list.subvolumes) {
    const text = subvolume.path || "(top level)";
    const raw = split(subvolume.raw);
    const li = element("li");
    li.append(element("a", text, { href: place(raw) }), " " + subvolume.id + (subvolume.read_only ? " ro" : "")
      + (subvolume.snapshot_of ? ", snapshot of " + subvolume.snapshot_of : ""));
    $("subvolumes").append(li);
    for (const select of ["old", "new"]) $(select).append(element("option", text, { value: subvolume.id }));
  }
  if (list.left_out) $("subvolumes").append(element("li", list.left_out + " more"));
  $("new").selectedIndex = $("new").options.length - 1;
  if (info.mounted) live();
}

// The hash is the path that is shown.
$("skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };
window.onhashchange = show;
source.whenOpened(() => begin().catch(failed));
