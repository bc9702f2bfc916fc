//! What an operator does with a set of nodes, on real servers: declare it new, show its status, replace
//! it, also half-way.

mod acl;
mod clocks;
mod init;
mod replace;
mod status;
mod support;
