//! What tests of a lock service need beside the suite of `fencelock-conformance`.
//!
//! [`servers`] are real servers on demand, [`proxy`] breaks the connections to them, and [`rigs`]
//! are whole deployments with the faults that each can have; [`apart`] are tests that need a machine
//! to themselves, in Linux namespaces; [`acts`] are the steps of a fault test, and [`outside`] what
//! must hold for any input. [`torture`] runs for as long as one likes, on what [`rigs`] start and
//! break.

pub mod acts;
pub mod apart;
pub mod outside;
pub mod proxy;
pub mod rigs;
pub mod servers;
pub mod torture;
