//! What tests of a lock service need in addition to the suite of `fencelock-conformance`.
//!
//! [`servers`] are real servers on demand, [`proxy`] breaks the connections to them, and [`deployments`]
//! are whole deployments with the faults that each can have; [`netns`] are tests that need a machine
//! to themselves, in Linux namespaces; [`helpers`] are the steps of a fault test, and [`fuzzing`] what
//! must hold for any input. [`torture`] runs for any length of time, on what [`deployments`] start and
//! break.

pub mod deployments;
pub mod fuzzing;
pub mod helpers;
pub mod netns;
pub mod proxied;
pub mod proxy;
pub mod servers;
pub mod torture;
