//! A page in a real Chromium, driven as its user would.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use headless_chrome::protocol::cdp::types::Event;
use headless_chrome::protocol::cdp::{Emulation, Network, Page as PageDomain};
use headless_chrome::{Browser, LaunchOptions, Tab};
use serde::de::DeserializeOwned;

/// What a browser is given; far more than it needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Said by ourselves after all else.
const END: &str = "this is the end of the console";

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Mode {
    Light,
    Dark,
    /// The page as it is printed.
    Paper,
}

/// A browser, which ends with this.
pub(super) struct Chromium(Browser);

impl Chromium {
    pub(super) fn start() -> Chromium {
        let path = headless_chrome::browser::default_executable().unwrap_or_else(|why| {
            panic!("no Chromium was found ({why}): install it, `apt-get install chromium`")
        });
        let options = LaunchOptions {
            path: Some(path),
            // Chromium has no sandbox when it runs as root.
            sandbox: false,
            idle_browser_timeout: PATIENCE,
            ..LaunchOptions::default()
        };
        Chromium(Browser::new(options).expect("Chromium starts"))
    }

    pub(super) fn open(&self, file: &Path, (width, height): (u32, u32), mode: Mode) -> Page {
        let tab = self.0.new_tab().expect("a tab");
        tab.set_default_timeout(PATIENCE);
        let (sender, complaints) = channel();
        listen(&tab, sender, file);
        emulate(&tab, (width, height), mode);
        tab.navigate_to(&format!("file://{}", file.display())).expect("navigated");
        tab.wait_until_navigated().expect("loaded");
        Page { tab, complaints }
    }
}

/// An open page.
pub(super) struct Page {
    tab: Arc<Tab>,
    complaints: Receiver<String>,
}

impl Page {
    /// The value of an expression.
    pub(super) fn ask<T: DeserializeOwned>(&self, expression: &str) -> T {
        let answer = self.tab.evaluate(&format!("JSON.stringify({expression})"), true);
        let answer = answer.expect("evaluated");
        let text = answer.value.as_ref().and_then(|value| value.as_str());
        let text = text.unwrap_or_else(|| panic!("{expression} has no value: {answer:?}"));
        serde_json::from_str(text).expect("of that type")
    }

    /// A click of the mouse into the middle of what the expression is.
    pub(super) fn click(&self, element: &str) {
        let (x, y): (f64, f64) = self.ask(&format!(
            "(() => {{ const it = {element}; it.scrollIntoView({{block: 'center', inline: 'center', \
             behavior: 'instant'}}); const box = it.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        let point = headless_chrome::browser::tab::point::Point { x, y };
        self.tab.click_point(point).expect("clicked");
    }

    pub(super) fn press(&self, key: &str) {
        self.tab.press_key(key).expect("pressed");
    }

    /// What the browser complained about until now: errors, what the policy forbids, requests.
    pub(super) fn complaints(&self) -> Vec<String> {
        // Events arrive in order: after this one there is nothing from before.
        self.tab.evaluate(&format!("console.log('{END}')"), false).expect("said");
        let mut complaints = Vec::new();
        loop {
            match self.complaints.recv_timeout(PATIENCE).expect("what was said arrives") {
                said if said == END => return complaints,
                said => complaints.push(said),
            }
        }
    }

    /// A picture of the whole page, for a visual check, in the directory that the user names.
    pub(super) fn keep(&self, name: &str) {
        let Some(directory) = std::env::var_os("FENCELOCK_PAGES") else { return };
        let (width, height): (f64, f64) =
            self.ask("[innerWidth, document.documentElement.scrollHeight]");
        let clip = PageDomain::Viewport { x: 0.0, y: 0.0, width, height, scale: 1.0 };
        let picture = self.tab.call_method(PageDomain::CaptureScreenshot {
            format: Some(PageDomain::CaptureScreenshotFormatOption::Png),
            clip: Some(clip),
            quality: None,
            from_surface: Some(true),
            capture_beyond_viewport: Some(true),
            optimize_for_speed: None,
        });
        let picture = picture.expect("a picture").data;
        let picture = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, picture);
        std::fs::create_dir_all(&directory).expect("a directory");
        let file = Path::new(&directory).join(name);
        std::fs::write(&file, picture.expect("base64")).expect("kept");
    }
}

fn listen(tab: &Tab, sender: Sender<String>, file: &Path) {
    let own = format!("file://{}", file.display());
    let listener = move |event: &Event| {
        let said = match event {
            Event::LogEntryAdded(entry) => format!("{:?}", entry.params.entry),
            Event::RuntimeExceptionThrown(thrown) => {
                format!("{:?}", thrown.params.exception_details)
            }
            Event::RuntimeConsoleAPICalled(call) => {
                let first = call.params.args.first().and_then(|argument| argument.value.as_ref());
                match first.and_then(|value| value.as_str()) {
                    Some(END) => END.to_owned(),
                    _ => format!("{:?}", call.params),
                }
            }
            Event::NetworkRequestWillBeSent(sent) if sent.params.request.url != own => {
                format!("a request to {}", sent.params.request.url)
            }
            _ => return,
        };
        // The receiver is gone once the page was closed.
        let _ = sender.send(said);
    };
    tab.add_event_listener(Arc::new(listener)).expect("a listener");
    tab.enable_log().expect("the log");
    tab.enable_runtime().expect("the console");
    let network = Network::Enable {
        max_total_buffer_size: None,
        max_resource_buffer_size: None,
        max_post_data_size: None,
        report_direct_socket_traffic: None,
        enable_durable_messages: None,
    };
    tab.call_method(network).expect("the network");
}

fn emulate(tab: &Tab, (width, height): (u32, u32), mode: Mode) {
    let (media, scheme) = match mode {
        Mode::Light => (None, "light"),
        Mode::Dark => (None, "dark"),
        Mode::Paper => (Some("print".to_owned()), "light"),
    };
    let feature = Emulation::MediaFeature {
        name: "prefers-color-scheme".to_owned(),
        value: scheme.to_owned(),
    };
    let media = Emulation::SetEmulatedMedia { media, features: Some(vec![feature]) };
    tab.call_method(media).expect("a mode");
    let metrics = Emulation::SetDeviceMetricsOverride {
        width,
        height,
        device_scale_factor: 1.0,
        mobile: width < 500,
        scale: None,
        screen_width: None,
        screen_height: None,
        position_x: None,
        position_y: None,
        dont_set_visible_size: None,
        screen_orientation: None,
        viewport: None,
        display_feature: None,
        device_posture: None,
    };
    tab.call_method(metrics).expect("a size");
}
