//! The guide: one page for each subject. The same pages are files in `fencelock/docs` of the
//! repository.

#[doc = include_str!("../docs/choosing-a-store.md")]
pub mod choosing_a_store {}

#[doc = include_str!("../docs/coordination.md")]
pub mod coordination {}

#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("../docs/reentrancy.md")]
pub mod reentrancy {}

#[doc = include_str!("../docs/services.md")]
pub mod services {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/upgrading.md")]
pub mod upgrading {}
