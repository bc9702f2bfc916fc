//! Accounts that several locks protect, one each: money is moved between them in one transaction,
//! as in a database.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Writes;

/// One account in a transfer: under which token, and what is in it afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) account: String,
    pub(crate) token: u64,
    pub(crate) balance: i64,
}

/// All accounts. They are empty at first, and transfers leave their sum as it is: zero.
#[derive(Debug)]
pub(crate) struct Ledger {
    checks: bool,
    accounts: HashMap<String, Account>,
    writes: Writes,
}

#[derive(Debug, Default)]
struct Account {
    balance: i64,
    largest: u64,
}

impl Ledger {
    /// One that rejects a transfer if the token of any of its accounts is stale.
    pub(crate) fn checking() -> Ledger {
        Ledger { checks: true, accounts: HashMap::new(), writes: Writes::default() }
    }

    /// One that takes anything.
    pub(crate) fn trusting() -> Ledger {
        Ledger { checks: false, ..Ledger::checking() }
    }

    /// The balances, to write new ones afterwards: from then on smaller tokens are stale. `None` when
    /// one of these is, and the ledger checks.
    pub(crate) fn read(&mut self, accounts: &[(String, u64)]) -> Option<Vec<i64>> {
        self.admit(accounts.iter().map(|(account, token)| (account, *token)))?;
        Some(accounts.iter().map(|(account, _)| self.accounts[account].balance).collect())
    }

    /// Writes all balances or none.
    pub(crate) fn transfer(&mut self, entries: &[Entry]) {
        if self.admit(entries.iter().map(|entry| (&entry.account, entry.token))).is_none() {
            return;
        }
        self.writes.accepted += 1;
        for Entry { account, balance, .. } in entries {
            let account = self.accounts.entry(account.clone()).or_default();
            self.writes.money += balance - account.balance;
            account.balance = *balance;
        }
    }

    /// What became of the transfers since this was asked last.
    pub(super) fn take_writes(&mut self) -> Writes {
        std::mem::take(&mut self.writes)
    }

    fn admit<'a>(
        &mut self,
        accounts: impl Iterator<Item = (&'a String, u64)> + Clone,
    ) -> Option<()> {
        let is_stale = |(account, token): (&String, u64)| {
            self.accounts.get(account).is_some_and(|account| token < account.largest)
        };
        let stale = accounts.clone().any(is_stale);
        if stale && self.checks {
            self.writes.rejected += 1;
            return None;
        }
        self.writes.stale += u64::from(stale);
        for (account, token) in accounts {
            let account = self.accounts.entry(account.clone()).or_default();
            account.largest = account.largest.max(token);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two move one coin out of the same account; the second read after the first had, and writes
    /// first.
    fn overlapped(mut ledger: Ledger) -> Writes {
        let [from, to, third] = ["from", "to", "third"].map(str::to_owned);
        let first = ledger.read(&[(from.clone(), 1), (to.clone(), 1)]).unwrap();
        let second = ledger.read(&[(from.clone(), 2), (third.clone(), 1)]).unwrap();
        let entry = |account: &String, token, balance| {
            let account = account.clone();
            Entry { account, token, balance }
        };
        ledger.transfer(&[entry(&from, 2, second[0] - 1), entry(&third, 1, second[1] + 1)]);
        ledger.transfer(&[entry(&from, 1, first[0] - 1), entry(&to, 1, first[1] + 1)]);
        ledger.take_writes()
    }

    #[test]
    fn money_is_made_only_where_tokens_are_not_checked() {
        let expected = Writes { accepted: 1, rejected: 1, ..Writes::default() };
        assert_eq!(overlapped(Ledger::checking()), expected);
        let expected = Writes { accepted: 2, stale: 1, money: 1, ..Writes::default() };
        assert_eq!(overlapped(Ledger::trusting()), expected);
    }
}
