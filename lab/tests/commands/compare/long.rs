//! What takes minutes of the processor, or needs a browser.

mod browser;
mod compare_all;
