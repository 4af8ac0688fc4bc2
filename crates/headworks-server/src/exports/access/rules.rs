//! Rules of access in the form in which a shard asks them.
//!
//! ```text
//!   rules + (name, tenant) of an export     --> Sight: the listeners that offer it, the list of certificates that it needs
//!   rules + names of a client's certificate --> the lists that they fit                            (once a client)
//!   Sight, listener, lists of a client      --> seen or not                                        (once an option and export)
//! ```
//!
//! The rules know the offers of the exports that exist when they are made, since they are made by a control thread; only the name
//! of a later export is compared with the patterns in a shard's thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::admission::Admission;
use super::bits::BitSet;
use super::{AccessSpec, ListenerSpec};
use crate::exports::assemble::shown_name;
use crate::spec::name_pattern::fits_any;
use crate::spec::tenant::TenantName;

/// A listener for which rules are made.
pub struct RuleListener<'a> {
    /// Its number, which names it in an [`Admission`].
    pub number: u16,
    /// What it offers; none is every export.
    pub spec: Option<&'a ListenerSpec>,
    /// Its clients must present certificates.
    pub verifies: bool,
}

/// Which listener offers which exports, and which certificates exports need.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    /// Listeners that offer every export.
    everything: BitSet,
    by_tenant: BTreeMap<TenantName, BitSet>,
    /// Patterns of each listener that has any.
    patterns: Vec<(u16, Vec<String>)>,
    /// The listeners whose patterns fit a name, for the names that were known when the rules were made.
    known: HashMap<String, BitSet>,
    /// Listeners that verify their clients.
    verifying: BitSet,
    /// Lists of names in certificates.
    lists: Vec<Vec<String>>,
    list_of_export: HashMap<String, u16>,
    list_of_tenant: BTreeMap<TenantName, u16>,
}

/// How rules judge an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RuleSight {
    /// Listeners that offer it.
    listeners: BitSet,
    /// The list of certificates of its clients; none if it needs none.
    list: Option<u16>,
}

impl AccessRules {
    /// Rules by which the first `count` listeners offer every export.
    #[cfg(test)]
    pub fn open(count: u16) -> Self {
        Self { everything: (0..count).collect(), ..Self::default() }
    }

    /// Makes the rules of a configuration. `names` are the exports that exist.
    #[must_use]
    pub fn new<'a>(
        listeners: &[RuleListener<'_>],
        access: &AccessSpec,
        names: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut rules = Self::default();
        for RuleListener { number, spec, verifies } in listeners {
            if *verifies {
                rules.verifying.insert(*number);
            }
            match spec {
                Some(spec) if !spec.offers_all() => rules.add(*number, spec),
                _ => rules.everything.insert(*number),
            }
        }
        for (tenant, list) in access.tenants.iter().filter(|(_, list)| !list.is_empty()) {
            let number = rules.add_list(list);
            rules.list_of_tenant.insert(*tenant, number);
        }
        for (export, list) in access.exports.iter().filter(|(_, list)| !list.is_empty()) {
            let number = rules.add_list(list);
            rules.list_of_export.insert(export.clone(), number);
        }
        rules.known = names.map(|name| (name.to_owned(), rules.fitting(name))).collect();
        rules
    }

    fn add(&mut self, number: u16, spec: &ListenerSpec) {
        if let Some(tenant) = spec.tenant {
            self.by_tenant.entry(tenant).or_default().insert(number);
        }
        if !spec.exports.is_empty() {
            self.patterns.push((number, spec.exports.clone()));
        }
    }

    fn add_list(&mut self, list: &[String]) -> u16 {
        self.lists.push(list.to_vec());
        // A server has at most 1024 tenants and as many exports.
        (self.lists.len() - 1) as u16
    }

    /// Listeners whose patterns fit a name.
    fn fitting(&self, name: &str) -> BitSet {
        let fits = |(_, patterns): &&(u16, Vec<String>)| fits_any(shown_name(name), patterns);
        self.patterns.iter().filter(fits).map(|(number, _)| *number).collect()
    }

    fn judge(&self, name: &str, tenant: Option<TenantName>) -> RuleSight {
        let by_pattern = self.known.get(name).cloned();
        let mut listeners = by_pattern.unwrap_or_else(|| self.fitting(name));
        listeners.extend(&self.everything);
        if let Some(of_tenant) = tenant.and_then(|tenant| self.by_tenant.get(&tenant)) {
            listeners.extend(of_tenant);
        }
        let own = self.list_of_export.get(name);
        let list = own.or_else(|| self.list_of_tenant.get(&tenant?)).copied();
        RuleSight { listeners, list }
    }

    /// The lists that have one of a certificate's names.
    fn lists_of(&self, names: &[String]) -> BitSet {
        let fits = |list: &&Vec<String>| names.iter().any(|name| fits_any(name, list));
        (0..).zip(&self.lists).filter(|(_, list)| fits(list)).map(|(number, _)| number).collect()
    }

    fn shows(&self, sight: &RuleSight, listener: u16, lists: &BitSet) -> bool {
        let is_certified =
            || sight.list.is_none_or(|list| !self.verifying.has(listener) || lists.has(list));
        sight.listeners.has(listener) && is_certified()
    }
}

/// How the rules in force judge an export; valid until they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight(Vec<RuleSight>);

/// The rules that a shard asks: a client sees what all of them show, and nothing without rules.
#[derive(Clone, Debug, Default)]
pub struct RulesInForce {
    rules: Vec<Arc<AccessRules>>,
    /// Grows with each change, so that what was found by earlier rules is found anew.
    version: u64,
}

impl RulesInForce {
    /// The rules that a server starts with.
    #[must_use]
    pub fn new(rules: Vec<Arc<AccessRules>>) -> Self {
        Self { rules, version: 1 }
    }

    /// Replaces the rules; every [`Sight`] must be taken again.
    pub fn set(&mut self, rules: Vec<Arc<AccessRules>>) {
        *self = Self { rules, version: self.version + 1 };
    }

    /// Judges an export by its name and tenant.
    #[must_use]
    pub fn sight(&self, name: &str, tenant: Option<TenantName>) -> Sight {
        Sight(self.rules.iter().map(|rules| rules.judge(name, tenant)).collect())
    }

    /// Finds the lists that a client's certificate fits, unless these rules have found them before.
    pub fn identify(&self, admission: &mut Admission) {
        admission.identify(self.version, |names| {
            self.rules.iter().map(|rules| rules.lists_of(names)).collect()
        });
    }

    /// Whether a client sees an export that was judged by these rules.
    #[must_use]
    pub fn shows(&self, sight: &Sight, admission: &Admission) -> bool {
        let (listener, lists) = (admission.listener(), admission.lists());
        let is_shown = |(index, rules): (usize, &Arc<AccessRules>)| {
            let found = sight.0.get(index).zip(lists.get(index));
            found.is_some_and(|(sight, lists)| rules.shows(sight, listener, lists))
        };
        !self.rules.is_empty() && self.rules.iter().enumerate().all(is_shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::Address;

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).unwrap()
    }

    fn listener(exports: &[&str], of: Option<&str>) -> ListenerSpec {
        ListenerSpec {
            exports: exports.iter().map(|name| (*name).to_owned()).collect(),
            tenant: of.map(tenant),
            ..ListenerSpec::open(Address::Tcp("127.0.0.1:0".parse().unwrap()))
        }
    }

    fn rules(listeners: &[(u16, &ListenerSpec, bool)], access: &AccessSpec) -> Arc<AccessRules> {
        let mut all = Vec::new();
        for (number, spec, verifies) in listeners {
            let (number, spec, verifies) = (*number, Some(*spec), *verifies);
            all.push(RuleListener { number, spec, verifies });
        }
        Arc::new(AccessRules::new(&all, access, ["a-1", "b"].into_iter()))
    }

    /// Whether a client with these names in its certificate sees an export.
    fn sees(
        rules: &RulesInForce,
        listener: u16,
        names: &[&str],
        (export, of): (&str, Option<&str>),
    ) -> bool {
        let mut admission = Admission::new(listener);
        admission.certify(names.iter().map(|name| (*name).to_owned()).collect());
        rules.identify(&mut admission);
        rules.shows(&rules.sight(export, of.map(tenant)), &admission)
    }

    #[test]
    fn listener_offers_its_patterns_its_tenant_or_everything() {
        let (own, all) = (listener(&["a-*", "shared"], Some("acme")), listener(&[], None));
        let rules = rules(&[(3, &own, false), (700, &all, false)], &AccessSpec::default());
        let rules = RulesInForce::new(vec![rules]);
        for (export, of, offered) in [
            ("a-1", None, true),
            ("a-2", None, true),
            ("b", None, false),
            ("shared", None, true),
            ("b", Some("acme"), true),
            ("b", Some("globex"), false),
            ("later", Some("acme"), true),
            ("later", None, false),
        ] {
            assert_eq!(sees(&rules, 3, &[], (export, of)), offered, "{export} of {of:?}");
            assert!(sees(&rules, 700, &[], (export, of)));
            assert!(!sees(&rules, 4, &[], (export, of)), "no listener has this number");
        }
    }

    #[test]
    fn list_of_export_counts_before_that_of_its_tenant() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let access = AccessSpec {
            tenants: vec![(tenant("acme"), list(&["acme-*"])), (tenant("open"), list(&[]))],
            exports: vec![("db".to_owned(), list(&["db.acme.example"]))],
            ..AccessSpec::default()
        };
        let all = listener(&[], None);
        let rules = RulesInForce::new(vec![rules(&[(0, &all, true), (1, &all, false)], &access)]);
        let (db, web) = (("db", Some("acme")), ("web", Some("acme")));
        assert!(sees(&rules, 0, &["x", "acme-1"], web) && !sees(&rules, 0, &["acme"], web));
        assert!(sees(&rules, 0, &["db.acme.example"], db));
        assert!(!sees(&rules, 0, &["acme-1"], db), "the list of the export counts");
        for free in [("y", Some("open")), ("y", None), ("y", Some("globex"))] {
            assert!(sees(&rules, 0, &[], free), "nothing says which certificates");
        }
        assert!(!sees(&rules, 0, &[], web), "a client in the clear has no certificate");
        assert!(sees(&rules, 1, &[], web), "this one verifies no clients");
        assert_eq!(access.certificates("db", None), Some(&list(&["db.acme.example"])[..]));
        assert_eq!(access.certificates("web", Some(tenant("open"))), None);
    }

    #[test]
    fn both_rules_hold_while_others_are_loaded() {
        let (acme, globex) = (listener(&[], Some("acme")), listener(&[], Some("globex")));
        let old = rules(&[(0, &acme, false), (1, &globex, false)], &AccessSpec::default());
        let new = rules(&[(0, &globex, false), (1, &acme, false)], &AccessSpec::default());
        let mut rules = RulesInForce::new(vec![Arc::clone(&old)]);
        assert!(sees(&rules, 0, &[], ("x", Some("acme"))));
        rules.set(vec![old, Arc::clone(&new)]);
        // An export that moves from one tenant to the other is seen by neither meanwhile.
        for of in ["acme", "globex"] {
            assert!(
                !sees(&rules, 0, &[], ("x", Some(of))) && !sees(&rules, 1, &[], ("x", Some(of)))
            );
        }
        rules.set(vec![new]);
        assert!(sees(&rules, 0, &[], ("x", Some("globex"))));
        let admission = Admission::new(0);
        assert!(!rules.shows(&rules.sight("x", Some(tenant("globex"))), &admission), "unprepared");
        rules.set(Vec::new());
        assert!(!sees(&rules, 0, &[], ("x", Some("globex"))), "no rules show nothing");
    }

    #[test]
    fn certificate_is_judged_anew_by_new_rules() {
        let list = |name: &str| AccessSpec {
            exports: vec![("x".to_owned(), vec![name.to_owned()])],
            ..AccessSpec::default()
        };
        let all = listener(&[], None);
        let mut rules_now = RulesInForce::new(vec![rules(&[(0, &all, true)], &list("one"))]);
        let mut admission = Admission::new(0);
        admission.certify(vec!["two".to_owned()]);
        rules_now.identify(&mut admission);
        assert!(!rules_now.shows(&rules_now.sight("x", None), &admission));
        rules_now.set(vec![rules(&[(0, &all, true)], &list("two"))]);
        rules_now.identify(&mut admission);
        assert!(rules_now.shows(&rules_now.sight("x", None), &admission));
    }
}
