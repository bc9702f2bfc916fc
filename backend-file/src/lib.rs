//! The file store of fencelock: locks between the processes of one machine.

/// `file:///DIR`
pub const SCHEME: fencelock_core::url::Scheme = fencelock_core::url::Scheme {
    names: &["file"],
    example: "file:///var/lib/jobs/locks",
    connect: |_| unreachable!(),
};
