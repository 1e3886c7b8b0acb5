// Runs in a worker of the page, behind engine.js: only there may files be read without waiting for them.
"use strict";

let engine = null;
let files = [];
let current = 0;
// After a defect nothing is answered: the page starts another worker and asks that.
let dead = false;
const reader = new FileReaderSync();

function read(file, offset, bytes) {
  const part = reader.readAsArrayBuffer(files[file].slice(offset, offset + bytes.length));
  if (part.byteLength !== bytes.length) throw new Error("short");
  bytes.set(new Uint8Array(part));
}

function say(what, bytes) {
  if (what === 1) {
    const copy = bytes.slice();
    postMessage({ id: current, piece: copy.buffer }, [copy.buffer]);
  } else {
    const text = new TextDecoder().decode(bytes);
    postMessage(what === 0 ? { id: current, head: JSON.parse(text) } : { id: current, error: text });
  }
}

async function answer(data) {
  if (dead) return;
  current = data.id;
  try {
    if (data.wasm) {
      files = data.files;
      engine = await oleoEngine(data.wasm, read, say);
      postMessage({ id: data.id, whole: engine.open(files.map((file) => [file.name, file.size])) });
    } else {
      postMessage({ id: data.id, whole: engine.ask(data.address) });
    }
  } catch (error) {
    dead = true;
    postMessage({ id: data.id, error: String(error), dead });
  }
}

// One after the other: what is asked while the volume is being opened waits for that.
let last = Promise.resolve();
onmessage = ({ data }) => { last = last.then(() => answer(data)); };
