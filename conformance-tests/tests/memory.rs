//! The whole suite on the memory store, which lives in one process: what needs several is
//! ignored, and says so.

fn main() {
    fencelock_conformance::main(fencelock_conformance::MemoryHarness);
}
