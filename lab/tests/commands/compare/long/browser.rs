//! The page in Chromium: what a reader sees in the light, in the dark, on a telephone and on paper, and what happens
//! when a table is sorted.
//!
//! The browser is driven by its own protocol, through two pipes: messages of JSON, each ended by a zero.

use std::path::Path;
use std::process::Stdio;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::super::report::{Report, sample, strange};
use crate::support::HANG;

const SCREEN: (u32, u32) = (1360, 900);
const TABLET: (u32, u32) = (768, 1024);
const TELEPHONE: (u32, u32) = (360, 740);
/// A4 with a margin of a centimetre: 190 mm by 277 mm at 96 dots an inch.
const PAPER: (u32, u32) = (718, 1047);
/// The summary, three workloads of two, the hand-off, five failures.
const CHARTS: usize = 1 + 6 + 1 + 5;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Light,
    Dark,
    /// The page as it is printed.
    Paper,
}

/// A browser with one page.
struct Chromium {
    child: Child,
    requests: ChildStdin,
    messages: BufReader<ChildStdout>,
    last: u64,
    /// Of the page, once there is one.
    session: Option<String>,
    /// Methods and parameters of what the browser reported without being asked.
    events: Vec<(String, Value)>,
    _profile: TempDir,
}

impl Chromium {
    async fn start() -> Chromium {
        let profile = tempfile::tempdir().expect("a directory");
        // Its pipes are 3 and 4. It has no sandbox when it runs as root.
        let script = "exec chromium --headless --no-sandbox --remote-debugging-pipe \
                      --user-data-dir=\"$0\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(profile.path()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let requests = child.stdin.take().expect("a pipe");
        let messages = BufReader::new(child.stdout.take().expect("a pipe"));
        let (session, events) = (None, Vec::new());
        Chromium { child, requests, messages, last: 0, session, events, _profile: profile }
    }

    async fn end(mut self) {
        self.session = None;
        self.call("Browser.close", json!({})).await;
        timeout(HANG, self.child.wait()).await.expect("it ends").expect("it has ended");
    }

    /// The answer to a request. What else the browser reports meanwhile is kept.
    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        let sent = self.requests.write_all(format!("{request}\0").as_bytes()).await;
        sent.expect("Chromium runs: is it installed? apt-get install chromium");
        loop {
            if let Some(mut answer) = self.message().await {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].take();
            }
        }
    }

    /// The answer to the last request, or `None` after anything else, which is kept.
    async fn message(&mut self) -> Option<Value> {
        let mut message = Vec::new();
        let read = timeout(HANG, self.messages.read_until(0, &mut message)).await;
        read.expect("it answers").expect("it runs");
        assert_eq!(
            message.pop(),
            Some(0),
            "Chromium ended: is it installed? apt-get install chromium"
        );
        let mut message: Value = serde_json::from_slice(&message).expect("JSON");
        if message["id"] == self.last {
            return Some(message);
        }
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        self.events.push((method, message["params"].take()));
        None
    }

    /// Opens a file, in place of the page before.
    async fn open(&mut self, file: &Path, (width, height): (u32, u32), mode: Mode) {
        self.session = None;
        let target = self.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach).await;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Log", "Runtime", "Network"] {
            self.call(&format!("{domain}.enable"), json!({})).await;
        }
        let (media, scheme) = match mode {
            Mode::Light => ("", "light"),
            Mode::Dark => ("", "dark"),
            Mode::Paper => ("print", "light"),
        };
        // A page that is still scrolling is no target for a click.
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        let media = json!({"media": media, "features": features});
        self.call("Emulation.setEmulatedMedia", media).await;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        self.events.clear();
        let url = format!("file://{}", file.display());
        self.call("Page.navigate", json!({"url": url})).await;
        while !self.events.iter().any(|(method, _)| method == "Page.loadEventFired") {
            self.message().await;
        }
        self.events.retain(|(_, event)| event["request"]["url"] != url.as_str());
    }

    /// The value of an expression.
    async fn ask<T: DeserializeOwned>(&mut self, expression: &str) -> T {
        let evaluate = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", evaluate).await;
        assert_eq!(answer["exceptionDetails"], Value::Null, "{expression}");
        serde_json::from_value(answer["result"]["value"].take()).expect("of that type")
    }

    /// A click of the mouse into the middle of what the expression is.
    async fn click(&mut self, element: &str) {
        let (x, y): (f64, f64) = self
            .ask(&format!(
                "(() => {{ const it = {element}; \
                 it.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}}); \
                 const box = it.getBoundingClientRect(); \
                 return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
            ))
            .await;
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    async fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event =
                json!({"type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// What the browser complained about until now: errors, what the policy forbids, requests.
    async fn complaints(&mut self) -> Vec<String> {
        const COMPLAINTS: [&str; 4] = [
            "Log.entryAdded",
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Network.requestWillBeSent",
        ];
        // Events of a page arrive in order, and before the answer to what is asked after them.
        let () = self.ask("null").await;
        let events = self.events.iter().filter(|(method, _)| COMPLAINTS.contains(&&**method));
        events.map(|(method, event)| format!("{method}: {event}")).collect()
    }
}

#[derive(Deserialize, Debug)]
struct Chart {
    shapes: usize,
    left: f64,
    right: f64,
    /// Smallest of its letters, in pixels on the screen.
    letters: f64,
    /// Texts that do not fit into the drawing.
    cut: Vec<String>,
    /// Texts that overlap.
    collisions: Vec<String>,
}

/// Of the drawing that is shown of each chart.
const LOOK: &str = r#"[...document.querySelectorAll("figure.chart")].map((figure) => {
  const svg = [...figure.querySelectorAll(".drawing svg")].find((it) => it.getClientRects().length);
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((it) => [it, it.getBoundingClientRect()]);
  const words = ([it]) => it.textContent.trim();
  const apart = (a, b) =>
    a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
  return {
    shapes: svg.querySelectorAll("polyline, polygon, circle").length,
    left: box.left,
    right: box.right,
    letters: Math.min(...texts.map(([it]) =>
      parseFloat(getComputedStyle(it).fontSize) * box.width / svg.viewBox.baseVal.width)),
    cut: texts.filter(([, it]) =>
      it.left < box.left - 2 || it.right > box.right + 2 || it.top < box.top - 2 || it.bottom > box.bottom + 2)
      .map(words),
    collisions: texts.flatMap((one, at) =>
      texts.slice(at + 1).filter((other) => !apart(one[1], other[1]))
        .map((other) => `${words(one)} | ${words(other)}`)),
  };
})"#;

/// All charts are drawn, nothing in them is cut or covered, and the page is no wider than the window.
async fn assert_can_be_read(page: &mut Chromium, width: u32) -> usize {
    let charts: Vec<Chart> = page.ask(LOOK).await;
    for chart in &charts {
        assert!(chart.shapes >= 2 && chart.letters >= 9.5, "{chart:?}");
        assert!(chart.left >= 0.0 && chart.right <= f64::from(width), "{chart:?}");
        assert!(chart.cut.is_empty() && chart.collisions.is_empty(), "{chart:?}");
    }
    let (content, window): (u32, u32) = page
        .ask("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        .await;
    assert!(content <= window, "{content} px in {window}");
    assert_eq!(page.complaints().await, [""; 0]);
    charts.len()
}

#[tokio::test]
#[ignore = "in ./test --long: needs a browser"]
async fn a_report_is_readable_on_every_screen_and_on_paper() {
    let (mut page, report) = (Chromium::start().await, Report::of(&sample()));
    let mut backgrounds = Vec::new();
    for (size, mode, name) in [
        (SCREEN, Mode::Light, "light"),
        (SCREEN, Mode::Dark, "dark"),
        (TABLET, Mode::Light, "tablet"),
        (TELEPHONE, Mode::Light, "telephone"),
        (TELEPHONE, Mode::Dark, "telephone-dark"),
        (PAPER, Mode::Paper, "paper"),
    ] {
        println!("{name}");
        page.open(&report.page(), size, mode).await;
        assert_eq!(assert_can_be_read(&mut page, size.0).await, CHARTS);
        let background = "getComputedStyle(document.body).backgroundColor";
        backgrounds.push(page.ask::<String>(background).await);
    }
    assert_ne!(backgrounds[0], backgrounds[1], "the dark is dark");
    page.end().await;
}

#[tokio::test]
#[ignore = "in ./test --long: needs a browser"]
async fn strange_figures_are_a_page_too() {
    let mut page = Chromium::start().await;
    for (name, figures) in strange() {
        let report = Report::of(&figures);
        for size in [SCREEN, TELEPHONE] {
            println!("{name}, {} px", size.0);
            page.open(&report.page(), size, Mode::Light).await;
            assert_can_be_read(&mut page, size.0).await;
        }
    }
    page.end().await;
}

/// Sorts every table by each column, upwards and downwards, and returns how many columns of figures there are, and
/// what is wrong. Rows without a figure come last, equal ones stay in their order, and all in their group.
const SORT: &str = r#"(() => {
  let figures = 0;
  const wrong = [];
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const [at, body] of [...document.querySelectorAll("tbody")].entries()) {
    const heads = [...body.closest("table").tHead.rows[0].cells];
    const rows = () => [...body.querySelectorAll("tr:not(.group)")];
    for (const [column, head] of heads.entries()) {
      const isFigure = head.classList.contains("number");
      figures += isFigure;
      const key = (row) => {
        const cell = row.cells[column];
        return !isFigure ? cell.textContent.trim()
          : cell.dataset.value === undefined ? null : Number(cell.dataset.value);
      };
      for (const [direction, sign] of [["ascending", 1], ["descending", -1]]) {
        const before = rows();
        head.querySelector("button").click();
        const order = (a, b) => key(a) === null || key(b) === null
          ? (key(a) === null) - (key(b) === null)
          : sign * (isFigure ? key(a) - key(b) : key(a).localeCompare(key(b)));
        const expected = before.toSorted(order);
        const sorted = heads.filter((it) => it.ariaSort !== "none");
        if (sorted.length !== 1 || sorted[0] !== head || head.ariaSort !== direction) {
          wrong.push(`table ${at}, column ${column}: not shown as ${direction}`);
        }
        if (rows().some((row, place) => row !== expected[place])) {
          wrong.push(`table ${at}, column ${column}: not ${direction}`);
        }
      }
    }
  }
  return [figures, wrong];
})()"#;

#[tokio::test]
#[ignore = "in ./test --long: needs a browser"]
async fn tables_sort_by_each_column_by_pointer_and_by_keyboard() {
    let (mut page, report) = (Chromium::start().await, Report::of(&sample()));
    page.open(&report.page(), SCREEN, Mode::Light).await;
    let (figures, wrong): (usize, Vec<String>) = page.ask(SORT).await;
    assert!(figures > 40 && wrong.is_empty(), "{figures} columns of figures, {wrong:#?}");
    let head = |at| format!("document.querySelectorAll('#speed thead th')[{at}]");
    let button = |at| format!("{}.querySelector('button')", head(at));
    let () = page.ask(&format!("({}.focus(), null)", button(0))).await;
    page.press("Tab", 9, "").await;
    let has_focus = format!(
        "document.activeElement === {} && \
         getComputedStyle(document.activeElement).outlineStyle !== 'none'",
        button(1)
    );
    assert!(page.ask::<bool>(&has_focus).await, "Tab goes from head to head, and one sees where");
    for (key, code, text, direction) in
        [("Enter", 13, "\r", "ascending"), (" ", 32, " ", "descending")]
    {
        page.press(key, code, text).await;
        let sorted: String = page.ask(&format!("{}.ariaSort", head(1))).await;
        assert_eq!(sorted, direction, "by {key:?}");
        assert!(page.ask::<bool>(&has_focus).await, "the focus stays");
    }
    for direction in ["ascending", "descending"] {
        page.click(&button(0)).await;
        assert_eq!(page.ask::<String>(&format!("{}.ariaSort", head(0))).await, direction);
    }
    assert_eq!(page.complaints().await, [""; 0]);
    page.end().await;
}

/// The tests above would not notice if the browser reported nothing.
#[tokio::test]
#[ignore = "in ./test --long: needs a browser"]
async fn what_the_policy_forbids_is_a_complaint() {
    let (mut page, report) = (Chromium::start().await, Report::of(&sample()));
    let broken = report.text().replace(
        "</main>",
        "<img src=\"https://example.org/x.png\"><p onclick=\"x()\">x</p></main>",
    );
    std::fs::write(report.page(), broken).expect("written");
    page.open(&report.page(), SCREEN, Mode::Light).await;
    let complaints = page.complaints().await.join("\n");
    assert!(complaints.contains("https://example.org/x.png"), "{complaints}");
    assert!(complaints.contains("Content Security Policy"), "{complaints}");
    page.end().await;
}
