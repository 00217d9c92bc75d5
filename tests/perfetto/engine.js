// Perfetto's trace processor, as its page runs it (WebAssembly), outside a browser: node engine.js FOLDER SOCKET
//
// FOLDER has engine_bundle.js and trace_processor*.wasm. What comes over the Unix socket is handed to it as it comes, and
// back: both ends speak its own protocol (TraceProcessorRpcStream), as `trace_processor server unix` does.
"use strict";
const fs = require("fs");
const net = require("net");
const path = require("path");
const vm = require("vm");

const [folder, socketPath] = process.argv.slice(2);
const { stdout } = process;

// A worker of a browser, as far as the bundle asks for it.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.console.log = globalThis.console.warn; // standard output is for `ready` alone
globalThis.XMLHttpRequest = class {
  open(method, name) {
    this.file = path.join(folder, path.basename(name));
  }
  send() {
    this.response = fs.readFileSync(this.file);
  }
};
globalThis.process = undefined; // else the bundle takes itself to be in node, for which it was not built
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));

let connection = null;
const port = { postMessage: (bytes) => connection.write(Buffer.from(bytes)) };
globalThis.onmessage({ data: port });

const server = net.createServer((socket) => {
  connection = socket;
  socket.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
  socket.on("close", () => server.close()); // and with nothing left to wait for, node ends
});
server.listen(socketPath, () => stdout.write("ready\n"));
