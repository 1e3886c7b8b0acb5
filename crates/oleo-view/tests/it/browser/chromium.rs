//! A headless Chromium, driven by its remote protocol (Chrome DevTools Protocol) over two pipes, which needs no port and no client library: messages are JSON with a zero byte behind each.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a page may take for anything. Machines may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Chromium {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
    session: String,
    /// What pages have said about errors and what was refused.
    pub complaints: Vec<String>,
}

impl Chromium {
    /// Starts one with a page of its own; profile and downloads go below a directory.
    pub fn start(scratch: &Path) -> Chromium {
        // Descriptors 3 and 4 are what the protocol uses; the shell puts our pipes there.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions \
            --disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe --user-data-dir=\"$1\" about:blank \
            3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(scratch.join("profile")).env("HOME", scratch);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut it = Chromium { child, to, from, next: 0, session: String::new(), complaints: Vec::new() };
        let target = it.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let session = it.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        it.session = session["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            it.call(&format!("{domain}.enable"), json!({}));
        }
        it.call(
            "Browser.setDownloadBehavior",
            json!({ "behavior": "allow", "downloadPath": scratch, "eventsEnabled": true }),
        );
        it
    }

    /// Asks for something and waits for the answer; what else is said meanwhile is looked through for errors.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if !self.session.is_empty() && !method.starts_with("Target.") && !method.starts_with("Browser.") {
            message["sessionId"] = self.session.clone().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "chromium has ended");
            let said: Value = serde_json::from_slice(&bytes).unwrap();
            if said["id"] == self.next {
                assert!(said.get("error").is_none(), "{method}: {said}");
                return said["result"].clone();
            }
            self.note(&said);
        }
    }

    fn note(&mut self, said: &Value) {
        let params = &said["params"];
        match said["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"].to_string())
            }
            Some("Page.javascriptDialogOpening") => self.complaints.push(format!("a dialog: {params}")),
            _ => {}
        }
    }

    /// What an expression is in the page; promises are waited for.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    pub fn open(&mut self, url: &str) {
        let result = self.call("Page.navigate", json!({ "url": url }));
        assert!(result.get("errorText").is_none(), "{result}");
    }

    /// Looks at the tab whose address begins so, once it is there, and closes it.
    pub fn in_tab<T>(&mut self, address: &str, look: impl FnOnce(&mut Chromium) -> T) -> T {
        let began = Instant::now();
        let target = loop {
            let targets = self.call("Target.getTargets", json!({}))["targetInfos"].clone();
            let is_wanted = |target: &&Value| {
                target["type"] == "page" && target["url"].as_str().is_some_and(|url| url.starts_with(address))
            };
            if let Some(target) = targets.as_array().unwrap().iter().find(is_wanted) {
                break target["targetId"].clone();
            }
            assert!(began.elapsed() < PATIENCE, "no tab at {address}: {targets}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let session = self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        let before = std::mem::replace(&mut self.session, session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        // A tab begins with an empty document, which is complete, too.
        let address = json!(address);
        self.wait(&format!("document.URL.startsWith({address}) && document.readyState === 'complete'"));
        let seen = look(self);
        self.session = before;
        self.call("Target.closeTarget", json!({ "targetId": target }));
        seen
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let began = Instant::now();
        while self.eval(expression) != true {
            assert!(
                began.elapsed() < PATIENCE,
                "never: {expression}: {}",
                self.eval("document.body && document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The width and height of the page at a width, and a picture of it.
    pub fn size_at(&mut self, width: u32, dark: bool) -> (f64, f64) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false }),
        );
        let scheme = if dark { "dark" } else { "light" };
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        );
        let size = self.eval("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]");
        (size[0].as_f64().unwrap(), size[1].as_f64().unwrap())
    }

    /// Chooses files in a field of the page, as in its dialog.
    pub fn choose_files(&mut self, selector: &str, files: &[&Path]) {
        let root = self.call("DOM.getDocument", json!({}))["root"]["nodeId"].clone();
        let field = self.call("DOM.querySelector", json!({ "nodeId": root, "selector": selector }))["nodeId"].clone();
        self.call("DOM.setFileInputFiles", json!({ "nodeId": field, "files": files }));
    }

    /// Drops files on the page, as from a file manager.
    pub fn drop_files(&mut self, files: &[&Path]) {
        for kind in ["dragEnter", "dragOver", "drop"] {
            let data = json!({ "items": [], "files": files, "dragOperationsMask": 1 });
            self.call("Input.dispatchDragEvent", json!({ "type": kind, "x": 100, "y": 100, "data": data }));
        }
    }

    pub fn press(&mut self, key: &str) {
        let code = if key == "Tab" { 9 } else { 13 };
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" && kind == "keyDown" { "\r" } else { "" };
            self.call(
                "Input.dispatchKeyEvent",
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text }),
            );
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.to.write_all(b"{\"id\":1000000,\"method\":\"Browser.close\"}\0");
        let began = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if began.elapsed() > Duration::from_secs(10) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
