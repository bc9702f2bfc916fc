//! The list of the faults: `faults.txt`.

use crate::store::Store;

/// Faults that belong together.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) faults: Vec<Fault>,
}

/// One row of the matrix.
pub(crate) struct Fault {
    pub(crate) number: &'static str,
    pub(crate) fault: &'static str,
    pub(crate) required: &'static str,
    /// Stores at which there is nothing to test, and why.
    pub(crate) untestable: Vec<(Vec<Store>, &'static str)>,
}

pub(crate) fn listed() -> Result<Vec<Group>, String> {
    parse(include_str!("faults.txt"))
}

/// Parses a list with its preamble, which ends with the first group's title.
pub(crate) fn parse(text: &'static str) -> Result<Vec<Group>, String> {
    let mut groups: Vec<Group> = Vec::new();
    let lines = text.lines().skip_while(|line| !line.starts_with("# "));
    for line in lines.filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix("# ") {
            groups.push(Group { title, faults: Vec::new() });
        } else {
            let faults = &mut groups.last_mut().expect("begins with a title").faults;
            add(faults, line).map_err(|why| format!("faults.txt: {line:?}: {why}"))?;
        }
    }
    Ok(groups)
}

fn add(faults: &mut Vec<Fault>, line: &'static str) -> Result<(), String> {
    if let Some(reason) = line.strip_prefix("    ") {
        let (stores, why) = reason.split_once(": ").ok_or("expected STORES: REASON")?;
        let fault = faults.last_mut().ok_or("a reason without a fault")?;
        fault.untestable.push((Store::list(stores)?, why));
        return Ok(());
    }
    let columns: Vec<&str> = line.split(" | ").collect();
    let [number, fault, required] = columns[..] else {
        return Err("expected NUMBER | FAULT | REQUIRED".to_owned());
    };
    faults.push(Fault { number, fault, required, untestable: Vec::new() });
    Ok(())
}
